"""Machines with live pages in a process of their own; they play what they are reported."""

import subprocess
import sys
from collections.abc import Mapping

from tests.stack.running import clean_environment
from tests.support.repository import ROOT

HELD_AFTER = 10.0
"""Seconds of the machines' clock: no one learns more from waiting 60."""


class Machines:
    """A process full of simulated machines; `with` ends it."""

    def __init__(self, speed: float, specs: Mapping[str, str]) -> None:
        pairs = [f"{name}={spec}" for name, spec in specs.items()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.browser.fleet", f"{speed:g}", f"{HELD_AFTER:g}", *pairs],
            cwd=ROOT,
            env=clean_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        lines = [self._process.stdout.readline().split() for _ in specs]
        self._ports = {name: int(port) for name, port in lines}

    def __enter__(self) -> "Machines":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.kill()
        self._process.wait()

    def page(self, name: str) -> str:
        """The address of a machine's page."""
        return f"http://127.0.0.1:{self._ports[name]}/"

    def play(self, name: str, scenario: str) -> None:
        """Let a machine play another scenario from now on."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name} {scenario}\n")
        self._process.stdin.flush()
