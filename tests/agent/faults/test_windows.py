"""Findings of one look where `check` and the alert once differed. The files of faults: names that
nothing defines are refused, and what findings name exists."""

import os
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.catalogue import METRICS
from agent.diagnosis.disclosure import PERSONAL
from agent.faults import declarations
from agent.faults.conditions import ConditionError, condition
from agent.faults.declarations import declared
from agent.faults.findings import USUAL, Search, by_kind
from agent.faults.model import Fault, FindingPart, function
from agent.faults.thresholds import AlertThresholds, RuleParameters
from agent.faults.windows import Counted, _Window
from agent.limits import paths
from agent.model import Absence, Metric, Reading, ReadKey, Reason, Sample, Severity, Snapshot
from agent.sources import infiniband, kernel_log, nvlink, pcie, system, temperature, xid
from agent.sources.agent_health import ABSENT_VALUES, SOURCE_UP
from agent.status.words import finding_text
from alerts.templates import sentence_of

NOW = 10_000.0
GPU = ("0", "GPU-0")
Series = tuple[Metric, tuple[str, ...], float]

CRITICAL, WARNING, INFO = Severity.CRITICAL, Severity.WARNING, Severity.INFO


def found(
    *series: Series,
    absences: Iterable[Absence] = (),
    thresholds: AlertThresholds | None = None,
    every: bool = False,
) -> list[tuple[str, Severity]]:
    samples = tuple(Sample(*one) for one in series)
    reading = Reading(ReadKey("a", "b"), NOW, 60.0, samples, absences=tuple(absences))
    snapshot = Snapshot(1, NOW, 0.0, {reading.key: reading})
    wrong = Search().findings(snapshot, thresholds=thresholds or AlertThresholds())
    return [(f.kind, f.severity) for f in wrong if every or f.kind != "values_absent"]


def margin(degrees: float) -> Series:
    return temperature.MARGIN, GPU, degrees


def test_a_core_at_its_limit_is_critical_as_its_alert_is() -> None:
    hot = [("too_hot", CRITICAL)]
    assert found(margin(0.0)) == hot
    assert found(margin(1.0)) == []
    assert found(margin(4.0), thresholds=AlertThresholds(hot_margin=5.0)) == hot


def test_memory_at_its_limit_is_found() -> None:
    limit = temperature.LIMIT, (*GPU, "memory"), 95.0
    degrees = temperature.MEMORY_TEMPERATURE, GPU
    assert found(limit, (*degrees, 95.0)) == [("memory_too_hot", CRITICAL)]
    assert found(limit, (*degrees, 94.0)) == []


def test_links_of_a_missing_gpu_are_not_reported_beside_it() -> None:
    links = (
        (nvlink.LINKS, GPU, 17.0),
        (nvlink.LINKS_EXPECTED, GPU, 18.0),
        (nvlink.LINK_UP, (*GPU, "2"), 0.0),
    )
    gpus = [(system.GPUS, (), 8.0), (system.GPUS_EXPECTED, (), 8.0)]
    assert found(*links, *gpus) == [("links_down", CRITICAL)]
    gpus[0] = (system.GPUS, (), 7.0)
    assert found(*links, *gpus) == [("gpus_missing", CRITICAL)]


@pytest.mark.parametrize(("ago", "there"), [(1799.0, True), (1801.0, False)])
def test_events_are_found_for_as_long_as_they_alert(ago: float, there: bool) -> None:
    switch = ("nvidia-nvswitch0", "fatal", "20034")
    at = NOW - ago
    events = {
        ("xid", CRITICAL): ((xid.XID_ERRORS, (*GPU, "79"), 1.0), (xid.AT, (*GPU, "79"), at)),
        ("switch_error", CRITICAL): (
            (kernel_log.SWITCH_ERRORS, switch, 1.0),
            (kernel_log.SWITCH_ERROR_AT, switch, at),
        ),
    }
    for wanted, series in events.items():
        assert found(*series) == [wanted] * there
    longer = AlertThresholds(event_window="1h")
    assert found(*events["xid", CRITICAL], thresholds=longer) == [("xid", CRITICAL)]


@pytest.mark.parametrize(("action", "severity"), [("reset", CRITICAL), ("ignore", INFO)])
def test_an_xid_of_nvlink_5_matters_as_its_unit_says(action: str, severity: Severity) -> None:
    error = xid.XID_ERRORS, (*GPU, "149"), 1.0
    fault = xid.NVLINK_FAULTS, (*GPU, "149", "NETIR_LINK_EVT", action), 1.0
    assert found(error) == [("xid", WARNING)]
    assert found(error, fault) == [("xid", severity)]


def test_pages_are_near_their_limit_from_fifty_on() -> None:
    pages = METRICS["dgx_gpu_retired_pages_total"], (*GPU, "double_bit")
    assert found((*pages, 50.0)) == [("pages_near", WARNING)]
    assert found((*pages, 49.0)) == []


@pytest.mark.parametrize(("carried", "slow"), [(0.04, True), (0.03, False)])
def test_a_slow_link_is_judged_when_its_data_fill_it(carried: float, slow: bool) -> None:
    path = ("pcie", "gpu0", *GPU, "receive")
    series = (
        (pcie.GENERATION, GPU, 1.0),
        (pcie.GENERATION_LIMIT, GPU, 5.0),
        (pcie.RECEIVED, GPU, 1e9),
        (paths.RATIO, path, carried),
    )
    assert found(*series) == [("pcie_generation", WARNING)] * slow


def test_a_driver_that_hangs_is_reported_once() -> None:
    down = [(SOURCE_UP, (source,), 0.0) for source in ("nvml", "disk")]
    stalled = ABSENT_VALUES, ("dgx_gpu_power_watts", "stalled"), 4.0
    silent = [
        Absence(temperature.MARGIN, GPU, Reason.NOT_ANSWERING, ""),
        Absence(system.GPUS, (), Reason.STALLED, ""),
    ]
    assert found(*down, stalled, absences=silent, every=True) == [("driver_hangs", CRITICAL)]
    assert ("gpu_not_answering", WARNING) in found(absences=silent)
    assert ("values_absent", WARNING) in found(absences=silent, every=True)
    assert found(down[1], stalled) == [("source_down", WARNING)]
    no_driver = ABSENT_VALUES, ("dgx_system_gpus", "no_driver"), 1.0
    assert found(*down, no_driver) == [("source_down", WARNING)]


@pytest.mark.root
def test_root_is_not_advised_to_be_root() -> None:
    denied = Absence(temperature.MARGIN, GPU, Reason.DENIED, "")
    reading = Reading(ReadKey("a", "b"), NOW, 60.0, (), absences=(denied,))
    said = []
    for uid in (0, 65534):
        os.seteuid(uid)
        try:
            (one,) = Search().findings(Snapshot(1, NOW, 0.0, {reading.key: reading}))
            said.append(finding_text(one))
        finally:
            os.seteuid(0)
    of_root, of_others = said
    assert of_root == "1 metric has no value: permission denied, even as root"
    assert of_others == "1 metric has no value: requires root"


def test_buckets_of_devices_that_are_gone_are_forgotten() -> None:
    window = _Window(infiniband.ERRORS, Counted.PRESENCE, width=60.0, size=10)
    for number in range(100):
        window.take(60.0 * number, {(f"mlx5_{number}", "1", "symbol_error"): 1.0})
    assert len(window.sums) == 10
    assert len(window.grown(60.0 * 99, 600.0)) == 10


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
    with pytest.raises(ValueError, match=r"\$\{most_power\} is no threshold"):
        declared(RuleParameters(USUAL, 0.5))


@pytest.mark.parametrize(
    ("form", "value", "said", "template"),
    [
        ("percent", 0.997, "100 %", "{{ $value | humanizePercentage }}"),
        ("speed", 25e9, "200 Gb/s", '{{ reReplaceAll "([kMGT])$" " $1" (humanize $value) }}b/s'),
    ],
)
def test_the_form_alone_decides_how_a_value_is_said(
    form: str, value: float, said: str, template: str
) -> None:
    fault = Fault(
        sentence=(f"at {{full:{form}}}", f" of {{full_limit:{form}}}"),
        figure="full",
        limit=value,
        finding=FindingPart(kind="full"),
        condition=SimpleNamespace(rows=lambda _: {(): value}),
    )
    machine: Any = SimpleNamespace(samples=None, windows=None)
    assert [*map(finding_text, fault.findings(machine))] == [f"at {said} of {said}"]
    with pytest.raises(KeyError, match="percents"):
        sentence_of(Fault(sentence=("at {full:percents}",), figure="full"))
    assert sentence_of(fault) == f"at {template}"


def test_what_findings_name_exists() -> None:
    for fault in by_kind(USUAL).values():
        assert fault.finding
        parts = fault.finding
        for name in filter(None, (parts.look, parts.do, parts.hold, *parts.terms.values())):
            assert callable(function(name)), name


def test_the_agent_asks_over_time_only_for_flags_and_a_number() -> None:
    """Their value within a window is 1 if they were above 0."""
    conditions = (fault.condition for fault in by_kind(USUAL).values() if fault.condition)
    asks = [ask for one in conditions for ask in one.asks]
    assert not PERSONAL.keys() & {ask.metric for ask in asks}  # samples contain names
    over_time = {ask.metric for ask in asks if ask.counted is Counted.PRESENCE}
    assert over_time == {system.GPUS_EXPECTED, infiniband.PORT_UP}
