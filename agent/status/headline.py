"""The headline: a few clauses about the machine's faults and the states of its GPUs."""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from agent.diagnosis.advice import ALERTS
from agent.faults.findings import by_kind
from agent.faults.promql import seconds
from agent.faults.watch import LATE_READ_SECONDS, AlertState
from agent.jobs.job import percent
from agent.model import Reason, State
from agent.ranges import gpus_named
from agent.status.findings import is_fault, not_good
from agent.status.gpus import Judged, SeenTick
from agent.status.groups import Members, group_text, grouped, level_of
from agent.status.model import AlertStatus, HeadlineClause, Level
from agent.status.source import silence
from agent.status.words import GRAVEST_FIRST, SOON, alert_status, began, duration, wait, worst_level

UNSEEN = frozenset({"source_down", "values_absent"})
"""Kinds of findings about missing data. In the headline, other findings have precedence."""

OF_DRIVER = frozenset({"driver_hangs"})
OF_LOST = frozenset({"gpus_missing", "gpu_lost"})


def headline(facts: SeenTick) -> tuple[HeadlineClause, ...]:
    """Return clauses about faults and about the states of the GPUs, most serious first."""
    if facts.snapshot.tick <= 0:
        return (HeadlineClause(level=None, text="The first readings are under way"),)
    work = [*_work(facts)]
    most = 1 + any(clause.level is Level.INFO for clause in work)
    clauses = [*_broken(facts, most), *work]
    waits = {one.id for one in facts.findings if one.can_wait}
    clauses.sort(key=lambda one: bool(waits.intersection(one.findings)))
    return tuple(sorted(clauses, key=lambda one: GRAVEST_FIRST.index(one.level)))


def _broken(facts: SeenTick, most: int) -> Iterator[HeadlineClause]:
    """Yield clauses about at most `most` faults."""
    inventory, told = facts.source.inventory, OF_LOST
    if silent := silence(facts.snapshot):
        yield _driver_hangs(facts, silent)
        most, told = 1, OF_DRIVER | UNSEEN
    elif inventory.why_not:
        return
    lost = [gpu for gpu in facts.gpus if gpu.lost and not silent]
    if lost:
        yield _lost(facts, lost)
        most -= 1
    open_ones = [one for one in facts.findings if is_fault(one) and not one.hidden_by]
    faults = [one for one in open_ones if not (lost or silent) or one.kind not in told]
    for first in sorted(faults, key=lambda one: one.kind in UNSEEN)[:most]:
        yield HeadlineClause(
            level=first.level,
            text=capital(first.text, first.devices),
            findings=(first.id,),
            gpus=tuple(g.number for g in facts.gpus if f"gpu{g.number}" in first.devices),
            since=first.since,
            or_before=first.or_before,
            do=first.do,
            alert=first.alert,
            runbook=first.runbook,
        )


def capital(text: str, devices: Sequence[str] = ()) -> str:
    """Return the text with an initial capital, unless it starts with a device name."""
    return text if text.startswith(tuple(devices) or ("\0",)) else text[:1].upper() + text[1:]


def _clause(
    facts: SeenTick, kinds: frozenset[str], fault_kind: str, text: str, stood: float
) -> HeadlineClause:
    """Return a clause that replaces all findings of the given kinds in the headline."""
    fault = by_kind(facts.source.thresholds)[fault_kind]
    own = [one for one in facts.findings if one.kind in kinds]
    first = min(own, key=lambda one: one.since, default=None)
    return HeadlineClause(
        level=Level(fault.severity),
        text=capital(text),
        findings=tuple(one.id for one in own),
        since=first.since if first else began(facts.snapshot, stood),
        or_before=first is not None and first.or_before,
        do=str(fault.do),
        alert=own[0].alert if own else None,  # until the next search for faults
        runbook=fault.alert.lower(),
    )


def _driver_hangs(facts: SeenTick, silent: float) -> HeadlineClause:
    """Return a clause about a driver that does not respond, without a level until a finding."""
    text = f"the NVIDIA driver has not responded for {duration(silent)}"
    found = _clause(facts, OF_DRIVER, "driver_hangs", text, silent)
    if first := next((one for one in facts.findings if one.id in found.findings), None):
        return replace(found, level=first.level, do=first.do or found.do)
    unmet = not facts.source.inventory.generation
    return replace(found, level=None, do=wait(LATE_READ_SECONDS), or_before=unmet)


def _lost(facts: SeenTick, lost: Sequence[Judged]) -> HeadlineClause:
    left = len(facts.gpus) - len(lost)
    number = f"{left} of {len(facts.gpus)}" if left else "none"
    respond = "respond" if left > 1 else "responds"
    stood = max(gpu.seconds for gpu in lost)
    so_long = f" for {duration(stood)}" if stood >= SOON else ""
    text = f"{gpus_named(gpu.number for gpu in lost)} lost{so_long}, {number} {respond}"
    found = _clause(facts, OF_LOST, "gpus_missing", text, stood)
    return replace(found, gpus=tuple(gpu.number for gpu in lost))


def _work(facts: SeenTick) -> Iterator[HeadlineClause]:
    inventory = facts.source.inventory
    if silence(facts.snapshot):
        if facts.gpus:
            text = f"Nothing is known of {_named(facts.gpus, facts.gpus)}"
            yield HeadlineClause(level=None, text=text)
        return
    if inventory.why_not:
        gone = inventory.most > 0 and inventory.reason is not Reason.RELEASED  # not for an upgrade
        level = Level.CRITICAL if gone else None
        yield HeadlineClause(level=level, text=f"No GPU is monitored: {inventory.why_not}")
        return
    if not facts.gpus:
        yield HeadlineClause(level=None, text="The NVIDIA driver sees no GPU")
    there = [gpu for gpu in facts.gpus if not gpu.lost]
    groups = grouped(there)
    if groups:
        yield _of_groups(groups, facts)


def _of_groups(groups: Sequence[Members], facts: SeenTick) -> HeadlineClause:
    """Return a clause about the states of all groups of GPUs. Its first step is that of the most
    serious group with a first step."""
    levels = [level_of(pair, gpus, full=facts.full) for pair, gpus in groups]
    texts = [_of_group(members, facts) for members in groups]
    pair, gpus = next(((p, g) for p, g in groups if any(one.do for one in g)), groups[0])
    alert = _alert(pair[0], facts, gpus) if pair else None
    costly = bool(pair and pair[0] in ALERTS)
    devices = {f"gpu{gpu.number}" for gpu in gpus}
    return HeadlineClause(
        level=not_good(worst_level(levels), facts.findings),
        text=capital("; ".join(texts)),
        findings=tuple(
            one.id
            for one in facts.findings
            if alert and one.runbook == alert.name.lower() and devices >= {*one.devices}
        ),
        gpus=tuple(gpu.number for gpu in gpus),
        since=began(facts.snapshot, max(gpu.stood(pair) for gpu in gpus)) if costly else None,
        do=next((gpu.do for gpu in gpus if gpu.do), None),
        alert=alert,
        runbook=alert.name.lower() if alert else None,
    )


def _of_group(members: Members, facts: SeenTick) -> str:
    pair, gpus = members
    who, several = _named(gpus, facts.gpus), len(gpus) > 1
    text = group_text(pair, gpus)
    if gpus[0].sound and pair is None:
        return f"{who} {'are' if several else 'is'} {text}"
    return f"{who} is {text}" if len(facts.gpus) == 1 and pair is not None else f"{who} {text}"


def _named(gpus: Sequence[Judged], all_of: Sequence[Judged]) -> str:
    """Return a string such as `GPUs 1-3 and 5` or, for all GPUs, their number, such as `8 GPUs`."""
    if len(gpus) == len(all_of):
        return f"{len(gpus)} GPUs" if len(gpus) != 1 else "the GPU"
    return gpus_named(gpu.number for gpu in gpus)


def _alert(state: State, facts: SeenTick, gpus: Sequence[Judged]) -> AlertStatus | None:
    """Return the alert of a finding about this state of the GPUs. If there is no finding, return an
    inactive alert whose text contains the time shares at which it fires."""
    if state not in ALERTS:
        return None
    name, severity = ALERTS[state]
    devices = {f"gpu{gpu.number}" for gpu in gpus}
    for one in facts.findings:
        if one.alert and one.alert.name == name and devices.intersection(one.devices):
            return one.alert
    limits = facts.source.thresholds
    often = (limits.starved_hours_share, limits.starved_hours)
    shares = {
        State.STARVED: ((limits.starved_share, limits.starved_window), often),
        State.COMMUNICATING: ((limits.exposed_share, limits.starved_window),),
        State.THROTTLED: ((limits.throttled_share, limits.throttled_window),),
        State.HELD: ((limits.held_share, limits.held_window),),
    }
    texts = (f"{percent(part)} of {duration(seconds(t))}" for part, t in shares.get(state, ()))
    limit = " or ".join(texts)
    return alert_status(name, severity, AlertState.OFF, f"fires from {limit}" if limit else "")
