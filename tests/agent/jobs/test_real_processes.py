"""The workload of real processes of this machine, and the cost of reading many."""

import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from agent.clock import SystemClock
from agent.hardware.host import Logins, real_host
from agent.jobs.allocation import Allocations
from agent.model import Reading
from agent.polling.gpu_state import GpuProcesses
from agent.polling.reads import ReadCosts, perform
from agent.sources import workload as work
from agent.sources.context import HostOptions
from tests.support.call_count import calls_of
from tests.support.kernel_counters import Mark, between, marked
from tests.support.patience import PATIENCE
from tests.support.process_tree import GPU, of

READINGS = 6
BETWEEN = 0.5  # seconds
TICK = 0.01
"""Seconds of CPU time that the kernel counts by."""

BURN = "print('burns', flush=True)\nwhile True: pass"
SLEEP = "import time\nprint('sleeps', flush=True)\ntime.sleep(600)"
MOST_CALLS = 6_000
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
    with launched(BURN, SLEEP, WAIT) as launcher:
        burner, sleeper, waiter = launcher.children()
        wait_until(lambda: sleeper.status() == psutil.STATUS_SLEEPING)
        wait_until(lambda: waiter.status() == psutil.STATUS_DISK_SLEEP)
        gpu_processes.set_processes(GPU, (launcher.pid,))
        read, burnt, spent = reader(gpu_processes), [], []
        for _ in range(READINGS):  # the first is forgotten by the last
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
            gpu_processes.set_processes((str(number), f"GPU-{number}"), (launcher.pid,))
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
