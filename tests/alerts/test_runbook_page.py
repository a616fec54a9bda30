"""The runbook as agents serve it: every link of an alert leads to a section of its own."""

import re
from xml.etree import ElementTree

import pytest

from agent.config.settings import Settings
from agent.faults.model import alert_names
from agent.faults.parameters import RuleParameters
from agent.faults.thresholds import AlertThresholds
from alerts.build import alerts_of, files, groups
from alerts.rules import alert_rule
from alerts.runbook_page import runbook_page

BOARDS = "http://localhost:3000/d/"


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
    assert {link.removeprefix("#") for link in links if link.startswith("#")} == {"reset", "case"}
    assert "`" not in "".join(tree.itertext()).replace("promql", "")


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


def test_links_are_whole_addresses_wherever_an_alert_has_a_node() -> None:
    parameters = RuleParameters(AlertThresholds())
    rules = alerts_of(groups(Settings()))
    for rule in rules:
        told = alert_rule(rule, parameters)["annotations"]
        of_node = "$labels.instance" in told["summary"]
        assert told["runbook_url"].startswith("http://{{$labels.instance}}/") == of_node
        assert told.get("dashboard", "http://localhost:3000/d/").startswith(
            "http://localhost:3000/d/"
        )
    without = RuleParameters(AlertThresholds(grafana="", runbook="https://wiki/x"))
    assert all("dashboard" not in alert_rule(rule, without)["annotations"] for rule in rules)
