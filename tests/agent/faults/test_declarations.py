"""The files of faults: names that nothing defines are refused; what findings name exists."""

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.catalogue import METRICS
from agent.faults import declarations
from agent.faults.conditions import ConditionError, condition
from agent.faults.declarations import DeclarationError, declared
from agent.faults.findings import USUAL, by_kind
from agent.faults.model import Fault, FindingPart, function
from agent.faults.templates import sentence_of
from agent.faults.thresholds import RuleParameters
from agent.faults.windows import Counted
from agent.sources import infiniband, system
from agent.status import words

CASES = tomllib.loads(Path(__file__).with_name("declarations.toml").read_text("utf-8"))


@pytest.mark.parametrize(("text", "wrong"), CASES["refused"])
def test_a_condition_that_the_agent_cannot_evaluate_is_refused(text: str, wrong: str) -> None:
    with pytest.raises(ConditionError, match=re.escape(wrong)):
        condition(text)


def test_a_name_that_nothing_defines_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    file = {"fault": [{"when": "dgx_gpu_power_watts > ${most_power}"}]}
    index = {"order": ["one"], "group": []}
    files = {"one": file, "groups": index, "shared": {"define": {}}}
    monkeypatch.setattr(declarations, "_file", files.__getitem__)
    with pytest.raises(DeclarationError, match=r"\$\{most_power\} is no threshold"):
        declared(RuleParameters(USUAL, 0.5))


@pytest.mark.parametrize(
    ("form", "value", "said", "template"),
    [
        ("percent", 0.997, "100 %", "{{ $value | humanizePercentage }}"),
        ("speed", 25e9, "200 Gb/s", '{{ reReplaceAll "([kMGT])$" " $1" (humanize $value) }}b/s'),
    ],
)
def test_the_form_alone_decides_how_a_value_is_said(
    monkeypatch: pytest.MonkeyPatch, form: str, value: float, said: str, template: str
) -> None:
    fault = Fault(
        sentence=(f"at {{full:{form}}}", f" of {{full_limit:{form}}}"),
        figure="full",
        limit=value,
        finding=FindingPart(kind="full"),
        condition=SimpleNamespace(rows=lambda _: {(): value}),
    )
    machine: Any = SimpleNamespace(samples=None)
    monkeypatch.setattr(words, "by_kind", lambda: {"full": fault})
    assert [*map(words.finding_text, fault.findings(machine))] == [f"at {said} of {said}"]
    with pytest.raises(KeyError, match="percents"):
        sentence_of(Fault(sentence=("at {full:percents}",), figure="full"))
    assert sentence_of(fault) == f"at {template}"


def test_what_findings_name_exists() -> None:
    for fault in by_kind().values():
        assert fault.finding
        parts = fault.finding
        for name in filter(None, (parts.look, parts.do, parts.hold, *parts.terms.values())):
            assert callable(function(name)), name
        assert {name for name in parts.reads if name != "absences"} <= METRICS.keys()


def test_the_agent_asks_over_time_only_for_flags_and_a_number() -> None:
    """Their value within a window is 1 if they were above 0."""
    asks = (ask for fault in by_kind().values() for ask in fault.asks)
    over_time = {ask.metric for ask in asks if ask.counted is Counted.PRESENCE}
    assert over_time == {system.GPUS_EXPECTED, infiniband.PORT_UP}
