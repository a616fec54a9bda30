"""Lines of the kernel's log on a GPU, compared with what NVML shows of that GPU.

That NVML has no event of a line does not refute it: some codes have none, and events get lost. The
state of the GPU does, for a few codes. All others are believed: a line is matched whole, and no
program can write one that the kernel marks as its own. So are fatal errors of NVSwitches, of which
NVML shows nothing.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field

from agent.model import Kind, Metric, Snapshot

FALLEN = 79

SETTLED = 10.0
"""Seconds after a line until NVML shows what it reports, and before it from which a value is one
that does not have the error."""

DISTINCT = 3
"""Sources that go on answering for a GPU that did not fall off the bus: the driver gives some
values from a copy of its own."""

SECOND_READING = 3.0  # Seconds within which a reading that differs from the one before is repeated
LONGEST = 90.0  # Seconds until a line is believed that NVML neither confirms nor contradicts


@dataclass(slots=True)
class Claim:
    """Lines of one code on one GPU that wait for NVML: since when (s), and what each names."""

    since: float
    who: list[str] = field(default_factory=list)
    before: float | None = None  # the value that must exceed this
    looked: bool = False
    denied: float | None = None  # since when


@dataclass(frozen=True, slots=True)
class XidChecks:
    """Says whether NVML confirms a claim. `shown` has, by code, the metric and one of its labels
    that shows the error: a counter that grows, or a gauge that is not 0. Of no code by default."""

    latest: Callable[[], Snapshot] = lambda: Snapshot(0, 0.0, 0.0)
    lost: Callable[[], Container[str]] = tuple  # UUIDs
    shown: Mapping[int, tuple[Metric, str]] = field(default_factory=dict)

    def covers(self, code: int) -> bool:
        return code in self.shown or (code == FALLEN and bool(self.shown))

    def verdict(self, code: int, uuid: str, claim: Claim, now: float) -> bool | None:
        """True: count it; False: NVML contradicts it; None: not known yet."""
        mine = [r for key, r in self.latest().readings.items() if key.device == uuid]
        after = claim.since + SETTLED
        if code == FALLEN:
            if uuid in self.lost():
                return True
            answering = {r.key.source for r in mine if r.at >= after and r.samples}
            denied = len(answering) >= DISTINCT
        else:
            metric, label = self.shown[code]
            at, value = 0.0, None
            for reading in mine:
                of_it = (s for s in reading.samples if s.metric is metric)
                found = [s.value for s in of_it if label in ("", *s.labels)]
                at, value = (reading.at, sum(found)) if found else (at, value)
            if not claim.looked:
                known = value is not None and at <= claim.since - SETTLED
                claim.before = (value if known else None) if metric.kind is Kind.COUNTER else 0.0
                claim.looked = True
            if value is None or claim.before is None or value > claim.before:
                return True
            denied = at >= after
        if denied:  # a change is exported once a second reading has it
            claim.denied = now if claim.denied is None else claim.denied
            return False if now - claim.denied >= SECOND_READING else None
        return True if now - claim.since >= LONGEST else None
