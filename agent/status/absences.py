"""Describes absent values: their metric, the affected GPUs and devices, and the reason."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from agent.faults.monitoring import ABSENT
from agent.model import Absence, Reason
from agent.ranges import device_ranges, gpus_named
from agent.status.model import AbsenceStatus


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
