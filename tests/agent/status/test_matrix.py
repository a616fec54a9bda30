"""Odd machines, and every scenario with every fault, are laid out as status, JSON and text."""

from pathlib import Path

import msgspec
import pytest

from agent.status.model import Status
from tests.support.matrix import BAD_INPUT, PAIRS, check, check_terminal, played, tried


@pytest.mark.parametrize("name", tried(PAIRS))
def test_a_scenario_with_a_fault_is_laid_out(name: str) -> None:
    machine = played(name)
    check(machine.status)
    if PAIRS.index(name) % 3 == 0:
        check_terminal(machine.look)


SECONDS = 6


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


def test_the_example_is_a_whole_status() -> None:
    text = Path(__file__).with_name("example.json").read_bytes()
    status = msgspec.json.decode(text, type=Status)
    assert msgspec.json.decode(msgspec.json.encode(status)) == msgspec.json.decode(text)
