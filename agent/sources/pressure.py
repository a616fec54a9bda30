"""Pressure stall information: how long tasks waited for CPU, I/O or memory."""

import errno
from collections.abc import Iterator
from functools import partial

from agent.hardware.files import FileTree, absent_from
from agent.hardware.host import Host
from agent.model import Absent, ReadKey, Reason, counter
from agent.polling.reads import Read, ReadOutput
from agent.sources.context import HostOptions

PRESSURE = counter(
    "dgx_pressure_seconds_total",
    "Seconds since boot in which some task, or all tasks that were not idle (full), waited for the "
    "resource.",
    "total in /proc/pressure/cpu, io and memory (full is not defined for cpu)",
    ("resource", "kind"),
)

KINDS = {"cpu": ("some",), "io": ("some", "full"), "memory": ("some", "full")}


def _read(files: FileTree, out: ReadOutput) -> None:
    """The totals of every resource; one that cannot be read costs only itself."""
    refused = []
    for resource, kinds in KINDS.items():
        try:
            totals = _totals(files, f"/proc/pressure/{resource}")
        except Absent as absent:
            out.absent(PRESSURE, absent, resource)
            refused.append(absent)
            continue
        for kind in kinds:
            missing = Absent(Reason.UNKNOWN, f"/proc/pressure/{resource} has no line {kind!r}")
            out.add(PRESSURE, totals.get(kind, missing), resource, kind)
    if len(refused) == len(KINDS):
        raise refused[0]


def _totals(files: FileTree, path: str) -> dict[str, float]:
    """Seconds of stall by kind, from lines like `some avg10=0.00 ... total=123` (us)."""
    try:
        lines = files.read(path).strip().splitlines()
        return {line.partition(" ")[0]: int(line.rpartition("total=")[2]) / 1e6 for line in lines}
    except (ValueError, OverflowError) as error:
        why = f"{path} holds {lines!r:.99}, expected lines that end in total=<us>"
        raise Absent(Reason.UNKNOWN, why) from error
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            why = f"{path} is switched off, expected psi=1 at boot"
            raise Absent(Reason.UNSUPPORTED, why) from error
        raise absent_from(error, path) from error


def reads(host: Host, options: HostOptions) -> Iterator[Read]:
    run = partial(_read, host.files)
    yield Read(ReadKey("pressure", "totals"), (PRESSURE,), run, options.every, varies=True)
