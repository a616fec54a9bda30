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

UNITS = tomllib.loads(Path(__file__).with_name("xids.toml").read_text("utf-8"))["units"]
RESET = (46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158)
IGNORE = (14, 37, 38, 43, 44, 66, 67, 93, 106, 107, 108, 121, 137, 141, 152, 153, 160, 161)
PROGRAM = (11, 13, 25, 31, 69, 80)
RESTART = (
    *(8, 32, 39, 40, 41, 60, 68, 70, 71, 72, 75, 76, 77, 82, 83, 84, 85, 86, 88, 89),
    *(*range(96, 106), *range(126, 136), 139),
)
FIRST_STEPS = {
    r"owners end jobs that hang\), .*reset the GPU .*that fails, reboot": (*RESET, 61, 150),
    "^No action is needed": (*IGNORE, 162, 163),
    "^This can wait. If the error returns within days": (92, 157),
    "the program is at fault": PROGRAM,
    "^Tell the job's owner to restart the job. If the error returns on this GPU": RESTART,
    "^Tell the owner of the affected job .*other jobs continue. Reset": (94,),
    "restart the GPU's virtual machine": (151,),
    "^This can wait. During the day, drain the node, let its jobs end, and reset": (63,),
    "results are in doubt: .*ECC,ROW_REMAPPER": (48,),
    "^Act on XID 48": (171, 172),
    "^If a job was killed, no action is needed": (45,),
    "this GPU cannot be reset": (79,),
    "reset all GPUs .*without -i": (74,),
    "unless XID 154 follows": range(144, 150),
    "Recovery Action": (154,),
    "unified memory": (159,),
    "enable ECC": (168,),
    "auxiliary power": (54,),
    "host and guest": (78,),
}
"""What a first step says, and the codes for which NVIDIA's catalogue says so; typed by hand from
its immediate and investigatory actions, and its trigger conditions where these differ."""


@pytest.mark.parametrize(("words", "codes"), FIRST_STEPS.items())
def test_the_first_step_fits_each_of_its_codes_and_no_other(words: str, codes: list[int]) -> None:
    having = {c for c, m in catalogue().items() if re.search(words, first_steps()[m.action])}
    assert having == {*codes}


def test_critical_codes_are_those_that_need_a_reset_or_more() -> None:
    assert set(critical()) == {*RESET, 48, 54, 61, 74, 79, 150, 151}
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
