"""Proves that `deploy/start` works on machines that no one has touched, and how long it takes.

    python -m tests.bare                          # Debian 12, as root and without any rights
    python -m tests.bare debian-12 ubuntu-24.04 ubuntu-22.04 --rights root sudo none

Each starts the whole stack from a fresh clone of what is committed here, and is done once agent,
Prometheus and Alertmanager answer and the alert of a simulated fault has arrived. Needs root,
mmdebstrap and systemd-nspawn. Exit status 1 where one of them does not get so far.
"""

import argparse
import re
import socket
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import astuple

from agent.stack.programs import LOOPBACK, FreePorts
from tests.bare.machine import BareMachine, Inside
from tests.bare.systems import RIGHTS, SYSTEMS, bare_root

START = "deploy/start --simulate dgx-station-v100:gpu-lost --simulate-speed 10"
ALERT = "DgxGpuMissing"

ANSWERING = {
    "agent": ("-/ready", "metrics", ""),
    "prometheus": ("-/ready", "classic/graph"),
    "alertmanager": ("-/ready", "api/v2/status"),
}
"""Pages that must answer, with status 200."""


def prove(name: str, rights: str) -> tuple[str, bool]:
    """The transcript, and whether all arrived."""
    title = f"{name}, {rights}"
    with (
        BareMachine(SYSTEMS[name], rights, "dgx telemetry") as machine,
        machine.start(START) as inside,
    ):
        try:
            inside.wait_for(lambda: "\nData in " in inside.text(), "addresses")
            answer(inside)
            inside.wait_for(lambda: f"alert: {ALERT}" in inside.text(), ALERT)
        except (AssertionError, OSError) as failure:
            return f"== {title}: failed\n{failure}\n", False
        lines = [f"{seconds:6.1f}  {line}" for seconds, line in inside.said]
        done = inside.seconds
    return "\n".join([f"== {title}: all arrived after {done:.0f} s", *lines, ""]), True


def answer(inside: Inside) -> None:
    """Ask everything that is listed; raises OSError where one does not answer with 200."""
    found = dict(re.findall(r"^  (\w+) +(http://\S+/)", inside.text(), re.MULTILINE))
    assert ANSWERING.keys() <= found.keys(), inside.text()
    for name, paths in ANSWERING.items():
        for path in paths:
            with urllib.request.urlopen(found[name] + path, timeout=10) as page:
                assert page.read(), f"{found[name]}{path} is empty"


@contextmanager
def held_ports(wanted: bool) -> Iterator[None]:
    """The usual ports, taken: two stacks that start at once would both choose them."""
    with ExitStack() as held:
        for port in astuple(FreePorts()) if wanted else ():
            with suppress(OSError):  # somebody else has it, which does as well
                held.enter_context(socket.create_server((LOOPBACK, port)))
        yield


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bare", description=__doc__)
    parser.add_argument("systems", nargs="*", default=["debian-12"], metavar="SYSTEM")
    parser.add_argument("--rights", nargs="+", choices=RIGHTS, default=["root", "none"])
    arguments = parser.parse_args()
    unknown = set(arguments.systems) - SYSTEMS.keys()
    if unknown:
        parser.error(f"unknown system {unknown.pop()}: expected one of {', '.join(SYSTEMS)}")
    cases = [(name, rights) for name in arguments.systems for rights in arguments.rights]
    for name, rights in cases:  # one after the other: some are the same
        bare_root(SYSTEMS[name], rights)
    good = True
    with held_ports(len(cases) > 1), ThreadPoolExecutor(2) as pool:
        for transcript, arrived in pool.map(lambda case: prove(*case), cases):
            print(transcript, flush=True)
            good &= arrived
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
