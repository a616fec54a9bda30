"""Threads, processes and cgroups of simulated jobs: as the kernel writes them, and consistent."""

from itertools import pairwise

import pytest

from agent.simulator import SimulatedSystem
from tests.support.frozen_clock import FrozenClock
from tests.support.machine_controls import lose, start_process
from tests.support.simulated_machine import gpm, start


def read(machine: SimulatedSystem, path: str) -> str:
    return machine.host.files.read(path)


def trainer(machine: SimulatedSystem, index: int = 0) -> int:
    return machine.gpus[index].processes[0].pid


def fields(machine: SimulatedSystem, path: str) -> list[str]:
    """The fields of a stat file after the name: state, parent, ..."""
    return read(machine, path).rpartition(")")[2].split()


def states(
    machine: SimulatedSystem, clock: FrozenClock, path: str, readings: int = 400
) -> dict[str, float]:
    """Share of readings at which each state was found."""
    found = []
    for _ in range(readings):
        clock.advance(0.05)
        found.append(fields(machine, path)[0])
    return {state: found.count(state) / readings for state in "RDS"}


def test_a_checkpoint_shows_in_any_100_seconds() -> None:
    machine, clock = start("dgx-h100:checkpoint")
    pid = trainer(machine)
    active = []
    for _ in range(300):
        (activity,) = gpm(machine, clock, 1.0, 1)
        active.append(activity > 50)
    assert trainer(machine) == pid, "one job trains, saves, and trains on"
    shares = [sum(active[at : at + 100]) / 100 for at in range(200)]
    assert (min(shares), max(shares)) == pytest.approx((0.15, 0.25), abs=0.02)


def test_a_server_without_requests_spins_and_answers_now_and_then() -> None:
    machine, clock = start("dgx-h100:no-demand", 5.0)
    pid = trainer(machine)
    assert states(machine, clock, f"/proc/{pid}/stat")["R"] == 1.0
    assert fields(machine, f"/proc/{pid}/stat")[1] == "1", "no job with the others"
    activity = [gpm(machine, clock, 0.5, 1)[0] for _ in range(600)]
    bursts = [n for n, share in enumerate(activity) if share]
    assert all(any(at <= n < at + 200 for n in bursts) for at in range(400))
    assert 0.005 < sum(activity) / 600 / 100 < 0.03
    gaps = {b - a for a, b in pairwise(bursts) if b - a > 2}
    assert len(gaps) > 5


def test_parts_of_a_scenario_heal_nothing_and_end_no_process() -> None:
    machine, clock = start("dgx-h100:checkpoint", 5.0)
    lose(machine, 3)
    other = start_process(machine, 1)
    machine.driver.fail("nvmlDeviceGetPowerUsage", 999)
    clock.advance(200.0)
    machine.advance()
    assert machine.gpus[3].lost
    assert [p.pid for p in machine.gpus[1].processes] == [trainer(machine, 1), other]
    assert machine.driver.failures
    machine.set_scenario("checkpoint")
    assert not machine.gpus[3].lost
    assert [p.pid for p in machine.gpus[1].processes] == [trainer(machine, 1)]


def test_who_is_gone_has_no_files() -> None:
    machine, _ = start("dgx-h100:training", 5.0)
    pid = trainer(machine)
    machine.set_scenario("idle")
    for name in ("io", "net/dev", "schedstat", f"task/{pid}/schedstat"):
        with pytest.raises(FileNotFoundError):
            read(machine, f"/proc/{pid}/{name}")
