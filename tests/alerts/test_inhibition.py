"""Each inhibition in a running Alertmanager: what it silences, and what it leaves alone."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from agent.config.settings import Settings
from agent.faults.hiding import inhibitions
from agent.stack import programs
from agent.stack.programs import choose
from alerts.build import alertmanager, alerts_of, groups
from tests.stack.daemons import FREE, started
from tests.stack.running import eventually
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.stack

INHIBITIONS = inhibitions(alerts_of(groups(Settings())))
RULES = [(rule.source_matchers, rule.target_matchers) for rule in INHIBITIONS]

USUAL = {
    "uuid": "GPU-0",
    "device": "one",
    "member": "one",
    "alertname": "DgxAnything",
}

Alerts = dict[tuple[int, str], Any]


def labels_for(matchers: Sequence[str], number: int, side: str) -> dict[str, str]:
    """Labels that fit: an equal value, the first of alternatives, or what is not excluded."""
    found = {**USUAL, "instance": f"node{number}", "side": side, "rule": str(number)}
    found |= {"cluster": f"c{number}", "rack": f"r{number}"}
    found["severity"] = "warning" if side == "source" else "info"
    for matcher in sorted(matchers, key=lambda m: '"' + m if '!="' in m else m, reverse=True):
        match = re.fullmatch(r'(\w+)(=~|!=|=)"(.*)"', matcher)
        assert match, matcher
        name, sign, value = match.groups()
        if sign == "=":
            found[name] = value
        elif sign == "=~":
            first = re.sub(r"\[(.).*?\]", r"\1", value.split("|")[0]).replace(".+", "Other")
            found[name] = found[name] if re.fullmatch(value, found.get(name, "")) else first
        else:
            assert found.get(name) != value, matcher
    return found


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alerts]:
    """Alertmanager's result for a source and a target of each rule, of the same target on a machine
    of its own, and of targets that differ from it in a label that the rule compares: another
    cluster, array, port or GPU."""
    folder: Path = tmp_path_factory.mktemp("alertmanager")
    (folder / "alertmanager.yaml").write_text(alertmanager(Settings())["alertmanager.yaml"])
    port = choose(FREE).alertmanager
    program = programs.server_program("alertmanager", port, folder)
    alerts = [
        {"labels": labels_for(matchers, number, side)}
        for rule, (source, target) in enumerate(RULES)
        for number, side, matchers in (
            (rule, "source", source),
            (rule, "target", target),
            (rule + len(RULES), "alone", target),
        )
    ]
    for rule, inhibition in enumerate(INHIBITIONS):
        for label in inhibition.equal:
            labels = labels_for(inhibition.target_matchers, rule, f"another {label}")
            alerts.append({"labels": {**labels, label: "another"}})
    found: Alerts = {}
    url, kind = f"{program.address}api/v2/alerts", {"Content-Type": "application/json"}
    body = json.dumps(alerts).encode()

    def answers() -> bool:
        try:
            urlopen(Request(url, body, kind), timeout=PATIENCE).close()
            with urlopen(url, timeout=PATIENCE) as page:
                listed = json.load(page)
        except OSError:
            return False
        found.update({(int(a["labels"]["rule"]), a["labels"]["side"]): a for a in listed})
        return all(found[rule, "target"]["status"]["inhibitedBy"] for rule in range(len(RULES)))

    with started(program, folder / "alertmanager.log"):
        try:
            eventually(answers, "everything that is silenced")
        except AssertionError:
            assert found, (folder / "alertmanager.log").read_text()
        yield found


@pytest.mark.stack
@pytest.mark.parametrize("rule", range(len(RULES)))
def test_a_source_silences_its_target_and_no_other(rule: int, shown: Alerts) -> None:
    source, target = shown[rule, "source"], shown[rule, "target"]
    assert source["fingerprint"] in target["status"]["inhibitedBy"], RULES[rule]
    assert shown[rule + len(RULES), "alone"]["status"]["inhibitedBy"] == []
    for label in INHIBITIONS[rule].equal:
        hidden = shown[rule, f"another {label}"]["status"]["inhibitedBy"]
        assert source["fingerprint"] not in hidden, (label, RULES[rule])
