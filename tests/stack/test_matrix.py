"""The short form of the matrix: one message for one fault, and none for a healthy machine."""

import re

import pytest

from tests.stack.matrix import MATRIX, SHORT, instance, play
from tests.support.nightly import NIGHTLY

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]


@NIGHTLY
def test_exactly_the_alerts_of_each_fault_arrive() -> None:
    wanted = {machine: MATRIX[machine] for machine in SHORT}
    came, inbox = play(wanted)
    assert came == {machine: set(alerts) for machine, alerts in wanted.items()}
    shown = [d for machine in SHORT for d in inbox.of(instance(machine)) if d.status == "firing"]
    assert all(re.search(r"\(limit|agent on|successful", d.text) for d in shown)
    assert all(d.instance in d.text for d in shown)


def test_the_matrix_is_as_long_as_it_must_be() -> None:
    assert sum(bool(alerts) for alerts in MATRIX.values()) >= 40
