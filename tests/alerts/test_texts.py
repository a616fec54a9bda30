"""The texts that people read, as promtool renders them: what, where, how much, of what."""

import json
import re

import pytest

from tests.alerts.test_rules import cases
from tests.support.alert_input import (
    SYSTEMS,
    TARGET,
    Case,
    Series,
    group,
)
from tests.support.alert_replay import rules_of, run_promtool

TEXT = r'\b(summary|description)="((?:[^"\\]|\\.)*)"'
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
        for label in ("gpu", "device", "link", "xid", "member"):
            assert labels.get(label, "") in text
        if {**TARGET, **labels}["instance"]:
            assert TARGET["instance"] in text
        assert len(text) <= 400


@pytest.mark.promtool
def test_says_it_where_labels_were_dropped(texts: dict[str, list[tuple[str, str]]]) -> None:
    found = [said for title in texts if title.endswith(DROPPED) for _, said in texts[title]]
    assert len(found) > 2 * 60
    for text in found:
        assert not re.search(r"<error|<no value>|%!|\{\{|  |\(\)|^ |: [.)]", text), text


EXACT = {
    "DgxGpuStarved: just over a quarter": "it waited for 26% of the last 15 min (limit 25%), most "
    "for the disk. If the job reads: read ahead",
    "DgxGpuStarved: another cause takes more by now": "most for the disk. If the job ",
    "DgxGpuHot: at the limit": "the core has a margin of 0 °C to its temperature limit. ",
    "DgxLinkSaturated: network, just over": "network eno1 (receive) was full for 51% of the last "
    "10 min (limit 50%). If the job reads: copy it to the local disks",
    "DgxGpuStraggler: two wait for one": "2 GPUs wait for it (limit 25% of the last 15 min, each)",
    "DgxGpuMissing: seen to go": "it no longer answers. Drain the node",
    "DgxNvlinkDown: one is down": "only 17 NVLinks are up. Drain the node",
    "DgxDiskFailing: the last copy": "Copy its data first; do not pull it",
    "DgxRaidDegraded: one less, by name": "md0: member nvme1n1 is gone",
}


@pytest.mark.promtool
@pytest.mark.parametrize("title", EXACT)
def test_says_it_in_these_words(title: str, texts: dict[str, list[tuple[str, str]]]) -> None:
    assert EXACT[title] in descriptions(texts, title)[0]
