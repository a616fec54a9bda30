"""Real processes of several users, namespaces and control groups: which of them are one job."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from agent.hardware.files import RealFiles
from agent.jobs.process_table import ProcessTable
from agent.threads import at_once
from tests.support.process_tree import GPU

pytestmark = pytest.mark.root

ADA, EVE = "4242", "4343"
WAIT = "sh", "-c", "echo ready; exec sleep 600"
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
    return [*become, *words, *WAIT]


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


def test_nor_two_containers_of_root() -> None:
    with ExitStack() as stack:
        pids = stack.enter_context(started(run_as("0"), run_as("0")))
        for pid, digit in zip(pids, "ab", strict=True):
            stack.enter_context(control_group(f"docker/{digit * 64}", pid))
        assert not are_one_job(pids)


SLURM = "system.slice/slurmstepd.scope/job_4242/step_0"


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
