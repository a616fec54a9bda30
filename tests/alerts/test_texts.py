"""The texts that people read, as promtool renders them: what, where, how much, of what."""

import json
import re

import pytest

from tests.alerts.test_rules import cases
from tests.support.alert_input import (
    FLAGS,
    SYSTEMS,
    TARGET,
    Case,
    Series,
    group,
)
from tests.support.alert_replay import rules_of, run_promtool

TEXT = r'\b(summary|description)="((?:[^"\\]|\\.)*)"'
LIMIT = re.compile(r"\(limit|, limit|its limit is|\d+[A-Za-z/]* of \d+|x\d+ instead of x\d")
"""A figure stands beside its limit: `(limit 25%)`, `7 of 8 GPUs`, `25GB/s of 50GB/s`."""

FIRING = [case for case in cases(SYSTEMS[0]) if case.fires]


OF_GPU = ("gpu", "uuid")
BY_KIND = {
    (case.alert, *sorted(pair for pair in labels.items() if pair[0] not in OF_GPU)): case
    for case in sorted(FIRING, key=lambda case: -max(map(len, case.series.values())))
    for labels in case.fires
}
"""The shortest case of each rule that fires."""

DROPPED = ", labels dropped"
SELDOM = 4
"""Samples to an evaluation: a text has the last alone."""
OFTEN = {"wholly, since five minutes"}
"""Cases that are too short for that."""


def without(case: Case, *labels: str) -> Case:
    """The same as if these labels had been dropped on the way; of what is alike then, the first."""
    named = re.compile(rf', (?:{"|".join(labels)})="[^"]*"')
    series: Series = {}
    for name, points in case.series.items():
        series.setdefault(named.sub("", name), points)
    return case._replace(series=series, title=f"{case.title}{DROPPED}")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, str]]]:
    """Names of annotations and texts by case, with its labels and without those of a GPU: promtool
    shows them for an alert that a test did not expect."""
    folder = tmp_path_factory.mktemp("texts")
    chosen = {(case.alert, case.title): case for case in BY_KIND.values()}
    alike: dict[tuple[str, int], list[Case]] = {}
    for case in (*FIRING, *(without(case, *OF_GPU) for case in chosen.values())):
        every = case.every if case.title in OFTEN else SELDOM * case.every
        alike.setdefault((case.alert, every), []).append(case)
    found: dict[str, list[tuple[str, str]]] = {}
    for (alert, every), same in sorted(alike.items()):
        rules = rules_of({alert}, texts=True)
        (folder / "rules.yaml").write_text(rules)
        groups = json.loads(rules)["groups"]
        content = {
            "rule_files": ["rules.yaml"],
            "evaluation_interval": f"{every}s",
            # what is recorded seldom would be too old for an alert that comes before it
            "group_eval_order": [
                one["name"] for one in sorted(groups, key=lambda g: "alert" in g["rules"][0])
            ],
            "tests": [group(case._replace(fires=()), SELDOM) for case in same],
        }
        title = ""
        for line in run_promtool(folder, content).splitlines():
            if named := re.match(r"\s*name: (.*),$", line):
                title = named[1]
            found.setdefault(title, []).extend(re.findall(TEXT, line))
    return found


def descriptions(texts: dict[str, list[tuple[str, str]]], title: str) -> list[str]:
    return [text for which, text in texts[title] if which == "description"]


@pytest.mark.promtool
@pytest.mark.parametrize("case", FIRING, ids=lambda c: f"{c.alert}: {c.title}")
def test_says_where_and_how_much(case: Case, texts: dict[str, list[tuple[str, str]]]) -> None:
    found = descriptions(texts, f"{case.alert}: {case.title}")
    assert len(found) == len(case.fires)
    in_order = sorted(case.fires, key=lambda labels: sorted(labels.items()))
    for text, labels in zip(found, in_order, strict=True):
        assert not re.search(r"<no value>|%!|\{\{|(?<!cause )\bunknown\b|\(\)|: *\)", text), text
        for label in ("gpu", "uuid", "device", "link", "xid"):
            assert labels.get(label, "") in text
        if {**TARGET, **labels}["instance"]:
            assert TARGET["instance"] in text
        flag = (case.alert, labels.get("sign", "")) in FLAGS
        if case.alert != "DgxWatchdog" and not flag:
            assert re.search(r"\d", text.replace(TARGET["instance"], "")), text
            assert LIMIT.search(text), text


@pytest.mark.promtool
def test_says_it_where_labels_were_dropped(texts: dict[str, list[tuple[str, str]]]) -> None:
    found = [said for title in texts if title.endswith(DROPPED) for _, said in texts[title]]
    assert len(found) > 2 * 60
    for text in found:
        assert not re.search(r"<error|<no value>|%!|\{\{|  |\(\)|^ |: [.)]", text), text


EXACT = {
    "DgxGpuStarved: just over a quarter": "waited for 26% of the last 15m (limit 25%). Starved by "
    "disk for 26%: If the job reads: read less or faster",
    "DgxGpuStarved: checkpoints": "disk for 26%: Write checkpoints asynchronously",
    "DgxGpuStarved: reads more": "disk for 26%: Read less or faster",
    "DgxGpuStarved: several causes together": "waited for 26% of the last 15m (limit 25%). Starved "
    "by disk for 16%: If the job reads: read less or faster",
    "DgxGpuStarved: several causes of six hours": "waited for 11% of the last 6h (limit 10%). "
    "Starved by disk for 6%: If the job reads: read less or faster",
    "DgxGpuHot: at the limit": "is at 87 °C, its limit is 87 °C. Check the cooling",
    "DgxLinkSaturated: network, just over": "network eno1 (receive) of box:9935 was full for 51% "
    "of the last 10m (limit 50% of the time; it can carry 400Gb/s). Use more ports, or "
    "move less: read local copies",
    "DgxGpuStraggler: two wait for one": "is waited for by 2 GPUs of the machine: 1 2 (limit",
    "DgxGpuMissing: seen to go": "is gone: 7 of 8 GPUs answer. Drain the node",
    "DgxNvlinkDown: one is down": "NVLink 3 is down, 17 of 18 NVLinks are up. Drain the node",
}


@pytest.mark.promtool
@pytest.mark.parametrize("title", EXACT)
def test_says_it_in_these_words(title: str, texts: dict[str, list[tuple[str, str]]]) -> None:
    assert EXACT[title] in descriptions(texts, title)[0]
