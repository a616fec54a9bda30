"""The entry point of `dgx-telemetry` and `python -m agent`."""

import errno
import gc
import os
import sys
from contextlib import suppress
from importlib.util import cache_from_source
from io import TextIOWrapper
from pathlib import Path


def main() -> None:
    """Run the command, and exit with its status. Usage and configuration errors have status 2."""
    if sys.argv[1:2] == ["run"]:
        # Otherwise, an agent that cannot write bytecode would compile all modules at every start.
        compiled = Path(cache_from_source(__file__, optimization=2)).exists()
        if compiled and sys.executable and not sys.flags.optimize:
            with suppress(OSError):
                os.execv(sys.executable, [sys.executable, "-OO", *sys.orig_argv[1:]])  # noqa: S606
        with suppress(OSError):  # name in `ps` and `systemctl status` instead of Python's
            Path("/proc/self/comm").write_text("dgx-telemetry")
        gc.disable()  # imports leave no garbage, and searching for it takes 10 % of the startup
        # When aiohttp is imported, it creates client TLS contexts that load all CA certificates of
        # the machine. That wastes 2 MB of memory in a server that never makes an HTTPS request.
        os.environ["SSL_CERT_FILE"] = os.devnull
    for name in ("stdin", "stdout", "stderr"):  # otherwise, a file would reuse its number
        if getattr(sys, name) is None:
            # A write to a closed stdout fails, but the agent and `check` do not depend on it.
            fails = name == "stdout" and sys.argv[1:2] not in (["run"], ["check"])
            file = os.open(os.devnull, os.O_RDONLY if fails else os.O_RDWR)
            setattr(sys, name, open(file, "r" if name == "stdin" else "w"))  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # other terminals show question marks
    sys.exit(_status())


def _status() -> int:
    status = 0
    try:
        from agent.cli.parser import run_command

        try:
            status = run_command(sys.argv[1:])
        except SystemExit as left:  # help or usage was printed
            status = int(left.code or 0)
        sys.stdout.flush()
        sys.stderr.flush()
    except KeyboardInterrupt:
        return 130
    except RuntimeError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # Python 3.11, while a class is defined
            return 130
        raise
    except BrokenPipeError:  # the reader has closed the pipe
        sys.stdout = sys.stderr = None  # closing them would raise again
    except OSError as error:
        sys.stdout = None  # it cannot be written any more, even at exit
        # A failed write to an open file reports no file name, and needs no file descriptor.
        lacking = error.filename or error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
        failed = "cannot run" if lacking else "cannot write its output"
        named = f" {error.filename}" if error.filename else ""
        print(f"dgx-telemetry: {failed}{named}: {error.strerror or error}", file=sys.stderr)
        sys.stderr = None  # closing a partially written stream would raise again
        return 2
    return status


if __name__ == "__main__":
    main()
