"""`dgx-telemetry`, also as `python -m agent`."""

import errno
import gc
import os
import sys
from contextlib import suppress
from importlib.util import cache_from_source
from io import TextIOWrapper
from pathlib import Path


def main() -> None:
    """Run the command line and exit with its status: 2 for bad usage and configuration."""
    if sys.argv[1:2] == ["run"]:
        _optimise()
        gc.disable()  # imports leave no garbage, and looking for it takes a tenth of the start
    # aiohttp makes TLS contexts for its client when it is imported, with every CA of the machine
    # in them: 2 MB of memory for a server that never calls anybody. The children of `up` do call,
    # and `report` asks over https.
    if sys.argv[1:2] not in (["up"], ["report"]):
        os.environ["SSL_CERT_FILE"] = os.devnull
    for name in ("stdin", "stdout", "stderr"):  # closed: the next file would take its place
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: SIM115 - for as long as it runs
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that is not UTF-8 gets question marks
    sys.exit(_status())


def _optimise() -> None:
    """Start this program again with optimised bytecode where an installation has compiled it: an
    agent that may not write bytecode would compile all of its modules at each start."""
    compiled = Path(cache_from_source(__file__, optimization=2)).exists()
    if compiled and sys.executable and not sys.flags.optimize:
        with suppress(OSError):
            os.execv(sys.executable, [sys.executable, "-OO", *sys.orig_argv[1:]])  # noqa: S606


def _status() -> int:
    try:
        from agent.cli.parser import run_command

        try:
            status = run_command(sys.argv[1:])
        except SystemExit as left:  # a help or a usage was printed
            status = int(left.code or 0)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        sys.stdout = None  # nothing more can be written there, not even at the exit
        # A write to an open file fails without a file name, and needs no new file.
        lacking = error.filename or error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
        failed = "cannot run" if lacking else "cannot write its output"
        named = f" {error.filename}" if error.filename else ""
        print(f"dgx-telemetry: {failed}{named}: {error.strerror or error}", file=sys.stderr)
        sys.stderr = None  # a file that was written only half complains when it is taken away
        return 2
    return status


if __name__ == "__main__":
    main()
