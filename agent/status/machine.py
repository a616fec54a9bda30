"""The parts of the status about the machine, its host's load, the agent's sources, and absences."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from agent import __version__
from agent.faults.monitoring import ABSENT
from agent.jobs.job import percent
from agent.model import Absence, Reason, Snapshot
from agent.polling.poller import HEALTH_KEY
from agent.polling.reads import OFF
from agent.ranges import device_ranges, gpus_named
from agent.series import SampleStore
from agent.sources import host, system
from agent.sources.agent_health import SOURCE_UP
from agent.status.history import SETTLED
from agent.status.model import AbsenceStatus, HostStatus, MachineStatus, SourceStatus
from agent.status.source import StatusSource
from agent.status.words import moment

NO_GPUS = {
    Reason.STALLED: "its NVIDIA driver does not respond",
    Reason.NO_DRIVER: "no NVIDIA driver",
}


def machine_status(source: StatusSource, snapshot: Snapshot) -> MachineStatus:
    """Return the identity of the machine and of its agent."""
    samples, first, uptime = source.samples, source.faults.first, source.uptime()
    info = next(iter(samples.labelled(system.INFO)), {})
    gpus, expected = samples.value(system.GPUS), samples.value(system.GPUS_EXPECTED)
    absence = samples.absence(system.GPUS)
    found = MachineStatus(
        host=source.host,
        system=info.get("system") or None,
        title=info.get("title") or None,
        product=info.get("product") or None,
        driver_version=info.get("driver_version") or None,
        gpus=None if gpus is None else int(gpus),
        gpus_expected=None if expected is None else int(expected),
        models=tuple(sorted({gpu.model or "model not known" for gpu in source.inventory.gpus})),
        reason=absence.reason if absence else None,
        simulated=source.simulated,
        version=__version__,
        started=None if first is None else moment(round(snapshot.wall - snapshot.at + first)),
        uptime_seconds=None if uptime is None else int(uptime),
        text="",
    )
    return replace(found, text=_sentence(found, source.playing(snapshot.at)))


def _sentence(machine: MachineStatus, playing: str) -> str:
    text = machine.title or machine.product or "Unknown system"
    if machine.gpus is None:
        text += f", {NO_GPUS.get(machine.reason or Reason.UNKNOWN, 'its GPUs could not be asked')}"
    else:
        of = f" of {machine.gpus_expected}" if machine.gpus_expected else ""
        gpus = "GPU" if (machine.gpus_expected or machine.gpus) == 1 else "GPUs"
        text += f", driver {machine.driver_version or 'not known'}, {machine.gpus}{of} {gpus}"
    if machine.simulated:
        playing = f"Simulated ({playing})" if playing else "Simulated"
    return f"{playing}, not this host's GPUs: {text}" if playing else text


def source_statuses(snapshot: Snapshot) -> tuple[SourceStatus, ...]:
    """Return the state of each source (up, down, or off), sorted by name."""
    health = snapshot.readings.get(HEALTH_KEY)
    samples = health.samples if health else ()
    up = {s.labels[0]: bool(s.value) for s in samples if s.metric is SOURCE_UP}
    off = {key.source for key in snapshot.readings if key.part == OFF}
    states = {name: "up" if answers else "down" for name, answers in up.items()}
    states |= dict.fromkeys(off, "off")
    return tuple(SourceStatus(source=name, state=states[name]) for name in sorted(states))


def host_status(samples: SampleStore) -> HostStatus:
    """Return the host's CPU utilization, and the time shares in which tasks waited, by resource."""
    busy = samples.value(host.BUSY)
    rate = samples.rate
    stalled = {n: rate(host.PRESSURE, n, "some", seconds=SETTLED) for n in host.STALLS}
    known = {name: min(part, 1.0) for name, part in stalled.items() if part is not None}
    waits = ", ".join(f"{name} {percent(part)}" for name, part in known.items())
    text = f"CPUs busy {'-' if busy is None else percent(busy)}"
    return HostStatus(
        cpu_ratio=busy,
        stalled_ratio={name: known.get(name) for name in stalled},
        text=f"{text}; some task waited: {waits}" if waits else text,
    )


def absence_statuses(absences: Iterable[Absence]) -> tuple[AbsenceStatus, ...]:
    """Return one status for all absences that have the same metric, reason, and detail."""
    groups: dict[tuple[Reason, str, str, str], list[Mapping[str, str]]] = {}
    for metric, labels, reason, detail in absences:
        key = reason, metric.name, detail, metric.meaning
        groups.setdefault(key, []).append(dict(zip(metric.labels, labels, strict=False)))
    return tuple(
        AbsenceStatus(
            metric=name,
            meaning=meaning,
            reason=reason,
            text=": ".join(filter(None, (_where(places), ABSENT[reason], detail))),
        )
        for (reason, name, detail, meaning), places in sorted(groups.items())
    )


def summary(found: Sequence[AbsenceStatus], named: int = 0) -> str | None:
    """Return a string with the number of absent metrics, and up to `named` names per reason."""
    if not found:
        return None
    first = {one.metric: one.reason for one in reversed(found)}  # one reason each, to add up
    reasons = []
    for reason, count in Counter(first.values()).most_common():
        names = sorted(name for name, own in first.items() if own is reason)[:named]
        words = f"{count}: {', '.join(names)}".removesuffix(": ")
        reasons.append(f"{ABSENT[reason]} ({words})")
    return f"{len(first)} metric{'s' * (len(first) > 1)} not known: {', '.join(reasons)}"


def _where(places: Sequence[Mapping[str, str]]) -> str:
    """Return a string that lists the GPUs and devices in the labels of absences, for example `GPUs
    0-7`, `GPU 0 link 2; GPU 3 link 0`, or `md0, md1`."""
    further: dict[str, dict[str, None]] = {}  # by GPU
    for labels in places:
        rest = [
            f"{name} {value}" if value.isdecimal() else value
            for name, value in labels.items()
            if name not in ("gpu", "uuid") and value
        ]
        further.setdefault(labels.get("gpu", ""), {})[" ".join(rest)] = None
    alike: dict[tuple[bool, str], list[str]] = {}
    for gpu, words in further.items():
        alike.setdefault((bool(gpu), device_ranges(tuple(words))), []).append(gpu)
    return "; ".join(
        f"{gpus_named(map(int, gpus))} {rest}".rstrip() if of_gpu else rest
        for (of_gpu, rest), gpus in alike.items()
    )
