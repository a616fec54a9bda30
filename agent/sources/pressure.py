"""Pressure stall information: how long tasks waited for CPU, I/O or memory."""

import errno
from collections.abc import Iterator

from agent.clock import Clock
from agent.hardware.files import FileTree, absent_from
from agent.hardware.host import Host
from agent.model import Absent, ReadKey, Reason, counter
from agent.polling.reads import Read, ReadOutput
from agent.sources.options import HostOptions

PRESSURE = counter(
    "dgx_pressure_seconds_total",
    "Seconds since boot in which some task, or all tasks that were not idle (full), waited for the "
    "resource.",
    "total in /proc/pressure/cpu, io and memory (full is not defined for cpu)",
    ("resource", "kind"),
)

KINDS = {"cpu": ("some",), "io": ("some", "full"), "memory": ("some", "full")}


class Pressure:
    """The totals of every resource; one that cannot be read costs only itself."""

    def __init__(self, files: FileTree) -> None:
        self._files = files

    def read(self, out: ReadOutput) -> None:
        refused = []
        for resource in KINDS:
            try:
                self._read_one(resource, out)
            except Absent as absent:
                out.absent(PRESSURE, absent, resource)
                refused.append(absent)
        if len(refused) == len(KINDS):
            raise refused[0]

    def _read_one(self, resource: str, out: ReadOutput) -> None:
        totals = _totals(self._files, f"/proc/pressure/{resource}")
        for kind in KINDS[resource]:
            if kind in totals:
                out.add(PRESSURE, totals[kind], resource, kind)
            else:
                absent = Absent(Reason.UNKNOWN, f"/proc/pressure/{resource} has no line {kind!r}")
                out.absent(PRESSURE, absent, resource, kind)


def _totals(files: FileTree, path: str) -> dict[str, float]:
    """Seconds of stall by kind, from lines like `some avg10=0.00 ... total=123` (us)."""
    lines = _text(files, path).splitlines()
    try:
        return {line.partition(" ")[0]: int(line.rpartition("total=")[2]) / 1e6 for line in lines}
    except (ValueError, OverflowError) as error:
        raise Absent(
            Reason.UNKNOWN, f"{path} holds {lines!r:.99}, expected lines that end in total=<us>"
        ) from error


def _text(files: FileTree, path: str) -> str:
    try:
        return files.read(path).strip()
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            raise Absent(
                Reason.UNSUPPORTED, f"{path} is switched off, expected psi=1 at boot"
            ) from error
        raise absent_from(error, path) from error


def reads(host: Host, _clock: Clock, options: HostOptions) -> Iterator[Read]:
    """The read of the host's pressure."""
    run = Pressure(host.files).read
    yield Read(ReadKey("pressure", "totals"), (PRESSURE,), run, options.every, varies=True)
