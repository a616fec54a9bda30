"""Slow death, as information: a link, port or GPU that errs over a day while its like do not."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple

from agent.faults import fabric, host, memory, pcie, places
from agent.faults.model import INFO, SAME_GPU, SAME_NODE, SAME_PORT, Fault, Group, HiddenBy
from agent.faults.promql import NODE, Condition, Recording, grown, increase, of
from agent.faults.records import EVERY
from agent.faults.thresholds import RuleParameters
from agent.faults.windows import FaultSamples
from agent.model import Metric
from agent.sources import chassis, ecc, infiniband, nvlink
from agent.sources import pcie as pcie_source


class WornPart(NamedTuple):
    """A kind of part: its alert, the counter of its errors, the labels that say which of them, and
    those that are summed up; so many a day are too many (of a DIMM those of mcelog)."""

    kind: str
    alert: str
    counter: Metric
    errors: Mapping[str, str]
    summed: tuple[str, ...]
    many: int
    words: str
    do: str
    place: places.Place = places.GPU
    device: str = ""
    same: tuple[str, ...] = SAME_GPU
    hidden_by: tuple[HiddenBy, ...] = ()

    @property
    def record(self) -> str:
        rest = (label for label in self.counter.labels if label not in ("gpu", *self.summed))
        return f"instance_{'_'.join(rest)}:{self.counter.name.removesuffix('_total')}:increase1d"


PARTS = (
    WornPart(
        *("nvlink", "DgxNvlinkErrors", nvlink.ERRORS, {"kind": fabric.COSTLY}, ("kind",), 10),
        "NVLink {device} had {errors:error|errors}",
        "Nothing is lost yet, but such a link fails in the end. Reset the GPU when it is free; if "
        "it goes on, open a support case.",
        device="link",
        same=(*SAME_GPU, "link"),
        hidden_by=fabric.BY_WORSE,
    ),
    WornPart(
        *("port", host.ERRORS, infiniband.ERRORS),
        *({"kind": "=~symbol_error|link_error_recovery"}, ("kind",), 100),
        "port {device}:{0} had {errors:error|errors}",
        f"{host.CABLE}, before it fails: clean or replace them when the node is free.",
        place=places.PORT,
        device="device",
        same=SAME_PORT,
        hidden_by=(
            HiddenBy(host.FLAPPING, SAME_PORT),
            HiddenBy(host.ERRORS, SAME_PORT, ('sign=~"errors|down"',)),
        ),
    ),
    WornPart(
        *("pcie", "DgxPcieReplays", pcie_source.REPLAYS, {}, (), 2000),
        "its PCIe link repeated {errors:packet|packets}",
        "Nothing is lost yet. Reseat the GPU or its riser when the node is stopped anyway.",
        hidden_by=(HiddenBy(pcie.DEGRADED, SAME_GPU),),
    ),
    WornPart(
        *("ecc", "DgxGpuEccRising", ecc.ERRORS),
        *({"severity": "corrected", "lifetime": "aggregate"}, ("severity", "lifetime"), 50),
        "{errors:memory error was|memory errors were} corrected",
        memory.DIAGNOSE,
    ),
    WornPart(
        *("rows", "DgxGpuEccRising", ecc.REMAPPED_ROWS, {}, ("severity",), 2),
        "{errors:memory row was|memory rows were} remapped",
        memory.DIAGNOSE,
    ),
    WornPart(
        *("dimm", host.MEMORY, chassis.DIMM_ERRORS, {"severity": "corrected"}, ("severity",), 10),
        "memory {device} had {errors:corrected error|corrected errors}",
        "Nothing is lost yet. Replace the DIMM when the node is stopped anyway.",
        place=places.DIMM,
        device="dimm",
        same=(*SAME_NODE, "dimm"),
    ),
)

LIFE = 10
"""Days' worth of too many errors in the life of a counter: it has them when the agent starts."""

OTHERS = "as many as all others of this machine together, or more"


def _alone(errors: Condition, many: float) -> Condition:
    """The parts with so many errors, of which each has as many as all its siblings together."""

    def rows(samples: FaultSamples) -> dict[frozenset[tuple[str, str]], float]:
        found = errors.rows(samples)
        least = max(many, sum(found.values()) / 2)
        return {row: value for row, value in found.items() if value >= least}

    whole = f"on ({NODE}) group_left () (sum by ({NODE}) ({errors}) / 2)"
    return errors.made(f"{errors} >= {many:g} >= {whole}", rows)


def slow_faults(parameters: RuleParameters) -> Iterator[Fault]:
    """Return two faults of each kind of part: of the last day, which alerts, and of its life."""
    for part in PARTS:
        usual = partial(
            Fault,
            alert=part.alert,
            severity=INFO,
            place=part.place,
            labels={"sign": f"slow_{part.kind}" if part.kind == "rows" else "slow"},
            summary="errs more than its peers",
            figure="errors",
            device=part.device,
            names=("port",) if part.place is places.PORT else (),
            do=part.do,
        )
        of_day = _errors(parameters, part).named(Recording(part.record, ""))
        now = _alone(of_day, part.many)
        yield usual(
            kind=f"slow_{part.kind}",
            when=now,
            hold="15m",
            sentence=(f"{part.words} in the last 24 h (limit {part.many}), {OTHERS}",),
            hidden_by=(*part.hidden_by, HiddenBy(part.alert, part.same, ('severity!="info"',))),
        )
        of_life = of(part.counter, **part.errors).sum_without(*part.summed)
        rest = [label for label in part.counter.labels if label not in part.summed]
        yield usual(
            kind=f"slow_{part.kind}_before",
            when=_alone(of_life, LIFE * part.many).unless(now, *rest),
            fires=lambda _: "",
            sentence=(f"{part.words} so far (limit {LIFE * part.many}), {OTHERS}",),
        )


def _errors(parameters: RuleParameters, part: WornPart) -> Condition:
    text = increase(part.counter, parameters.over("1d"), **part.errors)
    return grown(part.counter, "1d", text, **part.errors).sum_without(*part.summed)


def slow(parameters: RuleParameters) -> Group:
    """Return the rules on slow death."""
    records = (Recording(part.record, f"{_errors(parameters, part)} > 0") for part in PARTS)
    rules = (fault for fault in slow_faults(parameters) if not fault.fires)
    return Group("dgx-slow", (*records, *rules), every=EVERY)
