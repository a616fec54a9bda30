"""Bounds of the rules, as they stand in the files: a person reads them at night. One message for
one fault: what silences an alert is there before that alert is sent."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from agent.config.settings import Settings
from agent.faults.hiding import inhibitions
from agent.faults.model import Fault
from agent.faults.promql import seconds
from agent.polling import intervals
from agent.polling.intervals import LINK_STATE
from agent.specs.xids import catalogue
from alerts.build import alerts_of, groups, rules
from alerts.receivers import ROUTES
from tests.support.alert_input import SCRAPE
from tests.support.each import of_each

FILES = rules(Settings())
GROUPS = {name: yaml.load(text, yaml.CSafeLoader)["groups"] for name, text in FILES.items()}
RULES: list[dict[str, Any]] = [
    rule for groups in GROUPS.values() for group in groups for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
HUMAN = {"humanize", "humanizePercentage", "humanizeDuration"}
FUNCTIONS = HUMAN | {"printf", "match", "reReplaceAll"}
BUILT_IN = {"if", "else", "end", "with", "eq", "or", "not"}


def title(rule: dict[str, Any]) -> str:
    return f"{rule['alert']} {rule['labels']}" if "alert" in rule else rule["record"]


@of_each(RULES, title)
def test_an_expression_is_short(rule: dict[str, Any]) -> None:
    assert len(rule["expr"]) <= (400 if "alert" in rule else 600)


def test_codes_without_a_rule_of_their_own_are_those_that_the_catalogue_lacks() -> None:
    (rest,) = (one for one in SENT if one.labels.get("sign") == "unlisted")
    listed = re.findall(r'xid!~"(.+?)"', rest.expr)[0]
    assert {n for n in range(1000) if re.fullmatch(listed, f"{n}")} == catalogue().keys()


@of_each(ALERTS, title)
def test_a_text_is_short_and_asks_nothing(rule: dict[str, Any]) -> None:
    texts = rule["annotations"]
    assert len(texts["summary"]) <= 100
    assert len(texts["description"]) <= 400
    for text in texts.values():
        for action in re.findall(r"{{(.*?)}}", text):
            words = re.sub(r'"[^"]*"|[$.]\S*|[\d.]+|[()]', " ", action)
            assert {*words.replace("|", " ").split()} <= FUNCTIONS | BUILT_IN, action
    assert not re.search(r"limit 0\b(?!\.)", texts["description"])


def test_all_of_them_are_small_as_they_stand_in_the_files() -> None:
    size = sum(map(len, FILES.values()))
    assert size <= 138_000, "shorten a text or an expression, or raise the bound and say why"
    description = re.compile(r"^( +)description: .*\n(?:\1 +.*\n|\n)*", re.MULTILINE)
    found = description.finditer("".join(FILES.values()))
    texts = [match.group() for match in found]
    assert len(texts) == len(ALERTS)
    assert max(map(len, texts)) <= 500


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_is_small_and_has_its_interval(name: str) -> None:
    for group in GROUPS[name]:
        full = f"{group['name']} is full: declare the fault in another file, or in a new group"
        assert len(group["rules"]) <= 20, full
        assert group["interval"]


@pytest.mark.parametrize("name", GROUPS)
def test_a_record_stands_before_the_alerts_of_its_group(name: str) -> None:
    for group in GROUPS[name]:
        kinds = ["alert" in rule for rule in group["rules"]]
        assert kinds == sorted(kinds)


def test_every_alert_says_its_board_with_the_cluster() -> None:
    for rule in ALERTS:
        board = rule["annotations"].get("dashboard_url", "")
        assert not board or "var-cluster" in board


SENT = alerts_of(groups(Settings()))
WAIT = {route["severity"]: seconds(route["group_wait"]) for route in ROUTES.values()}

READ = {
    "DgxGpuXid": 0.0,
    "DgxGpuMissing": 0.0,
    "DgxNodeMissing": 0.0,
    "DgxFabricFault switch": 0.0,
    "DgxFabricFault manager": intervals.MANAGER,
    "DgxPcieDegraded": intervals.PCIE_LINK,
    "DgxRaidDegraded dead": LINK_STATE,
}
"""Delay (s) of an inhibiting alert's metric: none if it is read every tick; the rest is read every
minute."""

TOGETHER = {
    ("DgxGpuXid", "DgxGpuEccUncorrected"),  # whose rule leaves it to that XID
    ("DgxGpuRowRemapFailure", "DgxGpuEccUncorrected"),  # of one read
    ("DgxGpuHot", "DgxGpuThrottled"),  # reported for the share of a quarter of an hour
    ("DgxClockStepped", "DgxClockStepped"),  # the fourth step comes after the first
}
"""Pairs that keep their order by themselves."""


def matches(matcher: str, alert: Fault) -> bool:
    """Return whether the alert may have the labels asked for; labels from its series count as a
    match."""
    found = re.fullmatch(r'(\w+)(!=|=~|=)"(.*)"', matcher)
    assert found is not None, matcher
    label, how, value = found.groups()
    labels = {"alertname": alert.alert, "severity": str(alert.severity), **alert.labels}
    if label == "xid" and alert.alert == "DgxGpuXid":
        listed = re.findall(r'xid=~"(.+?)"', alert.expr)
        own = (
            listed[0]
            if listed
            else {"nvlink5": "14[4-9]|150"}.get(alert.labels.get("sign", ""), "")
        )
        codes = [code for code in map(str, range(200)) if re.fullmatch(own, code)]
        return any(re.fullmatch(value, code) for code in codes)
    if label not in labels:
        return label in ("kind", "uuid")
    same = re.fullmatch(value, labels[label]) if how == "=~" else labels[label] == value
    return bool(same) != (how == "!=")


def pairs() -> Iterator[tuple[Fault, Fault]]:
    """Each alert that silences another; where a node or its driver is gone nothing is read."""
    for rule in inhibitions(SENT):
        sources, targets = rule.source_matchers, rule.target_matchers
        for source in SENT:
            gone = (
                source.alert in ("DgxAgentDown", "DgxAgentBlind")
                or source.labels.get("sign") == "no_driver"
            )
            if gone or not all(matches(m, source) for m in sources):
                continue
            if source.alert == "DgxGpuMissing" and any("alertname!=" in m for m in targets):
                continue  # of one GPU, whatever it was
            for target in SENT:
                if target is not source and all(matches(m, target) for m in targets):
                    yield source, target


@of_each([*pairs()])
def test_what_silences_comes_first(pair: tuple[Fault, Fault]) -> None:
    source, target = pair
    if (source.alert, target.alert) in TOGETHER:
        return
    sign = f"{source.alert} {source.labels.get('sign', '')}".strip()
    read = READ.get(sign, READ.get(source.alert, intervals.LINKS))
    latest = read + 2 * SCRAPE + seconds(source.hold)
    assert latest <= seconds(target.hold) + WAIT[target.severity]
