"""The sentences: one for each kind, from values alone, and nothing said that is not known."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from agent.diagnosis.advice import ADVICE
from agent.diagnosis.facts import FactKind
from agent.faults.findings import USUAL, action, by_kind
from agent.faults.model import Finding
from agent.jobs.job import percent
from agent.model import Cause, Fact, Figure, GpuKey, Severity, State
from agent.status.words import FACTS, duration, fact_text, finding_text

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
    fault = by_kind(USUAL)[one["kind"]]
    return Finding(fault, severity, gpu, one.get("device", ""), figures(one), names)


FACT_TEXTS = {one["text"]: fact(one) for one in TEXTS["facts"]}
FINDING_TEXTS = {one["text"]: finding(one) for one in TEXTS["findings"]}


@pytest.mark.parametrize("text", FACT_TEXTS)
def test_a_fact_is_said_as_far_as_it_is_known(text: str) -> None:
    assert fact_text(FACT_TEXTS[text]) == text


@pytest.mark.parametrize("text", FINDING_TEXTS)
def test_a_finding_is_said_as_far_as_it_is_known(text: str) -> None:
    assert finding_text(FINDING_TEXTS[text]) == text


def test_sentences_of_facts_fit_several_gpus() -> None:
    of_one = re.compile(r"\bits (?!limit|maximum|highest|power)")
    assert [parts for parts in FACTS.values() if of_one.search("".join(parts))] == []


def test_only_the_worst_pairs_are_named() -> None:
    pairs = tuple(count(f"gpu0-gpu{n}", 0, 1) for n in range(1, 8))
    text = finding_text(Finding(by_kind(USUAL)["wrong_pairs"], WARNING, figures=pairs))
    assert text.endswith("; 3 more pairs differ")


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
    found = Finding(by_kind(USUAL)["clocks_held_down"], WARNING, GPU, names=names)
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
    found = Finding(by_kind(USUAL)["disk_smart"], WARNING, device="nvme0n1")
    assert "smartctl -a /dev/nvme0n1" in action(found)


@pytest.mark.parametrize(("share", "words"), [(0.0, "0 %"), (0.009, "< 1 %"), (0.01, "1 %")])
def test_only_nothing_is_zero_per_cent(share: float, words: str) -> None:
    assert percent(share) == words
