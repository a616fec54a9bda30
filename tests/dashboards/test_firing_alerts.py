"""The table of firing alerts: each leads to its page of the runbook, beside its first step."""

import re

import pytest

from agent.config.settings import Settings
from alerts.build import alerts_of, groups
from dashboards.alerts import DECIDING, ON_ITS_PAGE
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
