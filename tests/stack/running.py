"""A program under test: its lines as they come, its children, its end."""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.support.patience import PATIENCE
from tests.support.repository import ROOT

LOOKS_APART = 0.5
"""Seconds between two looks at most: many a look starts a program in a machine."""


def eventually(met: Callable[[], object], what: str) -> None:
    """Wait until it is so, looking less and less often; fail with `what` where it never is."""
    deadline, pause = time.monotonic() + PATIENCE, 0.03
    while not met():
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what}"
        time.sleep(pause)
        pause = min(LOOKS_APART, 1.5 * pause)


def clean_environment(**changes: str) -> dict[str, str]:
    """This environment without the agent's settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("DGX_TELEMETRY_")}
    return {**kept, **changes}


def run_to_end(
    words: Sequence[str | Path], given: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """A command that has ended, and what it wrote; without the agent's settings."""
    return subprocess.run(
        words,
        cwd=ROOT,
        env=clean_environment(**environment),
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


class Running:
    """A Python module that was started; `with` ends it whatever happens."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", *arguments],
            cwd=ROOT,
            env=clean_environment(**environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said: list[str] = []
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def line(self, pattern: str) -> re.Match[str]:
        """The first line from now on in which the pattern is found."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                text = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                said = "".join(self.said)
                raise AssertionError(
                    f"no line with {pattern} within {PATIENCE:g} s: {said}"
                ) from None
            assert text, f"it ended without a line with {pattern}: {''.join(self.said)}"
            self.said.append(text)
            found = re.search(pattern, text)
            if found:
                return found

    def end(self, number: signal.Signals) -> int:
        """Its exit status after a signal."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def children(self) -> Mapping[str, int]:
        """Process ids of its children by the name of what runs in them."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it ended while we looked
                continue
            if parent == self.process.pid and words != [b""]:
                name = "agent" if b"agent" in words else Path(words[0].decode()).name
                found[name] = int(folder.name)
        return found


def alive(pid: int) -> bool:
    """Return whether the process still runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
