"""A fault on samples and as an alert: one condition, one severity, judged by promtool."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.catalogue import METRICS
from agent.config.settings import Configuration, Settings
from agent.faults import findings
from agent.faults.findings import USUAL, by_kind
from agent.faults.hiding import OF_ALL
from agent.faults.model import Fault, Look
from agent.faults.watch import AlertState, FaultWatch
from agent.faults.windows import FaultSamples
from agent.model import Labels, Metric, Reading, ReadKey, Sample, Snapshot
from agent.polling.gpu_state import GpuInventory
from agent.series import SampleStore
from alerts.build import alerts_of, groups
from tests.alerts.test_rules import cases
from tests.support.alert_input import SCRAPE, SYSTEMS, TARGET, Case, notation
from tests.support.alert_replay import run_promtool

CASES = tomllib.loads(Path(__file__).with_name("conditions.toml").read_text("utf-8"))

RULES = [fault for fault in alerts_of(groups(Settings())) if fault.kind]
SHARED = [
    fault
    for fault in RULES
    if fault.expr == fault.when and ":" not in fault.when
    if not any(ask.window for ask in fault.condition.asks)
]
"""Conditions of the newest values alone."""

HIDE_ALL = re.findall(r'alertname="(\w+)"', " ".join(rule.source_matchers[0] for rule in OF_ALL))
"""Alerts that hide those of a whole node or GPU."""

LABEL = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*")')


def parsed(series: str) -> tuple[Metric, Labels] | None:
    """The metric and labels of a series; None where the agent does not have it."""
    found = re.fullmatch(r"(\w+)\{(.*)\}", series)
    assert found
    metric = METRICS.get(found[1])
    if metric is None:
        return None
    labels = {name: json.loads(text) for name, text in LABEL.findall(found[2])}
    return metric, tuple(labels.get(name, "") for name in metric.labels)


def samples_of(case: Case) -> Iterator[Sample]:
    """The last values of a case; a series that has ended has none."""
    length = max(len(points) for points in case.series.values())
    for series, points in case.series.items():
        found, value = parsed(series), points[-1] if len(points) == length else None
        if found is not None and value is not None:
            yield Sample(*found, value)


def look_at(case: Case) -> Look:
    reading = Reading(ReadKey("case", "all"), 1e6, 60.0, tuple(samples_of(case)))
    snapshot = Snapshot(1, 1e6, 0.0, {reading.key: reading})
    return Look(FaultSamples(SampleStore.of(snapshot)), snapshot, None, by_kind(USUAL))


def cases_of(fault: Fault) -> list[Case]:
    found = [case for case in cases(SYSTEMS[0]) if case.alert == fault.alert]
    assert found, f"{fault.alert} has no case"
    return found


def asked(case: Case, fault: Fault) -> dict[str, object]:
    """A test of promtool that the condition has the rows that it has on samples."""
    look = look_at(case)
    length = max(len(points) for points in case.series.values())
    rows = [
        {"labels": _labels({**TARGET, **row}), "value": value}
        for row, value in fault.rows(look.windows)
    ]
    return {
        "name": f"{case.title} {fault.kind}",
        "interval": f"{case.every}s",
        "input_series": [
            {"series": name, "values": notation([*p, *[None] * (length - len(p))])}
            for name, p in case.series.items()
        ],
        "promql_expr_test": [
            {
                # An arithmetic operation drops the name of the metric, a comparison does not.
                "expr": f'label_replace({fault.when}, "__name__", "", "", "")',
                "eval_time": f"{(length - 1) * case.every}s",
                "exp_samples": rows,
            }
        ],
    }


def _labels(row: dict[str, str]) -> str:
    return "{" + ", ".join(f"{k}={json.dumps(v)}" for k, v in row.items() if v) + "}"


@pytest.mark.promtool
def test_promtool_and_samples_agree(tmp_path: Path) -> None:
    tests = [asked(case, fault) for fault in SHARED for case in cases_of(fault)]
    content = {"rule_files": [], "evaluation_interval": f"{SCRAPE}s", "tests": tests}
    assert run_promtool(tmp_path, content) == ""


@pytest.mark.parametrize("fault", SHARED, ids=lambda fault: fault.kind)
def test_a_fault_has_cases_of_both_kinds(fault: Fault) -> None:
    found = [list(fault.findings(look_at(case))) for case in cases_of(fault)]
    assert any(found), "no case in which it is found"
    assert not all(found), "no case in which it is not found"


@pytest.mark.promtool
def test_promtool_notices_a_condition_that_is_another(tmp_path: Path) -> None:
    fault = next(fault for fault in SHARED if fault.kind == "pcie_lanes")
    case = next(case for case in cases_of(fault) if list(fault.findings(look_at(case))))
    test = asked(case, fault)
    test["promql_expr_test"][0]["exp_samples"] = []  # type: ignore[index]
    content = {"rule_files": [], "evaluation_interval": f"{SCRAPE}s", "tests": [test]}
    assert "FAILED" in run_promtool(tmp_path, content)


ALERTS = [case for case in cases(SYSTEMS[0]) if case.alert not in CASES["elsewhere"]]


def watched(case: Case, monkeypatch: pytest.MonkeyPatch) -> FaultWatch:
    """An agent that saw the series of a case, once a scrape. It looks for the fault of its alert,
    and for those that would hide it: for all it would take seconds."""
    own = [fault for fault in RULES if fault.alert == case.alert]
    near = {case.alert, *HIDE_ALL, *(by.alert for fault in own for by in fault.hiders)}
    faults = {
        kind: fault
        for kind, fault in by_kind(USUAL).items()
        if fault.alert in near or kind in ("driver_hangs", "short_of_processors")
    }
    monkeypatch.setattr(findings, "by_kind", lambda _: faults)
    watch = FaultWatch(Configuration(), GpuInventory, lambda: None)
    length = max(len(points) for points in case.series.values())
    series = [(parsed(name), points) for name, points in case.series.items()]
    for step in range(length):
        at = 1e6 + step * case.every
        samples = tuple(
            Sample(*found, value)
            for found, points in series
            if found is not None and step < len(points) and (value := points[step]) is not None
        )
        reading = Reading(ReadKey("case", "all"), at, 1e9, samples)
        wall = at - 1e6  # as of promtool, which begins at 0
        watch.observe(Snapshot(step, at, wall, {reading.key: reading}))
    return watch


@pytest.mark.parametrize("case", ALERTS, ids=lambda case: f"{case.alert}: {case.title}")
def test_an_alert_and_its_finding_agree(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the alert of a case fires the agent finds it, and says so; where it rests, it does
    not say that it would fire."""
    active = watched(case, monkeypatch).active
    found = [one for one in active if one.finding.fault.alert == case.alert]
    shown = (one for one in found if not one.hidden_by)
    firing = [one for one in shown if one.alert is AlertState.WOULD_FIRE]
    if not case.fires:
        assert firing == [] or case.title in TO_THE_MINUTE
        return
    severities = {one.finding.severity.value for one in found}
    assert severities >= {labels["severity"] for labels in case.fires}
    assert firing or case.title in TO_THE_MINUTE


TO_THE_MINUTE = {"wholly, since five minutes", "long enough", "the first series"}
"""Cases whose window begins between two buckets of the agent, or whose series the agent has from
0 on."""

XID_RULES = [
    (labels["xid"], labels["severity"], case)
    for case in cases(SYSTEMS[0])
    if case.alert == "DgxGpuXid"
    for labels in case.fires
]


@pytest.mark.parametrize(("code", "severity", "case"), XID_RULES, ids=str)
def test_an_xid_has_the_severity_of_its_alert(code: str, severity: str, case: Case) -> None:
    found = list(by_kind(USUAL)["xid"].findings(look_at(case)))
    assert [(f.device, f.severity) for f in found if f.device == code] in (
        [(code, severity)],
        [],  # of NVLink 5 alone: no error of the code itself is in the series
    )
