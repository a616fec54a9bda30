"""The table of firing alerts: each leads to its page of the runbook, beside its first step."""

import re

import pytest

from agent.config.settings import Settings
from agent.faults.thresholds import AlertPatch, AlertPatches, AlertThresholds
from alerts.build import alerts_of, groups
from dashboards.alerts import DECIDING, ON_ITS_PAGE
from dashboards.build import files
from dashboards.promql import scoped
from tests.support.boards import queries

CASES = [
    (fault.alert, {**fault.labels, "severity": str(fault.severity)}, str(fault.do) or ON_ITS_PAGE)
    for fault in alerts_of(groups(Settings()))
    if "{{" not in str(fault.do)
]
CASES += [
    ("DgxGpuThrottled", {"severity": "warning", "cause": "power"}, "Check the power supplies"),
    ("DgxLinkSaturated", {"severity": "warning", "sign": "pcie"}, "Pin memory, and overlap"),
    ("DgxJobHung", {"severity": "critical", "sign": "named"}, "Run `py-spy dump --pid"),
]


def test_the_texts_are_those_of_the_configured_rules() -> None:
    settings = Settings(
        AlertThresholds(starved_window="20m"),
        AlertPatches(patches={"DgxGpuHot": AlertPatch(severity="critical")}),
    )
    faults = alerts_of(groups(settings))
    built = "".join(files(faults=faults).values())
    assert "DgxGpuHot/critical" in built
    assert "DgxGpuHot/warning" not in built
    assert r"DgxGpuStarved/info\\b[^;]*/20m" in built


@pytest.mark.parametrize(("alert", "labels", "do"), CASES)
def test_an_alert_leads_to_its_page_and_says_what_to_do(
    alert: str, labels: dict[str, str], do: str
) -> None:
    asked = next(q for q in queries() if q.panel["title"] == "Firing alerts")
    found = {
        (rule["matcher"]["options"], p["id"]): p["value"]
        for rule in asked.panel["fieldConfig"]["overrides"]
        for p in rule["properties"]
    }
    (link,) = found["alertname", "links"]
    assert link["url"].endswith("/runbook.html#${__data.fields.alertname}")
    said = "/".join((alert, *(labels.get(kind, "") for kind in DECIDING)))
    what, first, of_one = (
        next(
            re.sub(m["options"]["pattern"], m["options"]["result"]["text"].replace("$", "\\"), text)
            for m in found[column, "mappings"]
            if re.fullmatch(m["options"]["pattern"], text)
        )
        for column, text in (
            ("what", said),
            ("do", f"{said};GPU;DEVICE;several"),
            ("do", f"{said};3;md0;1;;n"),
        )
    )
    named = first.replace("-i GPU", "-i 3").replace("DEVICE", "md0")
    assert of_one == named, "the command has the number of its GPU, and its device"
    assert do.startswith(first.removesuffix(" …")) or first.startswith(do)
    assert what
    assert "{{" not in what


def test_a_wrong_query_is_refused_while_it_is_written() -> None:
    with pytest.raises(ValueError, match="no metric"):
        scoped("rate(dgx_gpu_power_wats[1m])")
    with pytest.raises(ValueError, match="no label"):
        scoped('dgx_gpu_power_watts{state="busy"}')
    with pytest.raises(ValueError, match="no definition"):
        scoped("TIEM", {"TIME": "up"})
    with pytest.raises(ValueError, match="no matchers"):
        scoped('TIME{state="busy"}', {"TIME": "up"})


def test_a_name_that_a_board_defines_takes_matchers_through_other_names() -> None:
    names = {
        "TIME": "sum by (gpu) (SECONDS{*})",
        "SECONDS": "increase(dgx_gpu_state_seconds_total{*}[1m])",
        "BAD": 'state="hung"',
    }
    places = 'job=~"$job",cluster=~"$cluster",instance=~"$instance",gpu=~"$gpu"'
    for asked, matchers in (("TIME", ""), ("TIME{BAD}", ',state="hung"')):
        metric = f"dgx_gpu_state_seconds_total{{{places}{matchers}}}"
        assert scoped(asked, names) == f"sum by (gpu) (increase({metric}[1m]))"
