"""Trials of `deploy/start` on broken machines: by hand, for they take some minutes.

    python -m tests.bare.faults [CASE...]

Each case spoils one thing of a bare Debian 12 on which no one has rights, and says what must be
reported; once the fault is gone, the same clone must set itself up. Needs what `tests.bare` needs.
"""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tests.bare.machine import BareMachine
from tests.bare.systems import NUMBER, SYSTEMS

SETUP = "deploy/environment && deploy/binaries"
WORKS = ".venv/bin/dgx-telemetry once --simulate k40:idle && .venv/bin/prometheus --version"
WHOLE = f"{SETUP} && {WORKS}"
"""Sets itself up without going on for ever as `deploy/start` does, and works then."""

KNOWN = "Attempted to remove disk file system"
"""Messages of systemd-nspawn itself."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong, and what must be said of it; nothing where it must do no harm."""

    said: str = ""
    options: tuple[str, ...] = ()  # of systemd-nspawn
    environment: tuple[tuple[str, str], ...] = ()
    before: str = "true"  # by the user, in the clone
    folder: str = "dgx-telemetry"
    prepare: Callable[[BareMachine], object] = id


def take_apt(machine: BareMachine) -> None:
    (machine.root / "usr/bin/apt-get").rename(machine.root / "usr/bin/taken")


def lock_home(machine: BareMachine) -> None:
    (machine.root / machine.home).chmod(0o555)


def make_environment_folder(machine: BareMachine) -> None:
    (machine.root / machine.clone / ".venv").mkdir()
    os.chown(machine.root / machine.clone / ".venv", NUMBER, NUMBER)


def small_disk(megabytes: int) -> Fault:
    size = f"--tmpfs=/home/ada/dgx-telemetry/.venv:size={megabytes}M,mode=777"
    return Fault("the disk is full", (size,), prepare=make_environment_folder)


FAULTS = {
    "no-network": Fault("no network, or its server does not answer", ("--private-network",)),
    "no-apt": Fault("needed is what `apt install python3-venv` installs", prepare=take_apt),
    **{f"disk-of-{size}-MB": small_disk(size) for size in (1, 5, 30, 60, 90, 200)},
    "read-only": Fault("cannot be written", ("--read-only",)),
    "locked-home": Fault(prepare=lock_home),
    "blanks-and-dollars": Fault(folder="dgx $HOME `id` 'a' \\b; telemetry"),
    "not-ascii": Fault(folder="dgx-télémétrie", environment=(("LC_ALL", "C"),)),
    "colon": Fault("has a colon in it", folder="dgx:telemetry"),
    "LANG=C": Fault(environment=(("LANG", "C"),)),
    "noexec-tmp": Fault(options=("--tmpfs=/tmp:mode=1777,noexec",)),
    "small-tmp": Fault(options=("--tmpfs=/tmp:size=1M,mode=1777",)),
    "no-ipv6": Fault(before="! [ -s /proc/net/if_inet6 ] || cat /proc/net/if_inet6"),
    "moved": Fault(before=f"{SETUP} && cd .. && mv dgx-telemetry moved && cd moved"),
    "no-home": Fault(environment=(("HOME", "/nonexistent"),)),
}


def judge(name: str, fault: Fault) -> str:
    """In one line, what came of it; raises AssertionError where it is not what should."""
    with BareMachine(SYSTEMS["debian-12"], "none", fault.folder) as machine:
        fault.prepare(machine)
        line = f"{fault.before} && {WHOLE}"
        with machine.start(line, *fault.options, **dict(fault.environment)) as inside:
            status = inside.status()
        if not fault.said:
            assert status == 0, inside.text()
            return f"{name}: works"
        texts = (text for _, text in inside.said if KNOWN not in text)
        shown = [text for text in texts if not text.startswith(("[", " "))]
        assert status == 1, inside.text()
        assert len(shown) == 1, "\n".join(shown)
        assert fault.said in shown[0], shown[0]
        if name == "no-apt":
            (machine.root / "usr/bin/taken").rename(machine.root / "usr/bin/apt-get")
        if name != "colon":
            with machine.start(WHOLE) as again:
                assert again.status() == 0, again.text()
        return f"{name}: {shown[0]}"


def main() -> int:
    cases = {name: partial(judge, name, fault) for name, fault in FAULTS.items()}
    parser = argparse.ArgumentParser(prog="python -m tests.bare.faults", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(cases))
    good = True
    for name in parser.parse_args().cases or cases:
        try:
            print(cases[name](), flush=True)
        except AssertionError as failure:
            good = False
            print(f"{name}: NOT AS IT SHOULD BE\n{failure}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
