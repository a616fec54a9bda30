"""The catalogue of XID errors: the codes and first actions that the owners rely on."""

import re
import tomllib
from pathlib import Path

import pytest

from agent.model import Severity
from agent.specs.xids import (
    NVLINK5,
    catalogue,
    critical,
    first_steps,
    meaning,
    name,
    nvlink5_action,
)

CASES = tomllib.loads(Path(__file__).with_name("xids.toml").read_text("utf-8"))
UNITS, FIRST_STEPS = CASES["units"], CASES["first_steps"]
RESET, IGNORE, _, PROGRAM, RESTART, *_ = FIRST_STEPS.values()


@pytest.mark.parametrize(("words", "codes"), FIRST_STEPS.items())
def test_the_first_step_fits_each_of_its_codes_and_no_other(words: str, codes: list[int]) -> None:
    having = {c for c, m in catalogue().items() if re.search(words, first_steps()[m.action])}
    assert having == {*codes}


def test_critical_codes_are_those_that_need_a_reset_or_more() -> None:
    assert set(critical()) == {*RESET, 48, 54, 74, 79, 151}
    assert {meaning(c).severity for c in (*IGNORE, *PROGRAM, *RESTART)} == {Severity.INFO}


def test_every_code_is_there_once_and_explained() -> None:
    assert sorted(catalogue()) == list(range(1, 173))
    assert {m.action for m in catalogue().values()} == {*first_steps()}
    assert {*first_steps("happened")} == {*first_steps()}
    assert all(m.source.startswith("[") for m in catalogue().values())


def test_a_code_that_is_not_there_is_somebodys_business() -> None:
    assert (meaning(999).severity, meaning(999).action) == (Severity.WARNING, "service")


def test_older_gpus_retire_pages() -> None:
    assert "page retirement" in name(63, "pascal")
    assert "page retirement" in name(63, "volta")
    assert "remapping" in name(63, "ampere")
    assert name(79, "volta") == name(79, "hopper")


@pytest.mark.parametrize(("unit", "fatal", "first", "status", "action"), UNITS)
def test_nvlink_5_is_reported_by_unit(
    unit: str, fatal: bool, first: int, status: int, action: str
) -> None:
    assert nvlink5_action(unit, fatal=fatal, first=first, status=status) == action
    assert {meaning(code).action for code in NVLINK5} == {"by_unit", "reset"}
