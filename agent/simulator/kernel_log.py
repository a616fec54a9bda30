"""The kernel's log of a simulated machine, in the words of its driver.

Wordings were seen in public reports: before R440 without `PCI:`, before R510 without the name of
the process, since then with both, or with `<unknown>`.
"""

import tomllib
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from agent.hardware.kernel_log import LogLine
from agent.simulator.models import address

BEFORE_PCI, BEFORE_NAMES = 440, 510

UNKNOWN_PROCESS = "pid='<unknown>', name=<unknown>"

_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
WORDS, OLDER_WORDS = _TABLES["words"], _TABLES["older_words"]
"""Text of a line, by code; that of GPUs that retire pages where it differs."""

GARBAGE: Sequence[str] = _TABLES["garbage"]  # Lines that report no error
RING = 20_000  # Records that the kernel keeps


class SimulatedKernelLog:
    """Kernel log of a simulated machine; each reader begins at its start."""

    def __init__(self, now: Callable[[], float], driver: int, older: bool) -> None:
        self._now = now
        self._driver = driver
        self._older = older  # GPUs that retire pages
        self._lines: deque[LogLine] = deque()
        self.lost = 0

    def lines(self) -> Sequence[LogLine]:
        found = list(self._lines)
        self._lines.clear()
        return found

    def write(self, text: str) -> None:
        """One record; the oldest goes where there is no room."""
        if len(self._lines) == RING:
            self._lines.popleft()
            self.lost += 1
        self._lines.append(LogLine(self._now(), text))

    def xid(self, bus: int, code: int, pid: int | None) -> None:
        place = f"{'' if self._driver < BEFORE_PCI else 'PCI:'}{address(bus)[:-2]}"
        words = {**WORDS, **(OLDER_WORDS if self._older else {})}.get(str(code), "")
        who = self._who(pid if code in _TABLES["of_programs"] else None)
        text = ", ".join(part for part in (who, words) if part)
        self.write(f"NVRM: Xid ({place}): {code}, {text}")

    def _who(self, pid: int | None) -> str:
        if pid is None:
            return "" if self._driver < BEFORE_NAMES else UNKNOWN_PROCESS
        return f"pid={pid}" if self._driver < BEFORE_NAMES else f"pid={pid}, name=python"

    def fallen(self, bus: int) -> None:
        """The line besides XID 79."""
        self.write(f"NVRM: GPU {address(bus)}: GPU has fallen off the bus.")

    def sxid(self, switch: int, code: int, fatal: bool, words: str) -> None:
        """An error of an NVSwitch: its data, what it is, and where."""
        head = f"nvidia-nvswitch{switch}: SXid (PCI:0000:{0x86 + switch:02x}:00.0): {code}"
        self.write(f"{head}, Data {{0x0000002b, 0x0000002b, 0x00000000}}")
        self.write(f"{head}, {'Fatal' if fatal else 'Non-fatal'}, {words}")
        self.write(f"{head}, Severity {int(fatal)} Engine instance 30 Sub-engine instance 00")
