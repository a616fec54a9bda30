"""Threads, processes and cgroups of simulated jobs: as the kernel writes them, and consistent."""

from itertools import pairwise

import pytest

from agent.simulator import SimulatedSystem
from agent.simulator.procfs import device_number
from tests.support.frozen_clock import FrozenClock
from tests.support.machine_controls import lose, start_process
from tests.support.simulated_machine import gpm, start

CGROUP = "/sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope"


def read(machine: SimulatedSystem, path: str) -> str:
    return machine.host.files.read(path)


def trainer(machine: SimulatedSystem, index: int = 0) -> int:
    return machine.gpus[index].processes[0].pid


def threads(machine: SimulatedSystem, pid: int) -> list[int]:
    return [int(name) for name in machine.host.files.names(f"/proc/{pid}/task")]


def fields(machine: SimulatedSystem, path: str) -> list[str]:
    """The fields of a stat file after the name: state, parent, ..."""
    return read(machine, path).rpartition(")")[2].split()


def counts(text: str) -> dict[str, int]:
    """A file of lines such as `usage_usec 12` or `rchar: 12`."""
    return {key.rstrip(":"): int(value) for key, value in map(str.split, text.splitlines())}


def states(
    machine: SimulatedSystem, clock: FrozenClock, path: str, readings: int = 400
) -> dict[str, float]:
    """Share of readings at which each state was found."""
    found = []
    for _ in range(readings):
        clock.advance(0.05)
        found.append(fields(machine, path)[0])
    return {state: found.count(state) / readings for state in "RDS"}


def test_threads_decode_and_queue_for_too_few_cores() -> None:
    machine, clock = start("dgx-h100:threads", 5.0)
    pid = trainer(machine, 1)
    names = {t: read(machine, f"/proc/{pid}/task/{t}/comm").strip() for t in threads(machine, pid)}
    assert sorted(names.values()) == [
        "cuda-EvtHandlr",
        *["decoder"] * 6,
        "pt_autograd_0",
        "python3",
    ]
    decoder = next(t for t, name in names.items() if name == "decoder")
    before = list(map(int, read(machine, f"/proc/{pid}/task/{decoder}/schedstat").split()))
    shares = states(machine, clock, f"/proc/{pid}/task/{decoder}/stat")
    ran, queued, _ = (
        int(now) - then
        for now, then in zip(
            read(machine, f"/proc/{pid}/task/{decoder}/schedstat").split(), before, strict=True
        )
    )
    assert (ran / 20e9, queued / 20e9) == pytest.approx((0.62, 0.35), abs=1e-6)
    assert shares["R"] == pytest.approx(0.97, abs=0.03)
    assert fields(machine, f"/proc/{pid}/stat")[1] == str(
        fields(machine, f"/proc/{trainer(machine)}/stat")[1]
    )
    assert read(machine, f"/proc/{pid}/schedstat") == read(
        machine, f"/proc/{pid}/task/{pid}/schedstat"
    )


def test_a_process_uses_what_its_threads_use() -> None:
    machine, clock = start("dgx-h100:threads", 5.0)
    pid = trainer(machine)

    def ticks(path: str) -> int:
        return sum(map(int, fields(machine, path)[11:13]))

    paths = [f"/proc/{pid}/task/{t}/stat" for t in threads(machine, pid)]
    whole, parts = ticks(f"/proc/{pid}/stat"), sum(map(ticks, paths))
    clock.advance(50.0)
    cores = (ticks(f"/proc/{pid}/stat") - whole) / 5000
    assert cores == pytest.approx(0.15 + 0.12 + 6 * 0.62, abs=0.01)
    assert (sum(map(ticks, paths)) - parts) / 5000 == pytest.approx(cores, abs=0.01)


@pytest.mark.parametrize("system", ["dgx-1-v100", "dgx-h200", "gtx-1080"])
def test_a_checkpoint_writes_and_is_never_at_rest(system: str) -> None:
    machine, clock = start(f"{system}:checkpoint", 20.0)
    pid = trainer(machine)
    shares = states(machine, clock, f"/proc/{pid}/stat")
    assert shares["D"] == pytest.approx(0.90, abs=0.03)
    before = counts(read(machine, f"/proc/{pid}/io"))
    disks = machine.host.psutil.disk_io_counters()[machine.system.data].write_bytes
    cgroup, before_stalled = io_stat(machine), stalled(machine)
    clock.advance(20.0)
    after = counts(read(machine, f"/proc/{pid}/io"))
    written = (after["wchar"] - before["wchar"]) * len(machine.gpus)
    speed = machine.system.data_speed
    assert written / 20 == pytest.approx(0.5 * speed, rel=0.01)
    assert after["rchar"] == before["rchar"]
    on_disks = machine.host.psutil.disk_io_counters()[machine.system.data].write_bytes - disks
    assert on_disks == pytest.approx(written, rel=0.01)
    of_cgroup = {device: now - cgroup[device] for device, now in io_stat(machine).items()}
    members = [device_number(disk.name) for disk in machine.system.data_disks]
    assert sum(of_cgroup[member] for member in members) == pytest.approx(written, rel=0.01)
    assert stalled(machine) - before_stalled == pytest.approx(0.9 * 20e6, rel=0.01)


def stalled(machine: SimulatedSystem) -> int:
    """Microseconds that a task of the job has waited for a disk."""
    return int(read(machine, f"{CGROUP}/io.pressure").partition("total=")[2].split()[0])


def io_stat(machine: SimulatedSystem) -> dict[str, int]:
    """Bytes written by device."""
    rows = (line.split() for line in read(machine, f"{CGROUP}/io.stat").splitlines())
    return {
        device: next(int(v[7:]) for v in values if v.startswith("wbytes="))
        for device, *values in rows
    }


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


def test_bytes_of_a_network_file_system_are_no_bytes_of_disks() -> None:
    machine, clock = start("dgx-a100:starved-network", 5.0)
    loader = next(t.loaders[0].pid for t in machine.jobs.teams)
    before = counts(read(machine, f"/proc/{loader}/io"))["rchar"]
    network = received(machine, loader)
    local = sum(d.read_bytes for d in machine.host.psutil.disk_io_counters().values())
    clock.advance(10.0)
    arrived = received(machine, loader) - network
    through = (counts(read(machine, f"/proc/{loader}/io"))["rchar"] - before) * 8 * 6
    assert arrived / 10 == pytest.approx(0.96 * 12.5e9, rel=0.01)
    assert through == pytest.approx(arrived, rel=0.02)
    assert "nfs4" in read(machine, "/proc/mounts")
    now = sum(d.read_bytes for d in machine.host.psutil.disk_io_counters().values())
    assert now - local < 0.01 * arrived


def received(machine: SimulatedSystem, pid: int) -> int:
    """Bytes received by the first NIC, as a process sees it."""
    rows = read(machine, f"/proc/{pid}/net/dev").splitlines()[2:]
    name = machine.system.nics[0].name
    return int(next(r.split(":")[1].split()[0] for r in rows if r.strip().startswith(name)))


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


def test_in_a_hang_one_rank_sleeps_and_the_others_spin() -> None:
    machine, clock = start("dgx-h200:hang", 11.0)
    asleep = [states(machine, clock, f"/proc/{trainer(machine, n)}/stat")["S"] for n in range(4)]
    assert [share > 0.9 for share in asleep] == [False, True, False, False]


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
