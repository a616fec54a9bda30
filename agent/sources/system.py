"""The name of this system, the number of GPUs that respond, and the expected number of GPUs."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from agent.config.atomic_file import atomic_write
from agent.config.settings import Configuration
from agent.errors import BadInput, LogEvent, log
from agent.hardware.files import FileTree, names_in, read_text, whole
from agent.jobs.allocation import DRIVER
from agent.metrics import declared_beside
from agent.model import Absent, ReadKey
from agent.polling import intervals
from agent.polling.gpu_state import GpuInventory
from agent.polling.reads import Read, ReadOutput, fixed
from agent.polling.watched_gpus import MOST_GPUS
from agent.specs.sheets import MachineSpecs, SpecConfig
from agent.threads import in_time, on_a_thread

_METRICS = declared_beside(__file__)
INFO = _METRICS["dgx_system_info"]
GPUS = _METRICS["dgx_system_gpus"]
GPUS_EXPECTED = _METRICS["dgx_system_gpus_expected"]

FILE = "expected-gpus"
DEVICES = "/sys/bus/pci/devices"
NVIDIA = "0x10de"


def is_given(files: FileTree, device: str) -> bool:
    """Return whether a PCI device is an NVIDIA GPU that this host uses. For example, a GPU in use
    by a virtual machine is bound to another driver."""
    try:
        known = read_text(files, f"{device}/vendor"), read_text(files, f"{device}/class")[:6]
    except Absent:
        return False
    if known not in {(NVIDIA, "0x0300"), (NVIDIA, "0x0302")}:  # VGA and 3D controllers
        return False
    try:
        return files.link(f"{device}/driver").rpartition("/")[2] == "nvidia"
    except OSError:  # no driver is bound: it may have failed
        return True


class ExpectedGpus:
    """The largest number of GPUs that NVML, the driver's /proc directory, or the PCI bus has ever
    listed. A file in `folder` keeps the number across restarts. To reset it, remove the file. If
    `keeps` is false, the file is only read."""

    def __init__(self, files: FileTree, folder: Path | None, *, keeps: bool) -> None:
        self._files = files
        self._file = folder / FILE if folder else None
        self._keeps = keeps
        self._kept = self._most = self._read()
        self._looked = float("-inf")
        self._writing: Future[None] | None = None

    def most(self, answering: int, now: float) -> int:
        if now - self._looked >= intervals.TOPOLOGY:
            self._looked = now
            listed = len(names_in(self._files, DRIVER))
            devices = (f"{DEVICES}/{name}" for name in names_in(self._files, DEVICES))
            on_bus = sum(is_given(self._files, device) for device in devices)
            self._most = max(self._most, listed, on_bus)
        self._most = min(MOST_GPUS, max(self._most, answering))
        waits = self._writing is not None and not self._writing.done()
        if self._file and self._keeps and not waits and self._most > self._kept:
            self._kept = self._most  # written on a separate thread, because disks may hang
            self._writing = on_a_thread("expected-gpus", partial(_write, self._file, self._most))
        return self._most

    def _read(self) -> int:
        file = self._file
        try:
            text = in_time(file.read_bytes, 2.0).decode().strip() if file else ""
        except (OSError, UnicodeDecodeError):  # including a disk that hangs
            return 0
        known = whole(text) or 0
        return known if known <= MOST_GPUS else 0


def _write(file: Path, most: int) -> None:
    try:
        atomic_write(file, f"{most}\n".encode())
    except BadInput as error:
        log.warning(LogEvent("expected_gpus_not_kept", reason=str(error)))


def reads(
    found: Callable[[], GpuInventory],
    configuration: Configuration,
    product: str,
    expected: ExpectedGpus,
) -> Iterator[Read]:
    """Yield one read, for the names of this system and its present and expected GPUs."""

    def read(out: ReadOutput) -> None:
        inventory, settings = found(), configuration.current
        spec = settings[MachineSpecs].system_of(inventory.gpus)
        name, title = (spec.name, spec.title) if spec else ("", "")
        out.add(INFO, 1, name, title, product, inventory.driver_version, inventory.nvml_version)
        if not inventory.connected:
            absent = Absent(inventory.reason, inventory.why_not)
            out.absent(GPUS, absent)
            out.absent(GPUS_EXPECTED, absent)
            return
        out.add(GPUS, inventory.answering + len(inventory.unmet))
        most = expected.most(inventory.most, out.at)
        out.add(GPUS_EXPECTED, settings[SpecConfig].gpus or (spec.gpus if spec else most))

    metrics = (INFO, GPUS, GPUS_EXPECTED)
    yield Read(ReadKey("system", "identity"), metrics, read, fixed(intervals.TICK))
