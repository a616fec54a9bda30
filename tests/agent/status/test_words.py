"""The sentences: one for each kind, from values alone, and nothing said that is not known."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from agent.diagnosis.advice import ADVICE
from agent.diagnosis.facts import FactKind
from agent.faults.findings import action
from agent.jobs.job import percent
from agent.model import (
    BUSY,
    Cause,
    Fact,
    Figure,
    Finding,
    GpuKey,
    Severity,
    SignalQuality,
    State,
    Verdict,
)
from agent.status.words import FACTS, duration, fact_text, finding_text
from exporters.snapshot_json import fact_document, verdict_document

GPU, PEER = GpuKey(3, "GPU-3"), GpuKey(0, "GPU-0")


def test_every_kind_has_a_sentence() -> None:
    assert set(FACTS) == set(FactKind)


def share(name: str, value: float) -> Figure:
    return Figure(name, value, None, "ratio")


def count(name: str, value: float, limit: float | None = None) -> Figure:
    return Figure(name, value, limit, "count")


WARNING = Severity.WARNING
TEXTS = tomllib.loads(Path(__file__).with_name("sentences.toml").read_text(encoding="utf-8"))


def figures(one: dict[str, Any]) -> tuple[Figure, ...]:
    return tuple(
        Figure(name, value, limit[0] if limit else None, unit)
        for name, value, unit, *limit in one.get("figures", ())
    )


def fact(one: dict[str, Any]) -> Fact:
    gpu = PEER if "gpu" in one else None
    return Fact(FactKind(one["kind"]), figures(one), tuple(one.get("names", ())), gpu)


def finding(one: dict[str, Any]) -> Finding:
    severity, gpu = Severity(one.get("severity", "warning")), GPU if "gpu" in one else None
    names = tuple(one.get("names", ()))
    return Finding(one["kind"], severity, gpu, one.get("device", ""), figures(one), names)


FACT_TEXTS = {one["text"]: fact(one) for one in TEXTS["facts"]}
FINDING_TEXTS = {one["text"]: finding(one) for one in TEXTS["findings"]}


@pytest.mark.parametrize("text", FACT_TEXTS)
def test_a_fact_is_said_as_far_as_it_is_known(text: str) -> None:
    assert fact_text(FACT_TEXTS[text]) == text
    assert json.loads(json.dumps(fact_document(FACT_TEXTS[text])))["sentence"] == text


@pytest.mark.parametrize("text", FINDING_TEXTS)
def test_a_finding_is_said_with_its_gpu(text: str) -> None:
    found = FINDING_TEXTS[text]
    assert finding_text(found) == text
    unnamed = text.removeprefix("GPU 3: ").replace("-i 3", "-i GPU")
    assert finding_text(found, named=False) == unnamed


def test_sentences_of_facts_fit_several_gpus() -> None:
    of_one = re.compile(r"\bits (?!limit|maximum|highest|power)")
    assert [parts for parts in FACTS.values() if of_one.search("".join(parts))] == []


def test_only_the_worst_pairs_are_named() -> None:
    pairs = tuple(count(f"gpu0-gpu{n}", 0, 1) for n in range(1, 8))
    text = finding_text(Finding("wrong_pairs", WARNING, figures=pairs))
    assert text.endswith("; 3 more pairs differ")


def test_a_verdict_is_reported_in_words_and_in_values() -> None:
    pair = State.STARVED, Cause.PEER
    verdict = Verdict(
        *pair,
        SignalQuality.GPM,
        {pair: 0.75, BUSY: 0.25},
        since=90.0,
        evidence=(Fact(FactKind.SLOW_PEER, (share("peer_activity", 0.16),), gpu=PEER),),
        doubts=(Fact(FactKind.WITHOUT_GPM),),
        waits_for=PEER,
    )
    words = verdict_document(verdict, 100.0)
    why = "waiting for GPU 0 of the same job, active 16 % of the time"
    assert words["sentence"] == f"starved by a slow peer: {why}"
    assert (words["seconds"], words["evidence"], len(words["doubts"])) == (10.0, [why], 1)
    values = json.loads(json.dumps(words))
    assert values["shares"] == {"starved/peer": 0.75, "busy/none": 0.25}
    assert values["waits_for"] == "GPU-0"
    assert values["facts"][0]["figures"] == {
        "peer_activity": {"value": 0.16, "limit": None, "unit": "ratio"}
    }


@pytest.mark.parametrize(
    ("names", "causes"),
    [
        (("hardware_slowdown", "hardware_thermal"), (Cause.THERMAL,)),
        (("hardware_slowdown", "power_brake"), (Cause.POWER,)),
        (("hardware_slowdown",), (Cause.THERMAL, Cause.POWER)),
    ],
)
def test_low_clocks_have_the_cure_of_their_state(
    names: tuple[str, ...], causes: tuple[Cause, ...]
) -> None:
    found = Finding("clocks_held_down", Severity.WARNING, GPU, names=names)
    assert action(found) == " ".join(ADVICE[State.THROTTLED, cause] for cause in causes)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        *((59, "50 s"), (900, "15 min"), (3600, "1 h"), (78 * 60, "1 h 18 min")),
        *((11_100, "3 h 5 min"), (86_399, "23 h 59 min"), (187_300, "2 d 4 h")),
    ],
)
def test_durations_have_two_units_from_an_hour_on(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_the_first_step_names_its_disk() -> None:
    found = Finding("disk_smart", Severity.WARNING, device="nvme0n1", names=("temperature",))
    assert "smartctl -a /dev/nvme0n1" in action(found)


@pytest.mark.parametrize(("share", "words"), [(0.0, "0 %"), (0.009, "< 1 %"), (0.01, "1 %")])
def test_only_nothing_is_zero_per_cent(share: float, words: str) -> None:
    assert percent(share) == words
