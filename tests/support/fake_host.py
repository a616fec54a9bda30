"""A fake host below a folder, and its sources' reads run one at a time."""

import errno
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent.config.settings import Configuration, Section, Settings
from agent.hardware.files import RealFiles
from agent.hardware.host import Host
from agent.model import Absence, Reading, Reason
from agent.polling.reads import Read, ReadCosts, perform
from agent.sources import infiniband
from agent.sources.context import HostOptions
from tests.support.frozen_clock import FrozenClock

PORT = {
    "state": "4: ACTIVE",
    "phys_state": "5: LinkUp",
    "link_layer": "InfiniBand",
    "rate": "100 Gb/sec (4X EDR)",
    "counters/port_rcv_data": "1000",
    "counters/port_xmit_data": "500",
    "counters/port_xmit_wait": "7",
    **{f"counters/{row.file}": "0" for row in infiniband.FAULTS},
}


@dataclass
class FakePsutil:
    """Answers what its fields hold; refuses psutil's own handling of wraps."""

    disks: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    nics: dict[str, tuple[int, int]] = field(default_factory=dict)
    times: tuple[float, ...] = (0.0,) * 8

    def disk_io_counters(self, perdisk: bool = False, nowrap: bool = True) -> Mapping[str, object]:
        assert perdisk
        assert not nowrap
        names = ("read_bytes", "write_bytes", "busy_time")
        return {
            d: types.SimpleNamespace(**dict(zip(names, v, strict=True)))
            for d, v in self.disks.items()
        }

    def net_io_counters(self, pernic: bool = False, nowrap: bool = True) -> Mapping[str, object]:
        assert pernic
        assert not nowrap
        return {
            nic: types.SimpleNamespace(bytes_recv=received, bytes_sent=sent)
            for nic, (received, sent) in self.nics.items()
        }

    def cpu_times(self) -> object:
        names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
        return types.SimpleNamespace(
            **dict(zip(names, self.times, strict=True)), guest=99.0, guest_nice=0.0
        )


def put(root: Path, path: str, text: str) -> None:
    """Write a file of a tree, and the folders above it."""
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


class OddTree(RealFiles):
    """A tree in which some paths fail as broken drivers do; keeps what was asked."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.errors: dict[str, int] = {}
        self.asked: list[str] = []
        self.listed: list[str] = []

    def read(self, path: str) -> str:
        self.asked.append(path)
        for end, number in self.errors.items():
            if path.endswith(end):
                raise OSError(number, errno.errorcode[number])
        return super().read(path)

    def reread(self, path: str) -> str:
        return self.read(path)  # a file of a fixture stays readable when its process has ended

    def names(self, path: str) -> list[str]:
        self.listed.append(path)
        return super().names(path)


class HostBench:
    """A fake host, its clock, and the reads of one or more sources."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree = OddTree(root)
        self.psutil = FakePsutil()
        self.clock = FrozenClock()
        self.host = Host(self.tree, self.psutil)
        self._reads: dict[str, Read] = {}

    def write(self, path: str, text: str) -> None:
        put(self.root, path, f"{text}\n")

    def port(self, device: str, port: str = "1", **changes: str | None) -> None:
        """An InfiniBand port; a change of None leaves the file out. `__` stands for `/`."""
        named = {name.replace("__", "/"): text for name, text in changes.items()}
        for name, text in (PORT | named).items():
            if text is not None:
                self.write(f"{infiniband.CLASS}/{device}/ports/{port}/{name}", text)

    def disk(self, name: str, *partitions: str, model: str = "") -> None:
        self.write(f"/sys/block/{name}/stat", "0")
        for partition in partitions:
            self.write(f"/sys/block/{name}/{partition}/partition", "1")
        if model:
            self.write(f"/sys/block/{name}/device/model", model)

    def array(self, name: str, level: str, disks: str, *slaves: str, degraded: str = "") -> None:
        self.write(f"/sys/block/{name}/md/level", level)
        self.write(f"/sys/block/{name}/md/raid_disks", disks)
        if degraded:
            self.write(f"/sys/block/{name}/md/degraded", degraded)
        for slave in slaves:
            self.write(f"/sys/block/{name}/slaves/{slave}/dev", "1:1")

    def read(
        self, source: types.ModuleType, part: str, after: float = 1.0, *sections: Section
    ) -> Reading:
        """Let `after` seconds pass, then run one read."""
        self.clock.advance(after)
        name = f"{source.__name__}/{part}"
        if name not in self._reads:
            reads = source.reads(self.host, HostOptions(Configuration(Settings(*sections))))
            self._reads |= {f"{source.__name__}/{read.key.part}": read for read in reads}
        reading, _ = perform(self._reads[name], self.clock, ReadCosts())
        assert reading.failure is None
        return reading


def values(reading: Reading) -> dict[tuple[str, ...], float]:
    return {(s.metric.name, *s.labels): s.value for s in reading.samples}


def reasons(absences: Iterable[Absence]) -> dict[tuple[str, ...], Reason]:
    return {(a.metric.name, *a.labels): a.reason for a in absences}


def shortly(reading: Reading) -> dict[tuple[str, ...], float]:
    """By labels alone, for readings of one metric."""
    return {s.labels: s.value for s in reading.samples}
