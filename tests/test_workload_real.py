"""The workload of real processes of this machine, and the price of a look at many."""

import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from agent.backends.host import real_host
from agent.backends.logins import Logins
from agent.clock import SystemClock
from agent.model import Reading
from agent.reads import Ledger, perform
from agent.sources import workload as work
from agent.sources.options import HostOptions
from agent.workload.occupants import Occupants
from tests.process_tree import GPU, labels_of, of

LOOKS = 6
BETWEEN = 0.5  # seconds

BURN = "while True: pass"
SLEEP = "import time; time.sleep(60)"
CLONE = {"x86_64": 56, "aarch64": 220}
VFORK_SIGCHLD = 0x4000 | 17
WAIT = f"""
import ctypes, time
ctypes.CDLL(None).syscall({CLONE.get(platform.machine(), 0)}, {VFORK_SIGCHLD}, 0, 0, 0, 0)
time.sleep(60)
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
    """A launcher with these loaders; all of them end with the block."""
    command = [sys.executable, "-c", LAUNCH, *loaders]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout
        launcher.stdout.readline()
        root = psutil.Process(launcher.pid)
        try:
            yield root
        finally:
            for process in (*root.children(recursive=True), root):
                process.kill()


def looking(occupants: Occupants) -> Callable[[], Reading]:
    clock = SystemClock()
    (read,) = work.reads(real_host(), clock, HostOptions(), occupants)

    def look() -> Reading:
        reading, _ = perform(read, clock, Ledger())
        assert not reading.failure, reading.failure
        return reading

    return look


def used(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@pytest.mark.skipif(platform.machine() not in CLONE, reason="needs the number of clone()")
def test_figures_of_real_processes() -> None:
    occupants = Occupants()
    with launched(BURN, SLEEP, WAIT) as launcher:
        time.sleep(1.5)  # until the interpreters have started
        occupants.settle(GPU, (launcher.pid,))
        look = looking(occupants)
        burner = launcher.children()[0]
        look()  # forgotten by the last: a window holds five
        before, launcher_before, began = used(burner), used(launcher), time.monotonic()
        for _ in range(LOOKS - 1):
            reading = look()
            time.sleep(BETWEEN)
        seconds = time.monotonic() - began
        burnt, spent = used(burner) - before, used(launcher) - launcher_before
    figures = of(reading)
    assert figures[work.LOADERS] == 2
    assert figures[work.LOADERS_WAITING] == pytest.approx(0.5, abs=0.01)
    assert figures[work.LOADERS_CORES] == pytest.approx(burnt / seconds, abs=0.15)
    assert figures[work.LOADERS_RUNNING] == pytest.approx(0.5, abs=0.1)
    assert figures[work.LAUNCHER_CORES] == pytest.approx(spent / seconds, abs=0.15)
    assert figures[work.LAUNCHER_WAITING] == 0
    assert 1 <= figures[work.ALLOWED_CORES] <= (psutil.cpu_count() or 1)
    assert figures[work.LIVES] < 60


def test_two_launchers_of_this_test_are_one_job() -> None:
    """Both are children of the same program, as the ranks of torchrun are."""
    occupants = Occupants()
    with launched() as one, launched() as other:
        for number, process in enumerate((one, other)):
            occupants.settle((str(number), f"GPU-{number}"), (process.pid,))
        jobs = labels_of(looking(occupants)(), work.JOB)
    assert len({labels[-1] for labels in jobs}) == 1


def test_a_launcher_that_has_ended_is_said_to_be_hidden_not_idle() -> None:
    with launched() as launcher:
        pid = launcher.pid
    occupants = Occupants()
    occupants.settle(GPU, (pid,))
    reading = looking(occupants)()
    assert reading.samples == ()
    assert all(f"process {pid} " in absence.detail for absence in reading.absences)


def test_a_look_at_eight_gpus_costs_less_than_two_milliseconds() -> None:
    """Eight launchers with eight loaders each; CPU time, the best of twenty looks: others work on
    this machine too."""
    occupants = Occupants()
    sleeper = f"import subprocess as s\n[s.Popen(['sleep', '60']) for _ in range(8)]\n{SLEEP}"
    with launched(*[sleeper] * 8) as above:
        deadline = time.monotonic() + 20
        while len(above.children(recursive=True)) < 72 and time.monotonic() < deadline:
            time.sleep(0.1)
        for number, launcher in enumerate(above.children()):
            occupants.settle((str(number), f"GPU-{number}"), (launcher.pid,))
        look = looking(occupants)
        prices = []
        for _ in range(21):
            began = time.thread_time()
            reading = look()
            prices.append(time.thread_time() - began)
    assert sum(metric is work.LOADERS for metric, _, _ in reading.samples) == 8
    assert min(prices) < 2e-3, prices


def test_a_name_that_does_not_come_is_not_waited_for() -> None:
    answered = threading.Event()

    def find(uid: int) -> str:
        assert answered.wait(10)
        return f"user{uid}"

    logins = Logins(find)
    assert logins.name(77) == "77"
    answered.set()
    deadline = time.monotonic() + 10
    while logins.name(77) == "77" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert logins.name(77) == "user77"


def test_a_user_without_a_name_keeps_the_number() -> None:
    assert Logins().name(4_000_000_000) == "4000000000"
    assert Logins().name(0) == "root"
