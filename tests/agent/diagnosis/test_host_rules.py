"""What the host shows says nothing of a job that does nothing, or that its own cgroup clears."""

import pytest

from agent.diagnosis.rules import cause_of
from tests.agent.diagnosis.test_rules import HOST_LOADS, SERVER, SOME, UNKNOWN, stalled
from tests.support.evidence import evidence


@pytest.mark.parametrize("load", HOST_LOADS)
def test_nobody_who_does_nothing_starves_by_anothers_load(load: str) -> None:
    figures, wires = HOST_LOADS[load]
    assert cause_of(evidence({**SOME, **figures}, wires))[0] is not UNKNOWN
    assert cause_of(evidence({**SERVER, **figures}, wires))[0] is UNKNOWN


@pytest.mark.parametrize(("resource", "load"), [("io", "backup"), ("cpu", "cores")])
def test_its_own_cgroup_clears_the_host(resource: str, load: str) -> None:
    figures, wires = HOST_LOADS[load]
    cleared = {**SOME, **figures, **stalled(resource, 0.09)}
    assert cause_of(evidence(cleared, wires))[0] is UNKNOWN
    not_cleared = {**SOME, **figures, **stalled(resource, 0.11)}
    assert cause_of(evidence(not_cleared, wires))[0] is not UNKNOWN
