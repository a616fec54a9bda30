"""A fault on samples and as an alert: one condition, one severity, judged by promtool."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.catalogue import METRICS
from agent.config.settings import Settings
from agent.faults.findings import by_kind
from agent.faults.model import Fault, Look
from agent.faults.promql import Condition
from agent.model import Reading, ReadKey, Sample, Snapshot
from agent.series import SampleStore
from alerts.build import alerts_of, groups
from tests.alerts.test_rules import cases
from tests.support.alert_input import SCRAPE, SYSTEMS, TARGET, Case, notation
from tests.support.alert_replay import run_promtool

RULES = [fault for fault in alerts_of(groups(Settings())) if fault.kind]
SHARED = [fault for fault in RULES if isinstance(fault.when, Condition)]
WINDOWED = [fault for fault in RULES if fault.look]
SERIES = re.compile(r"(\w+)\{(.*)\}")
LABEL = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*")')


def samples_of(case: Case) -> Iterator[Sample]:
    """The last values of a case; a series that has ended has none."""
    length = max(len(points) for points in case.series.values())
    for series, points in case.series.items():
        found = SERIES.fullmatch(series)
        assert found
        metric = METRICS.get(found[1])
        value = points[-1] if len(points) == length else None
        if metric is not None and value is not None:
            labels = {name: json.loads(text) for name, text in LABEL.findall(found[2])}
            yield Sample(metric, tuple(labels.get(name, "") for name in metric.labels), value)


def look_at(case: Case) -> Look:
    reading = Reading(ReadKey("case", "all"), 1e6, 60.0, tuple(samples_of(case)))
    snapshot = Snapshot(1, 1e6, 0.0, {reading.key: reading})
    return Look(SampleStore.of(snapshot), snapshot, None)


def cases_of(fault: Fault) -> list[Case]:
    found = [case for case in cases(SYSTEMS[0]) if case.alert == fault.alert]
    assert found, f"{fault.alert} has no case"
    return found


def asked(case: Case, fault: Fault) -> dict[str, object]:
    """A test of promtool that the condition has the rows that it has on samples."""
    assert isinstance(fault.when, Condition)
    look = look_at(case)
    length = max(len(points) for points in case.series.values())
    rows = [
        {"labels": _labels({**TARGET, **dict(row)}), "value": value}
        for row, value in fault.when.rows(look.samples).items()
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
@pytest.mark.parametrize("fault", SHARED, ids=lambda fault: fault.kind)
def test_promtool_and_samples_agree(fault: Fault, tmp_path: Path) -> None:
    tests = [asked(case, fault) for case in cases_of(fault)]
    content = {"rule_files": [], "evaluation_interval": f"{SCRAPE}s", "tests": tests}
    assert run_promtool(tmp_path, content) == ""
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


@pytest.mark.parametrize("fault", RULES, ids=lambda fault: f"{fault.kind} {dict(fault.labels)}")
def test_what_alerts_is_found_with_the_same_severity(fault: Fault) -> None:
    """Of windows one look has the end alone: whatever alerts at the end is found there."""
    own = {"severity": str(fault.severity), **fault.labels}
    firing = [
        case
        for case in cases_of(fault)
        if any(own.items() <= labels.items() for labels in case.fires)
    ]
    assert firing
    for case in firing:
        found = list(fault.findings(look_at(case)))
        assert found or fault.kind in ELSEWHERE, case.title
        assert {finding.severity for finding in found} <= {fault.severity}


ELSEWHERE = {"ecc_uncorrected"}
"""Under MIG found as `ecc_lifetime`, because one look does not know when an error was."""


def test_every_finding_that_has_a_rule_has_its_severity() -> None:
    rules: dict[str, set[object]] = {}
    for fault in alerts_of(groups(Settings())):
        rules.setdefault(fault.alert, set()).add(fault.severity)
    for kind, fault in by_kind().items():
        if fault.when and fault.alert:
            assert fault.severity in rules[fault.alert], kind


XID_RULES = [
    (labels["xid"], labels["severity"], case)
    for case in cases(SYSTEMS[0])
    if case.alert == "DgxGpuXid"
    for labels in case.fires
]


@pytest.mark.parametrize(("code", "severity", "case"), XID_RULES, ids=str)
def test_an_xid_has_the_severity_of_its_alert(code: str, severity: str, case: Case) -> None:
    found = list(by_kind()["xid"].findings(look_at(case)))
    assert [(f.device, f.severity) for f in found if f.device == code] in (
        [(code, severity)],
        [],  # of NVLink 5 alone: no error of the code itself is in the series
    )
