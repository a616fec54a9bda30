"""The workload of real processes of this machine, the cost of reading many, and which processes of
several users, namespaces and control groups are one job."""

import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent.clock import SystemClock
from agent.hardware.files import RealFiles
from agent.hardware.host import Logins, real_host
from agent.jobs.allocation import Allocations
from agent.jobs.process_table import ProcessTable
from agent.model import Reading
from agent.polling.gpu_state import GpuProcesses
from agent.polling.reads import ReadCosts, perform
from agent.sources import workload as work
from agent.sources.context import HostOptions
from agent.threads import at_once
from tests.support.call_count import calls_of
from tests.support.kernel_counters import Mark, between, marked
from tests.support.patience import PATIENCE
from tests.support.process_tree import GPU, of

BETWEEN = 0.5  # seconds
TICK = 0.01
"""Seconds of CPU time that the kernel counts by."""

SLEEP = "import time\nprint('sleeps', flush=True)\ntime.sleep(600)"
MOST_CALLS = 6_500
CLONE = {"x86_64": 56, "aarch64": 220}
VFORK_SIGCHLD = 0x4000 | 17
WAIT = f"""
import ctypes, time
print('waits', flush=True)
ctypes.CDLL(None).syscall({CLONE.get(platform.machine(), 0)}, {VFORK_SIGCHLD}, 0, 0, 0, 0)
time.sleep(600)
"""
"""The parent of a vfork sleeps uninterruptibly until its child execs or ends."""

LAUNCH = """
import subprocess, sys, threading, time
children = []
def fork():
    children.extend(subprocess.Popen([sys.executable, "-c", code]) for code in sys.argv[1:])
thread = threading.Thread(target=fork)
thread.start()
thread.join()
print("ready", flush=True)
threading.Thread(target=sys.stdin.read).start()  # two threads: one waits, one works by halves
while True:
    until = time.thread_time() + 0.05
    while time.thread_time() < until:
        pass
    time.sleep(0.05)
"""


@contextmanager
def launched(*loaders: str) -> Iterator[psutil.Process]:
    """A launcher with these loaders, all of which have started; all of them end with the block."""
    command = [sys.executable, "-c", LAUNCH, *loaders]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout
        for _ in ("ready", *loaders):  # each says one word
            launcher.stdout.readline()
        root = psutil.Process(launcher.pid)
        try:
            yield root
        finally:
            for process in (*root.children(recursive=True), root):
                process.kill()


def reader(gpu_processes: GpuProcesses) -> Callable[[], Reading]:
    clock = SystemClock()
    (workload,) = work.reads(real_host(), clock, HostOptions(), gpu_processes, Allocations())

    def read_once() -> Reading:
        reading, _ = perform(workload, clock, ReadCosts())
        assert not reading.failure, reading.failure
        return reading

    return read_once


def used(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def counted(marks: Sequence[Mark]) -> Any:
    """Seconds used from the first mark to the last, as far as the kernel's ticks show."""
    least, most = between(marks[0], marks[-1]).counted
    return pytest.approx((least + most) / 2, abs=(most - least) / 2 + 2 * TICK)


@pytest.mark.skipif(platform.machine() not in CLONE, reason="needs the number of clone()")
def test_figures_of_real_processes() -> None:
    gpu_processes, began = GpuProcesses(), time.monotonic()
    with launched("print('burns', flush=True)\nwhile True: pass", SLEEP, WAIT) as launcher:
        burner, sleeper, waiter = launcher.children()
        wait_until(lambda: sleeper.status() == psutil.STATUS_SLEEPING)
        wait_until(lambda: waiter.status() == psutil.STATUS_DISK_SLEEP)
        gpu_processes.by_gpu[GPU] = (launcher.pid,)
        read, burnt, spent = reader(gpu_processes), [], []
        for _ in range(6):  # the first is forgotten by the last
            time.sleep(BETWEEN)
            (reading, by_launcher), by_burner = marked(
                lambda: marked(read, lambda: used(launcher)), lambda: used(burner)
            )
            burnt.append(by_burner)
            spent.append(by_launcher)
    seconds = {s.labels[2:]: s.value for s in reading.samples if s.metric is work.THREADS}
    passed = between(spent[0], spent[-1]).seconds
    assert seconds["working", "running"] == counted(burnt)
    assert seconds["launching", "running"] == counted(spent)
    assert passed[0] <= seconds["working", "blocked"] <= passed[1], "the waiter, at each reading"
    assert seconds["launching", "blocked"] == 0.0
    assert of(reading)[work.WORKERS] == 2
    assert 0.0 < of(reading)[work.BUSIEST] <= 1.0
    assert of(reading)[work.NEWEST_PROCESS_AGE] <= time.monotonic() - began + 2 * TICK


def test_a_look_at_eight_gpus_is_little_work() -> None:
    """Eight launchers with eight loaders each; an idle core reads them in a millisecond."""
    gpu_processes = GpuProcesses()
    several = f"import subprocess as s\n[s.Popen(['sleep', '600']) for _ in range(8)]\n{SLEEP}"
    with launched(*[several] * 8) as above:
        for number, launcher in enumerate(above.children()):
            gpu_processes.by_gpu[str(number), f"GPU-{number}"] = (launcher.pid,)
        read = reader(gpu_processes)
        read()  # meets them
        by_source, calls, readings = [], [], []
        for _ in range(3):
            began = time.thread_time()
            readings.append(read())
            by_source.append(time.thread_time() - began)
            calls.append(calls_of(read))
    print(f"a reading takes {min(by_source) * 1e3:.2f} ms of CPU, {max(calls)} calls")
    assert sum(metric is work.WORKERS for metric, _, _ in readings[-1].samples) == 8
    assert max(calls) < MOST_CALLS


def test_a_name_that_does_not_come_is_not_waited_for() -> None:
    answered = threading.Event()

    def find(uid: int) -> str:
        assert answered.wait(PATIENCE)
        return f"user{uid}"

    logins = Logins(find)
    assert logins.name(77) == "77"
    answered.set()
    wait_until(lambda: logins.name(77) == "user77")


def test_a_user_without_a_name_keeps_the_number() -> None:
    assert Logins().name(4_000_000_000) == "4000000000"
    assert Logins().name(0) == "root"


ADA, EVE = "4242", "4343"
RESTS = "sh", "-c", "echo ready; exec sleep 600"
STARTER = """
import ctypes, subprocess, sys
ctypes.CDLL(None).prctl(15, b"torchrun", 0, 0, 0)  # its name
for line in sys.argv[1:]:
    subprocess.Popen(line.split("|"))
sys.stdin.read()
"""
"""Starts each of its words as a command."""


def run_as(uid: str, *words: str) -> list[str]:
    """A command that waits, as this user, below these commands."""
    become = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups")
    return [*become, *words, *RESTS]


@contextmanager
def started(*commands: Sequence[str], env: Mapping[str, str] | None = None) -> Iterator[list[int]]:
    """The pids of these commands below one starter of ranks, in their order."""
    lines = ["|".join(command) for command in commands]
    with subprocess.Popen(
        [sys.executable, "-c", STARTER, *lines],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **(env or {})},
    ) as starter:
        assert starter.stdout
        for _ in commands:
            starter.stdout.readline()
        pids = sorted(_waiting(starter.pid))
        try:
            yield pids
        finally:
            for pid in pids:
                os.kill(pid, 9)
            starter.kill()


def _waiting(pid: int) -> Iterator[int]:
    """The processes below one that have no children themselves."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for child in children:
        yield from _waiting(int(child))
    if not children:
        yield pid


@contextmanager
def control_group(path: str, pid: int) -> Iterator[None]:
    """A process in a control group of this path, in the first hierarchy that may be written to."""
    hierarchies = (Path("/sys/fs/cgroup"), *sorted(Path("/sys/fs/cgroup").glob("*")))
    top = next(one for one in hierarchies if (one / "cgroup.procs").exists() and _writable(one))
    before = next(
        line.rpartition(":")[2]
        for line in Path("/proc/self/cgroup").read_text().splitlines()
        if line.split(":")[1] in (top.name, f"name={top.name}", "")
    )
    made = [top / Path(*Path(path).parts[: n + 1]) for n in range(len(Path(path).parts))]
    mine = [folder for folder in made if not folder.exists()]
    (top / path).mkdir(parents=True, exist_ok=True)
    (top / path / "cgroup.procs").write_text(str(pid))
    try:
        yield
    finally:
        (top / before.lstrip("/") / "cgroup.procs").write_text(str(pid))
        for folder in reversed(mine):
            folder.rmdir()


def _writable(hierarchy: Path) -> bool:
    try:
        (hierarchy / "dgx-telemetry-probe").mkdir()
    except OSError:
        return False
    (hierarchy / "dgx-telemetry-probe").rmdir()
    return True


def are_one_job(pids: Sequence[int]) -> bool:
    table = ProcessTable(RealFiles(), time.monotonic, lambda: False, at_once)
    table.update({GPU: pids})
    return len({table.key(pid) for pid in pids}) == 1


@pytest.mark.root
@pytest.mark.parametrize(
    ("one", "other", "environment", "is_one"),
    [
        (run_as(ADA), run_as(ADA), {}, True),
        (run_as(ADA), run_as(EVE), {}, False),
        (run_as(ADA, "unshare", "-U"), run_as(ADA, "unshare", "-U"), {}, False),
        (run_as(ADA), run_as(EVE), {"SLURM_JOB_ID": "4242"}, False),
    ],
    ids=["one user", "two users", "two user namespaces", "two users with a number of Slurm"],
)
def test_ranks_of_one_owner_alone_are_one_job(
    one: list[str], other: list[str], environment: dict[str, str], is_one: bool
) -> None:
    with started(one, other, env=environment) as pids:
        assert are_one_job(pids) is is_one


@pytest.mark.root
def test_nor_two_containers_of_root() -> None:
    with ExitStack() as stack:
        pids = stack.enter_context(started(run_as("0"), run_as("0")))
        for pid, digit in zip(pids, "ab", strict=True):
            stack.enter_context(control_group(f"docker/{digit * 64}", pid))
        assert not are_one_job(pids)


SLURM = "system.slice/slurmstepd.scope/job_4242/step_0"


@pytest.mark.root
@pytest.mark.parametrize(
    "group",
    [
        "user.slice/user-4343.slice/slurm-4242.scope",
        "user.slice/user-4343.slice/user@4343.service/slurmstepd.scope/job_4242/step_0",
        SLURM,  # of another user, as after a mistake of root's
    ],
)
def test_no_process_joins_a_job_of_slurm_from_outside(group: str) -> None:
    with ExitStack() as stack:
        ada = stack.enter_context(started(run_as(ADA), run_as(ADA, "unshare", "-U")))
        (eve,) = stack.enter_context(started(run_as(EVE)))
        for pid in ada:
            stack.enter_context(control_group(SLURM, pid))
        stack.enter_context(control_group(group, eve))
        assert are_one_job(ada)
        assert not are_one_job([ada[0], eve])
