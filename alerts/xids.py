"""The alert for XID errors: one rule for each severity and action of the catalogue."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from agent.diagnosis.advice import XID_ADVICE
from agent.model import Severity
from agent.sources import xid
from agent.specs.xids import XidAction, XidMeaning, catalogue, meaning
from alerts import places
from alerts.model import Alert, Recording
from alerts.parameters import RuleParameters
from alerts.promql import LOST, NODE, REMEMBERED, events, pick
from alerts.words import COUNT, GPU, GPU_ID, by_label

NAME = "DgxGpuXid"
SUMMARY = "XID {{ $labels.xid }}"
THERE = f"unless on ({NODE}, uuid) {LOST}"
"""A GPU that is lost is told as missing; one whose driver hangs since then is still told."""

UNNUMBERED = meaning(0)
"""What stands for every code that the catalogue lacks."""


UNUSED = "a code that NVIDIA does not use"
"""What the catalogue calls those."""


HAD = Recording("instance_gpu_xid:dgx_gpu_xid_errors:above0", f"{xid.ERRORS} > 0")
"""Codes that a GPU had at all: most of the forty counters of each GPU stand at 0."""


class XidRule(NamedTuple):
    """The codes that matter alike and want the same first."""

    severity: Severity
    action: XidAction
    meanings: tuple[XidMeaning, ...]

    @property
    def codes(self) -> str:
        """As a regular expression."""
        return "|".join(str(m.code) for m in self.meanings)


def xid_rules() -> list[XidRule]:
    """The catalogue by severity and action, the worst first."""
    order = list(Severity)[::-1]

    def alike(m: XidMeaning) -> tuple[int, str]:
        return order.index(m.severity), m.action.value

    parts = groupby(sorted(catalogue().values(), key=lambda m: (*alike(m), m.code)), alike)
    grouped = [tuple(part) for _, part in parts]
    return [XidRule(part[0].severity, part[0].action, part) for part in grouped]


def _hold(severity: Severity, action: XidAction) -> str:
    """How long an error waits for an alert that tells of the same fault, and more of it (see
    inhibitions.py): one that wants little waits for one that wants much."""
    if action is XidAction.RESET_LATER:
        return "9m"  # rows and pages that are pending come first
    return "2m" if severity is Severity.CRITICAL else "5m"


def _meanings(meanings: Iterable[XidMeaning]) -> str:
    """` (what the code means)`; codes that mean the same need no words where all of them do."""
    names = {str(m.code): f" ({m.name})" for m in meanings}
    return next(iter(names.values())) if len(set(names.values())) == 1 else by_label("xid", names)


def recent(parameters: RuleParameters) -> Recording:
    """Errors of each code within the window, of GPUs that are still there; asked by every rule."""
    window = parameters.thresholds.event_window
    grown = events(xid.ERRORS, parameters.over(window), parameters.over(REMEMBERED), had=HAD)
    return Recording(f"instance_gpu_xid:dgx_gpu_xid_errors:events{window}", f"({grown}) {THERE}")


def xid_error(parameters: RuleParameters) -> Iterator[Alert | Recording]:
    """One rule for each severity and action, and one for codes that the catalogue lacks."""
    window = parameters.thresholds.event_window
    happened = recent(parameters)
    yield HAD
    yield happened

    def alert(
        codes: str, severity: Severity, names: str, action: XidAction, **labels: str
    ) -> Alert:
        text = (
            f"{GPU} had {COUNT} XID errors {{{{ $labels.xid }}}}{names} in the last {window} "
            f"(limit 0). {XID_ADVICE[action].replace('-i GPU', f'-i {GPU_ID}')}"
        )
        expr = f"{pick(happened, xid=codes)} > 0"
        return Alert(
            NAME,
            expr,
            severity.value,
            SUMMARY,
            text,
            hold=_hold(severity, action),
            labels={"action": action.value, **labels},
            place=places.GPU,
        )

    rules = xid_rules()
    for rule in rules:
        yield alert(f"=~{rule.codes}", rule.severity, _meanings(rule.meanings), rule.action)
    known = "|".join(rule.codes for rule in rules)
    lacking = f" ({UNNUMBERED.name})"
    severity, action = UNNUMBERED.severity, UNNUMBERED.action
    yield alert(f"!~{known}", severity, lacking, action, sign="unlisted")


def table() -> Iterator[str]:
    """The catalogue for the runbook: a line a code, in the order of the codes; those that NVIDIA
    does not use are one line at the end."""
    yield "| XID | meaning | severity | first step | GPUs |"
    yield "|---|---|---|---|---|"
    for m in sorted(catalogue().values(), key=lambda m: m.code):
        older = f"; up to Volta: {m.older}" if m.older else ""
        first = XID_ADVICE[m.action]
        if m.name != UNUSED:
            yield f"| {m.code} | {m.name}{older} | {m.severity.value} | {first} | {m.generations} |"
    severity, first = UNNUMBERED.severity.value, XID_ADVICE[UNNUMBERED.action]
    yield f"| others | {UNUSED}, or that is newer than this table | {severity} | {first} | all |"
