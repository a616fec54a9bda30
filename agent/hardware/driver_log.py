"""Messages of NVIDIA's drivers in the kernel log: XID errors, NVSwitch errors, lost GPUs.

Wordings differ by driver: `Xid (0000:3b:00): 48, ...` before R440, `Xid (PCI:0000:3b:00): 31,
pid=1234, Ch ...`, since R510 `pid=1234, name=python, Ch ...` or `pid='<unknown>', name=<unknown>`,
with MIG `(PCI:0000:3b:00 GPU-I:03)`.
"""

import re
from typing import NamedTuple

ADDRESS = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-7])?"
XID = re.compile(
    rf"NVRM: Xid \((?:PCI:)?({ADDRESS})(?: [A-Z][A-Z-]*:\d+)*\): (\d{{1,4}})(?!\d),? ?(.*)",
    re.DOTALL,
)
SWITCH = re.compile(
    rf"(nvidia-nvswitch\d{{1,2}}): SXid \(PCI:({ADDRESS})\): (\d{{1,6}}), "
    r"(Fatal|Non-fatal)(?:,.*)?",
    re.DOTALL | re.IGNORECASE,
)
FALLEN = re.compile(
    rf"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?({ADDRESS})\b.{{0,150}}\bfallen off the bus.*",
    re.DOTALL,
)
"""Of a GPU at work in one line; of one that is gone when the driver is loaded in one record of
three (issue 155 of NVIDIA/NVSentinel), and then no XID reports it."""

FORGED = re.compile(r"NVRM: .{0,60}(?:Xid \(|fallen off the bus)|SXid \(")
"""Words of these lines within another one: a program that crashes is logged with its name, of which
the first 15 letters begin the line, and with those of the files that it has mapped."""

OWN = ("NVRM: ", "nvidia-nvswitch")
CRASHED = re.compile(r".{0,15}\[\d+\]: ")
"""Beginning of a kernel line on a process, with its name and its number."""

PROCESS = re.compile(r"pid=(\d+)(?:, name=([^,]*))?")
NVLINK5 = re.compile(
    r"\b(\w{1,64})\s+(Fatal|Nonfatal)\s+XC\d+\s+i\d+\s+Link\s+-?\d+\s+"
    r"\((0x[0-9a-fA-F]{1,8})\s+(0x[0-9a-fA-F]{1,8})"
)

LONGEST = 1000  # Characters of a line that are looked at: the driver's are shorter


class KernelXid(NamedTuple):
    """One XID error; `unit`, `fatal` and the words are reported by NVLink 5 alone."""

    pci: str
    code: int
    pid: int | None
    process: str
    unit: str
    fatal: bool
    first: int
    status: int

    @property
    def who(self) -> str:
        """`python (1234)`, `1234`, or nothing."""
        if self.pid is None:
            return ""
        return f"{self.process} ({self.pid})" if self.process else str(self.pid)


class SwitchError(NamedTuple):
    """One error of an NVSwitch."""

    switch: str
    code: int
    fatal: bool


class BusLoss(NamedTuple):
    """A GPU that the driver no longer finds."""

    pci: str


class Forged(NamedTuple):
    """A line that holds the driver's words, and that the driver did not write."""

    text: str


DriverLine = KernelXid | SwitchError | BusLoss | Forged


def pci_address(text: str) -> tuple[int, ...]:
    """Domain, bus and device of an address, however it is written; empty where it is none."""
    try:
        return tuple(int(part, 16) for part in re.split("[:.]", text)[:3])
    except ValueError:
        return ()


def parsed(text: str) -> DriverLine | None:
    """Return the content of a line; None for all lines that report no error, or no new one."""
    if "NVRM: " not in text and "SXid" not in text:
        return None
    text = text[:LONGEST]
    if found := XID.fullmatch(text):
        return _xid(*found.groups())
    if found := SWITCH.fullmatch(text):
        return SwitchError(found[1], int(found[3]), found[4].lower() == "fatal")
    if found := FALLEN.fullmatch(text):
        return BusLoss(found[1])
    own = text.startswith(OWN) and not CRASHED.match(text)
    return Forged(text) if not own and FORGED.search(text) else None


def _xid(pci: str, code: str, rest: str) -> KernelXid | None:
    process = PROCESS.search(rest)
    link = NVLINK5.search(rest)
    return KernelXid(
        pci,
        int(code),
        int(process[1]) if process else None,
        (process[2] or "").strip() if process else "",
        link[1] if link else "",
        bool(link and link[2] == "Fatal"),
        int(link[3], 16) if link else 0,
        int(link[4], 16) if link else 0,
    )
