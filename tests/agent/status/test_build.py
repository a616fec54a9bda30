"""The status of simulated machines: the same for all who ask, and sound in its parts."""

import msgspec
import pytest

from agent.status.model import Level
from tests.support.statuses import shown

MACHINES = (
    "dgx-station-v100:checkpoint",
    "dgx-h100:hang+xid-79",
    "dgx-1-v100:starved-network",
    "titan-x-pascal:gpu-hot",
    "sixteen:training",
)


@pytest.mark.parametrize("name", MACHINES)
def test_a_status_asked_for_each_second_is_that_of_one_asked_once(name: str) -> None:
    often, once = shown(name), shown(name)
    for _ in range(20):
        often.run(2)
        often.board.json()
    once.run(40)
    assert msgspec.json.decode(often.board.json()) == msgspec.json.decode(once.board.json())


@pytest.mark.parametrize("name", MACHINES)
def test_the_parts_of_a_status_fit_one_another(name: str) -> None:
    status = shown(name).run(40).status
    ids = {one.id for one in status.findings}
    rows = {gpu.gpu for gpu in status.gpus}
    assert sorted(n for group in status.groups for n in group.gpus) == sorted(rows)
    assert all(ids.issuperset(clause.findings) for clause in status.headline)
    assert all(one.hidden_by is None or one.hidden_by in ids for one in status.findings)
    assert all(gpu.text for gpu in status.gpus)
    grave = any(one.level is Level.CRITICAL for one in status.findings)
    assert (status.level is Level.CRITICAL) >= grave
    assert (status.sound is None) == bool(status.findings)
