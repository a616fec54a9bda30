"""The texts that people read, as promtool renders them: what, where, how much, of what."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.alerts.delivered import FIRING, OF_GPU, SHORTEST, Fired, all_messages, rendered
from tests.support.alert_input import TARGET, Case, Series

pytestmark = pytest.mark.stack  # all of them, for then one process renders the texts once

DROPPED = ", labels dropped"


def without(case: Case, *labels: str) -> Case:
    """The same as if these labels had been dropped on the way; of what is alike then, the first."""
    named = re.compile(rf', (?:{"|".join(labels)})="[^"]*"')
    series: Series = {}
    for name, points in case.series.items():
        series.setdefault(named.sub("", name), points)
    return case._replace(series=series, title=f"{case.title}{DROPPED}")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Fired]]:
    """Alerts by case, with its labels and, of cases whose alerts have the same labels one, without
    those of a GPU."""
    forms = {(c.alert, *map(frozenset, c.fires)): c for c in SHORTEST.values()}
    dropped = (without(case, *OF_GPU) for case in forms.values())
    return rendered([*FIRING, *dropped], tmp_path_factory.mktemp("texts"))


def descriptions(texts: dict[str, list[Fired]], title: str) -> list[str]:
    return [one.annotations["description"] for one in texts[title]]


@pytest.mark.parametrize("case", FIRING, ids=lambda c: f"{c.alert}: {c.title}")
def test_says_where_and_how_much(case: Case, texts: dict[str, list[Fired]]) -> None:
    found = descriptions(texts, f"{case.alert}: {case.title}")
    assert len(found) == len(case.fires)
    in_order = sorted(case.fires, key=lambda labels: sorted(labels.items()))
    for text, labels in zip(found, in_order, strict=True):
        assert not re.search(r"<no value>|%!|\{\{|(?<!cause )\bunknown\b|\(\)|: *\)", text), text
        for label in ("gpu", "device", "link", "xid", "member"):
            assert labels.get(label, "") in text
        if {**TARGET, **labels}["instance"]:
            assert TARGET["instance"] in text
        assert len(re.sub(r"GPU-[0-9a-f]{8}-\d+", "x" * 40, text)) <= 400  # a real UUID has 40


def test_says_it_where_labels_were_dropped(texts: dict[str, list[Fired]]) -> None:
    found = [
        one.annotations[name]
        for title in texts
        if title.endswith(DROPPED)
        for one in texts[title]
        for name in ("summary", "description")
    ]
    assert len(found) > 2 * 60
    for text in found:
        assert not re.search(r"<error|<no value>|%!|\{\{|  |\(\)|^ |: [.)]", text), text


EXACT = tomllib.loads(Path(__file__).with_name("texts.toml").read_text("utf-8"))["exact"]


@pytest.mark.parametrize("title", EXACT)
def test_says_it_in_these_words(title: str, texts: dict[str, list[Fired]]) -> None:
    assert EXACT[title] in descriptions(texts, title)[0]


def test_each_text_arrives_on_every_way(texts: dict[str, list[Fired]], tmp_path: Path) -> None:
    """A webhook gets summary, description and links; Slack and mail the description, the runbook
    and the place, in a message that a phone shows whole."""
    messages = all_messages(texts, tmp_path)
    assert len(messages) > 110
    for message in messages:
        annotations, labels = message.alert.annotations, message.alert.labels
        if labels["severity"] == "none":
            continue
        assert len(annotations["summary"]) <= 100
        assert message.title.startswith(f"[firing] {labels['alertname']} ({labels['severity']})")
        assert message.text.startswith(annotations["description"])
        assert annotations["runbook_url"] in message.text
        assert len(message.text) <= 600
        assert message.mail.split() == message.text.split()
