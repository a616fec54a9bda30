"""XID errors: how many of each code, from NVML's events and from the kernel's log together.

An event arrives by both ways, by one, or late by either. The agent counts them apart and reports
the larger count: no event counts twice, and an event that one way misses still counts.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from agent.errors import LogEvent
from agent.hardware.kernel_log import KernelXid
from agent.metrics import declared_beside
from agent.model import Absent, GpuIdentity, ReadKey, Reason, Sample
from agent.polling import intervals
from agent.polling.reads import Read, ReadOutput, fixed
from agent.ranges import pci_address
from agent.specs import xids
from agent.threads import in_time

log = logging.getLogger(__name__)

_METRICS = declared_beside(__file__)
XID_ERRORS = replace(
    _METRICS["dgx_gpu_xid_errors_total"], which=lambda labels: int(labels[-1]) in xids.critical()
)
LAST = _METRICS["dgx_gpu_last_xid"]
AT = _METRICS["dgx_gpu_last_xid_seconds"]
NVLINK_FAULTS = replace(_METRICS["dgx_gpu_nvlink_faults_total"], which=lambda _: True)

PCI = "PCI"
OF_MANY_LINES = 13
"""The driver logs an exception of the SMs line by line, a line for each SM and its activity."""

LARGEST = 9999
"""More than any code of the catalogue; all bits set is no error."""

BURST = 60.0  # Seconds for which further errors of a code on a GPU are not logged
EXCEPTION = 2.5
"""Seconds within which lines belong to the first report of an exception; a tick may fall between
them."""


class XidCounts:
    """Counts by UUID and code; kept while a GPU is lost. One thread writes each way."""

    def __init__(
        self,
        gpus: Callable[[], Iterator[GpuIdentity]],
        listed: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._gpus = gpus  # every GPU known
        self._listed = listed  # UUIDs of the driver's GPUs by address, also of those that are lost
        self._sought: set[str] = set()
        self._unmet: Mapping[str, str] = {}
        self._logged = False  # whether the kernel's log answers
        self._ways = {way: Counter[tuple[str, int]]() for way in ("nvml", "log", "fallen")}
        self._faults: Counter[tuple[str, str, str, str]] = Counter()
        self._last: dict[str, int] = {}  # code, by UUID or address; the newest last
        self._at: dict[tuple[str, int], float] = {}  # of the newest, by the same and the code
        self._known: dict[str, str] = {}
        self._places: dict[tuple[int, ...], str] = {}
        self.refused: Mapping[str, Absent] = {}  # by UUID: GPUs that cannot be listened to
        self._sampled: object = None  # the state behind the samples below: events are rare
        self._samples: list[Sample] = []
        self._reported: dict[tuple[str, int], tuple[float, int]] = {}  # when, and the count then
        self._exceptions: dict[tuple[str, str], float] = {}  # when the newest began
        self._odd = False  # whether a code was none
        self._lock = threading.Lock()
        self._now = 0.0

    def note(self, uuid: str, code: int) -> None:
        """An event of NVML."""
        self._note("nvml", uuid, code)

    def note_line(self, line: KernelXid) -> None:
        """A line of the kernel's log. A GPU that was never met is the GPU that the driver lists at
        its address; else the line is only logged."""
        where = f"{PCI}:{line.pci.lower().partition('.')[0]}"
        if self._met(where) == where and where not in self._sought:
            self._sought.add(where)
            with suppress(TimeoutError):  # the driver's files hang with it
                self._unmet = in_time(self._listed)
        self._note(line.way, where, line.code)
        if line.unit:
            action = xids.nvlink5_action(
                line.unit, fatal=line.fatal, first=line.first, status=line.status
            )
            self._faults[where, str(line.code), line.unit, action.value] += 1

    def log_answers(self, answers: bool) -> None:
        self._logged = answers

    def _note(self, way: str, uuid: str, code: int) -> None:
        if not 0 < code <= LARGEST:
            if not self._odd:  # a driver that answers so may do it often
                log.warning(LogEvent("implausible", metric=XID_ERRORS.name, uuid=uuid, value=code))
            self._odd = True
            return
        with self._lock:
            if code == OF_MANY_LINES:
                if self._now - self._exceptions.get((way, uuid), -EXCEPTION) < EXCEPTION:
                    return
                self._exceptions[way, uuid] = self._now
            self._ways[way][uuid, code] += 1
            self._last.pop(uuid, None)
            self._last[uuid] = code  # behind those of all others
            self._at[uuid, code] = self._now

    def read(self, out: ReadOutput) -> None:
        for gpu in self._gpus():
            self._known[gpu.uuid] = str(gpu.index)
            self._places[pci_address(gpu.pci_bus_id)] = gpu.uuid
        for number, (address, uuid) in enumerate(self._unmet.items()):
            if self._places.setdefault(pci_address(address), uuid) == uuid:
                self._known.setdefault(uuid, str(number))
        self._now = out.at
        with self._lock:
            seen = self._together()
            last = {self._met(where): code for where, code in self._last.items()}
            came = sorted((self._met(where), code, at) for (where, code), at in self._at.items())
        self._report(seen)
        if not self._known:
            raise Absent(Reason.NO_DRIVER, "no GPU to listen to")
        silent = {} if self._logged else dict(self.refused)
        state = (seen, dict(self._faults), dict(self._known), silent)
        if state != self._sampled:
            self._sampled = state
            answering = {u: gpu for u, gpu in self._known.items() if u not in silent}
            latest = [Sample(LAST, (g, u), float(last.get(u, 0))) for u, g in answering.items()]
            newest = {(u, str(code)): at for u, code, at in came if u in answering}  # of both ways
            times = [Sample(AT, (answering[u], u, code), at) for (u, code), at in newest.items()]
            self._samples = [
                *_errors(seen, answering),
                *latest,
                *times,
                *self._nvlink_faults(),
            ]
        out.samples.extend(self._samples)
        for uuid, absent in silent.items():
            out.absent(XID_ERRORS, absent, self._known.get(uuid, ""), uuid)

    def _together(self) -> dict[tuple[str, int], int]:
        """Return the larger count of both ways. Lines from before their GPU was known are assigned
        now."""
        found: dict[tuple[str, int], int] = {}
        for way in self._ways.values():
            counted: Counter[tuple[str, int]] = Counter()
            for (where, code), count in way.items():
                counted[self._met(where), code] += count
            for key, count in counted.items():
                found[key] = max(found.get(key, 0), count)
        return found

    def _met(self, where: str) -> str:
        """The UUID of a GPU that was reported by its address, once it is known."""
        place, separator, address = where.partition(":")
        return (
            self._places.get(pci_address(address), where) if separator and place == PCI else where
        )

    def _nvlink_faults(self) -> Iterator[Sample]:
        for (where, *which), count in sorted(self._faults.items()):
            if (uuid := self._met(where)) in self._known:
                yield Sample(NVLINK_FAULTS, (self._known[uuid], uuid, *which), float(count))

    def _report(self, seen: Mapping[tuple[str, int], int]) -> None:
        """Log the new errors of each code and GPU, in at most a line a minute."""
        for (uuid, code), count in seen.items():
            at, before = self._reported.get((uuid, code), (-BURST, 0))
            if count > before and self._now - at >= BURST:
                self._reported[uuid, code] = self._now, count
                meaning = xids.meaning(code)
                known = {"severity": meaning.severity.value, "action": meaning.action.value}
                what = {"xid": code, "times": count - before}
                log.error(LogEvent("xid", uuid=uuid, **what, meaning=meaning.name, **known))


def _errors(seen: Mapping[tuple[str, int], int], answering: Mapping[str, str]) -> Iterator[Sample]:
    for uuid, gpu in answering.items():
        for code in sorted({*xids.critical(), *(code for of, code in seen if of == uuid)}):
            yield Sample(XID_ERRORS, (gpu, uuid, str(code)), float(seen.get((uuid, code), 0)))


def reads(counts: XidCounts) -> Iterator[Read]:
    metrics = (XID_ERRORS, LAST, AT, NVLINK_FAULTS)
    yield Read(ReadKey("xid", "counts"), metrics, counts.read, fixed(intervals.TICK))
