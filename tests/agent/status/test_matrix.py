"""Every scenario with every fault, as status and JSON, and a third on the terminal."""

import pytest

from tests.support.matrix import PAIRS, check, check_terminal, played, tried


@pytest.mark.parametrize("name", tried(PAIRS))
def test_a_scenario_with_a_fault_is_laid_out(name: str) -> None:
    machine = played(name)
    check(machine.status)
    if PAIRS.index(name) % 3 == 0:
        check_terminal(machine.look)
