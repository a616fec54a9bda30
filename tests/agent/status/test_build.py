"""The status of simulated machines: the same for all who ask, and sound in its parts."""

import msgspec
import pytest

from agent.status.model import Level
from tests.support.machine_controls import lose
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
    assert len(ids) == len(status.findings)
    rows = {gpu.gpu for gpu in status.gpus}
    assert sorted(n for group in status.groups for n in group.gpus) == sorted(rows)
    assert all(ids.issuperset(clause.findings) for clause in status.headline)
    assert all(one.hidden_by is None or one.hidden_by in ids for one in status.findings)
    assert all(gpu.text for gpu in status.gpus)
    grave = any(one.level is Level.CRITICAL for one in status.findings)
    assert (status.level is Level.CRITICAL) >= grave
    assert (status.sound is None) == bool(status.findings)


def test_all_that_a_lost_gpu_causes_is_folded_under_it() -> None:
    status = shown("dgx-h100:xid-79", gpus=2).run(40).status
    open_ones = [one for one in status.findings if one.hidden_by is None]
    assert [one.kind for one in open_ones] == ["gpu_lost"]
    assert {"xid", "values_absent"} <= {one.kind for one in status.findings}


def test_a_gpu_that_was_never_met_is_a_device_of_its_finding() -> None:
    machine = shown("dgx-h100:training", gpus=2)
    lose(machine.bench.machine, 1)
    findings = {one.kind: one for one in machine.run(15).status.findings}
    assert findings["gpus_missing"].devices == ("gpu1",)


def test_work_beside_a_critical_finding_is_neither_good_nor_the_fault() -> None:
    status = shown("dgx-h100:training+xid-48", gpus=2).run(15).status
    work = status.headline[-1]
    assert (work.text, work.level) == ("2 GPUs busy", None)
    assert [gpu.level for gpu in status.gpus] == [Level.CRITICAL, Level.GOOD]
    assert status.level is Level.CRITICAL
