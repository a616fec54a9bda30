"""The runbook as agents serve it: every link of an alert leads to a section of its own."""

import json
import re
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

from agent.catalogue import METRICS
from agent.config.settings import Settings
from agent.faults.model import PAGES, alert_names
from agent.faults.thresholds import AlertThresholds, RuleParameters
from agent.model import InDefault
from alerts.build import alert_rule, alerts_of, files, groups, runbook_page
from tests.support.alert_replay import run_promtool
from tests.support.boards import boards, everything

CASES = tomllib.loads(Path(__file__).with_name("runbook_page.toml").read_text("utf-8"))


@pytest.fixture(scope="module")
def served() -> str:
    return files(Settings())["runbook.html"]


def test_it_is_well_formed_and_every_link_has_its_anchor(served: str) -> None:
    void = re.compile(r"<(meta|link)([^>]*)>")
    tree = ElementTree.fromstring(void.sub(r"<\1\2/>", served.removeprefix("<!doctype html>")))
    found = {node.get("id") for node in tree.iter() if node.get("id")}
    assert found == {
        *alert_names(),
        *map(str.lower, alert_names()),
        "drain",
        "reset",
        "fabric",
        "case",
    }
    links = {node.get("href", "") for node in tree.iter("a")}
    linked = {link.removeprefix("#") for link in links if link.startswith("#")}
    assert linked == {*alert_names(), "reset", "case"}
    assert "`" not in "".join(tree.itertext()).replace("promql", "")


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_names_series_that_users_have(page: Path) -> None:
    """Metrics outside the default set are there for those alone who chose the full set."""
    text = page.read_text()
    named = set(re.findall(r"(?<![\w:])dgx_[a-z0-9_]+(?![\w:])", text))
    assert named <= METRICS.keys()
    rare = {name for name in named if METRICS[name].shown is InDefault.FULL}
    assert not rare or 'set = "full"' in text


def test_every_form_of_the_text() -> None:
    page = runbook_page(
        "# A & b\n\nSay `a < b`\nhere.\n\n- one\n  more\n- two\n\n"
        "| x | y |\n|---|---|\n| 1 | `2` |\n\n"
        "  ```promql\n  up > 0\n  ```\n"
    )
    for part in (
        "<h1>A &amp; b</h1>",
        "<p>Say <code>a &lt; b</code>\nhere.</p>",
        "<li>two</li>",
        "<tr><th>x</th><th>y</th></tr>\n<tr><td>1</td><td><code>2</code></td></tr>",
        "<pre><code>up &gt; 0</code></pre>",
    ):
        assert part in page


def test_links_are_whole_addresses() -> None:
    parameters = RuleParameters(AlertThresholds())
    rules = alerts_of(groups(Settings()))
    for rule in rules:
        shown = alert_rule(rule, parameters)["annotations"]
        other = rule.alert in ("DgxAgentDown", "DgxRulesFailing")  # whose instance is no agent
        own = "$labels.instance" in shown["summary"] and not other
        assert shown["runbook_url"].startswith("http://{{$labels.instance}}") == own
        boards = "http://localhost:3000/d/"
        assert shown.get("dashboard", boards).startswith(boards)
    without = RuleParameters(AlertThresholds(grafana="", runbook="https://wiki/x"))
    assert all("dashboard" not in alert_rule(rule, without)["annotations"] for rule in rules)


def test_a_link_that_no_agent_serves_leads_to_a_board_with_the_page() -> None:
    panels = [p for p in everything(boards()["dgx-agent"]) if p["type"] == "text"]
    shown = {panel["title"]: panel["options"]["content"] for panel in panels}
    parameters = RuleParameters(AlertThresholds())
    for rule in alerts_of(groups(Settings())):
        url = alert_rule(rule, parameters)["annotations"]["runbook_url"]
        if rule.severity != "none" and "/d/dgx-agent#" in url:
            assert shown[rule.alert] == (PAGES / f"{rule.alert}.md").read_text(encoding="utf-8")


TICKS = "dgx_agent_last_tick_timestamp_seconds"


@pytest.mark.promtool
@pytest.mark.parametrize(("alert", "instance", "series", "expected"), CASES["links"])
def test_a_link_opens_as_prometheus_writes_it(
    alert: str, instance: str, series: dict[str, int], expected: str, tmp_path: Path
) -> None:
    """Of its agent, at a port that it has; the text alone of one that does not answer."""
    faults = alerts_of(groups(Settings()))
    fault = next(one for one in faults if one.alert == alert)
    url = alert_rule(fault, RuleParameters(AlertThresholds()))["annotations"]["runbook_url"]
    rule = {"alert": alert, "expr": "fault > 0", "annotations": {"runbook_url": url}}
    (tmp_path / "rules.yaml").write_text(json.dumps({"groups": [{"name": "x", "rules": [rule]}]}))
    labels = {"instance": instance} if instance else {}
    values = {f'fault{{instance="{instance}"}}': 1}
    values |= {f'{TICKS}{{instance="{name}"}}': value for name, value in series.items()}
    fired = {
        "exp_labels": labels,
        "exp_annotations": {"runbook_url": f"{expected}#{alert.lower()}"},
    }
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": str(v)} for name, v in values.items()],
        "alert_rule_test": [{"eval_time": "0m", "alertname": alert, "exp_alerts": [fired]}],
    }
    test = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [case]}
    assert run_promtool(tmp_path, test) == ""
