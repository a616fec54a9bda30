"""Bounds of the rules, as they stand in the files: a person reads them at night."""

import re
from typing import Any

import pytest
import yaml

from agent.config.settings import Settings
from alerts.build import rules
from tests.support.each import of_each

FILES = rules(Settings())
GROUPS = {name: yaml.safe_load(text)["groups"] for name, text in FILES.items()}
RULES: list[dict[str, Any]] = [
    rule for groups in GROUPS.values() for group in groups for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
FUNCTIONS = {"humanize", "humanizePercentage", "humanizeDuration", "printf", "match"} | {
    "reReplaceAll"
}
BUILT_IN = {"if", "else", "end", "with", "eq", "or", "not"}


def title(rule: dict[str, Any]) -> str:
    return f"{rule['alert']} {rule['labels']}" if "alert" in rule else rule["record"]


@of_each(RULES, title)
def test_an_expression_is_short(rule: dict[str, Any]) -> None:
    assert len(rule["expr"]) <= (400 if "alert" in rule else 600)


@of_each(ALERTS, title)
def test_a_text_is_short_and_asks_nothing(rule: dict[str, Any]) -> None:
    texts = rule["annotations"]
    assert len(texts["summary"]) <= 100
    assert len(texts["description"]) <= 400
    for text in texts.values():
        for action in re.findall(r"{{(.*?)}}", text):
            words = (
                re.sub(r'"[^"]*"|[$.]\S*|[\d.]+', "", action).replace("(", " ").replace(")", " ")
            )
            assert {*words.replace("|", " ").split()} <= FUNCTIONS | BUILT_IN, action
    assert not re.search(r"limit 0\b(?!\.)", texts["description"])


def test_all_of_them_are_small_as_they_stand_in_the_files() -> None:
    size = sum(map(len, FILES.values()))
    assert size <= 137_000, "shorten a text or an expression, or raise the bound and say why"
    found = re.finditer(
        r"^( +)description: .*\n(?:\1 +.*\n|\n)*", "".join(FILES.values()), re.MULTILINE
    )
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
