"""Odd machines are laid out as status, JSON and text, none with a traceback."""

import pytest

from tests.support.bad_input import BAD_INPUT
from tests.support.matrix import check, check_terminal

SECONDS = 8


@pytest.mark.parametrize("name", BAD_INPUT)
def test_an_odd_machine_is_laid_out(name: str) -> None:
    machine = BAD_INPUT[name]().run(SECONDS)
    check(machine.status)
    check_terminal(machine.look)
    for gpu in machine.status.gpus:
        stood = (machine.status.at - gpu.since).total_seconds() if gpu.since else 0.0
        assert stood <= SECONDS + 8, "longer than anybody looked"
    for group in machine.status.groups:
        assert " min" not in group.text
