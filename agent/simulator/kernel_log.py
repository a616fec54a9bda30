"""The kernel's log of a simulated machine, in the words of its driver.

Wordings were seen in public reports: before R440 without `PCI:`, before R510 without the name of
the process, since then with both, or with `<unknown>`.
"""

from collections import deque
from collections.abc import Callable, Sequence

from agent.hardware.kernel_log import LogLine
from agent.simulator.system_models import address

BEFORE_PCI, BEFORE_NAMES = 440, 510

UNKNOWN_PROCESS = "pid='<unknown>', name=<unknown>"

WORDS: dict[int, str] = {
    13: "Graphics SM Warp Exception on (GPC 0, TPC 0, SM 0): ReadOutput Of Range Address",
    31: "Ch 00000008, intr 10000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ "
    "0x7fd5_a8000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    43: "Ch 00000008",
    45: "Ch 00000008",
    48: "DBE (double bit error) ECC Error Detected on GPU in FBPA at partition 2, subpartition 0.",
    62: "3a06(70d0) 00000000 00000000",
    63: "Row Remapper: New row marked for remapping, reset gpu to activate.",
    64: "Row Remapper: Error adding row to the remapper table.",
    74: "NVLink: fatal error detected on link 2(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
    79: "GPU has fallen off the bus.",
    92: "High single-bit ECC error rate",
    94: "Contained: SM (0x1). RST: No, D-RST: No",
    95: "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
    109: "Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x1c046",
    119: "Timeout after 45s of waiting for RPC response from GPU0 GSP! Expected function 76 "
    "(GSP_RM_CONTROL) (0x20800a4c 0x4).",
    120: "GSP task exception: Load access fault @ pc:0x1814e26",
    149: "NETIR_LINK_EVT Fatal XC0 i0 Link 04 (0x004001c6 0x00000000 0x00000000 0x00000000 "
    "0x00000000 0x00000000)",
    154: "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
}
OLDER_WORDS: dict[int, str] = {
    63: "Dynamic Page Retirement: New retired page, reboot to activate (0x00000000001a2b3c).",
    64: "Dynamic Page Retirement: Failed to retire page (0x00000000001a2b3c).",
}
"""GPUs that retire pages."""

OF_PROGRAMS = frozenset({13, 31, 43, 45, 94, 109})
"""Codes whose line names a process."""

GARBAGE = (
    "NVRM: Xid (PCI:",
    "NVRM: Xid (PCI:0000:ff:1f): , ",
    "NVRM: Xid (PCI:zz:00): 48, pid=1",
    "nvidia-nvswitch0: SXid (PCI:0000:86:00.0): 24007, Data {0x00000000, 0x00000000}",
    "nvidia-nvswitch0: SXid (PCI:0000:86:00.0): 24007, Severity 0 Engine instance 30",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
    "audit: type=1400 audit(0): apparmor=\x00\xff",
    "docker0: port 1(veth0) entered blocking state",
)
"""Lines that report no error."""

RING = 20_000
"""Records that the kernel keeps."""


class SimulatedKernelLog:
    """What the kernel wrote; read once from its beginning."""

    def __init__(self, now: Callable[[], float], driver: int, older: bool) -> None:
        self._now = now
        self._driver = driver
        self._older = older  # GPUs that retire pages
        self._lines: deque[LogLine] = deque()
        self.lost = 0

    def lines(self) -> Sequence[LogLine]:
        """What came since the last call."""
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
        """An XID error of the GPU on this bus."""
        place = f"{'' if self._driver < BEFORE_PCI else 'PCI:'}{address(bus)[:-2]}"
        words = (OLDER_WORDS if self._older and code in OLDER_WORDS else WORDS).get(code, "")
        who = self._who(pid if code in OF_PROGRAMS else None)
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
