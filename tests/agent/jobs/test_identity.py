"""Grouping of processes into jobs, and the names of jobs."""

import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.jobs import identity
from agent.jobs.grouping import COMPARED, JobMember, LockSteps, SentBytes, groups
from agent.jobs.identity import Ancestor, JobLabels, JobOrigin
from agent.jobs.job import GroupedBy
from agent.model import GpuKey
from tests.support.each import of_each

DOCKER = "0123456789abcdef" * 4
POD = "8d3b1c7e_1111_2222_3333_444455556666"
NO_CGROUP = "0::/user.slice/user-1000.slice/session-2.scope\n"


def line(*names: str, group: int = 500, pids: Sequence[int] = (), uid: int = 1000) -> JobOrigin:
    """A process and its ancestors by name, the process first; of one process group."""
    numbers = pids or range(100, 100 - len(names), -1)
    each = zip(numbers, names, strict=True)
    ancestors = tuple(Ancestor(pid, name, group, float(pid), uid) for pid, name in each)
    return JobOrigin(ancestors, "", NO_CGROUP)


UID = POD.replace("_", "-")
CASES = tomllib.loads(Path(__file__).with_name("identity.toml").read_text(encoding="utf-8"))


def filled(text: str) -> str:
    return text.replace("{docker}", DOCKER).replace("{pod}", POD).replace("{uid}", UID)


@pytest.mark.parametrize("case", CASES["roots"])
def test_the_root_of_a_job(case: str) -> None:
    expected = CASES["roots"][case]
    assert identity.root(line(*expected["ancestors"]).line).name == expected["root"]


def test_a_job_ends_below_a_service_of_another_user() -> None:
    mine, service = line("python3", "python3"), line("scheduler", pids=[7], uid=0)
    assert identity.root(mine.line + service.line).pid == 99


def test_an_unknown_user_does_not_end_a_job() -> None:
    unknown = Ancestor(7, "torchrun", 7, 1.0, None)
    assert identity.root((*line("python3").line, unknown)) == unknown


def joined(*origins: JobOrigin) -> list[int]:
    """For each process the first that has the same key."""
    keys = identity.keys({n: identity.group_keys(origin) for n, origin in enumerate(origins)})
    return [min(m for m, key in keys.items() if key == keys[n]) for n in keys]


def ranks(*names: str, groups: Sequence[int] = (500, 500), leader: str = "") -> list[JobOrigin]:
    """Two processes below the same ancestors."""
    return [
        line(*names, group=group, pids=(n, *range(50, 51 - len(names), -1)))._replace(leader=leader)
        for n, group in zip((101, 102), groups, strict=True)
    ]


IN_SLURM = "0::/system.slice/slurmstepd.scope/job_{}/step_0/user/task_1\n"
STARTED = line("python3", "torchrun", group=2, pids=(102, 50)).line
TIED: dict[str, tuple[list[JobOrigin], list[int]]] = {
    "ranks in sessions of their own, by torchrun": (
        ranks("python3", "torchrun", groups=(101, 102)), [0, 0],
    ),
    "ranks in the background of a script, by their group": (
        ranks("python3", "bash", "sshd", leader="bash"), [0, 0],
    ),
    "the same of a script that has ended": (ranks("python3", "bash", "sshd"), [0, 0]),
    "two commands of one shell": (ranks("python3", "bash", groups=(101, 102)), [0, 1]),
    "what a service starts in its own group": (
        ranks("python3", "raylet", leader="raylet"), [0, 1],
    ),
    "one job of Slurm, by its number alone": (
        [one._replace(cgroup=IN_SLURM.format(7)) for one in ranks("python3", "slurmstepd")], [0, 0],
    ),
    "two jobs of Slurm": (
        [one._replace(cgroup=IN_SLURM.format(job)) for one, job in zip(
            ranks("python3", "slurmstepd"), (7, 8), strict=True
        )], [0, 1],
    ),
    "a pid that is used again": (
        [line("python3", "torchrun", group=1, pids=(101, 50)),
         JobOrigin((STARTED[0], STARTED[1]._replace(started=9e5)), "", NO_CGROUP)], [0, 1],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TIED)
def test_what_ties_processes(case: str) -> None:
    origins, expected = TIED[case]
    assert joined(*origins) == expected


@given(st.dictionaries(st.integers(0, 9), st.frozensets(st.sampled_from("abcdefgh"), min_size=1)))
def test_keys_join_whatever_is_tied_directly_or_through_others(
    tied: dict[int, frozenset[str]],
) -> None:
    reached = {one: {one} for one in tied}
    for _ in tied:
        for one in tied:
            near = {o for r in reached[one] for o in tied if tied[r] & tied[o]}
            reached[one] = reached[one] | near
    keys = identity.keys(tied)
    assert keys.keys() == tied.keys()
    assert all((keys[a] == keys[b]) == (b in reached[a]) for a in tied for b in tied)


@of_each(CASES["runtimes"])
def test_what_runs_a_process_stands_in_its_cgroup(case: dict[str, str]) -> None:
    cgroup, job_id = filled(case["cgroup"]), filled(case.get("job_id", ""))
    uids = re.findall(r"uid_(\d+)", cgroup)
    line = (Ancestor(1, "python", 1, 0.0, int(uids[-1]) if uids else 1000),)
    assert identity.runtime(JobOrigin(line, "", cgroup)) == (case["runtime"], job_id)


@pytest.mark.parametrize("cgroup", CASES["forged"]["cgroups"])
def test_a_control_group_that_a_user_can_make_numbers_no_job(cgroup: str) -> None:
    line = (Ancestor(1, "python", 1, 0.0, 1000),)
    assert identity.runtime(JobOrigin(line, "", filled(cgroup))) == ("process", "")


@of_each(CASES["labels"])
def test_labels_of_a_job(case: dict[str, Any]) -> None:
    origin = JobOrigin((), "", filled(case["cgroup"]), case.get("environment", {}))
    expected = JobLabels(**{name: filled(label) for name, label in case["labels"].items()})
    assert identity.job_labels(origin, "train.py:5") == expected


SLURM = "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0"
SLURM_RANK = line("python3", "slurmstepd")._replace(cgroup=SLURM)
RANK = line("python3", "mpirun", pids=(101, 50))._replace(leader="mpirun")
PODS = "0::/kubepods.slice/kubepods-pod{}.slice/crio-{}.scope"
APART: dict[str, tuple[JobOrigin, dict[str, Any]]] = {
    "users below one starter": (RANK, {"line": line("python3", "mpirun", uid=1001).line}),
    "an unknown user": (
        RANK, {"line": (RANK.line[0]._replace(pid=102, uid=None), RANK.line[1])},
    ),
    "user namespaces": (
        RANK._replace(user_namespace="user:[1]"), {"user_namespace": "user:[2]"},
    ),
    "containers": (
        RANK._replace(cgroup=f"0::/system.slice/docker-{DOCKER}.scope"),
        {"cgroup": f"0::/system.slice/docker-{DOCKER[::-1]}.scope"},
    ),
    "a container and the host": (RANK, {"cgroup": f"0::/user.slice/libpod-{DOCKER}.scope"}),
    "containers of LXC": (
        RANK._replace(cgroup="5:cpu:/lxc/one"), {"cgroup": "5:cpu:/lxc/other"},
    ),
    "pods": (
        RANK._replace(cgroup=PODS.format(POD, DOCKER)),
        {"cgroup": PODS.format(POD.replace("8d3b", "0000"), DOCKER)},
    ),
    "users in one job of Slurm": (SLURM_RANK, {"line": line("python3", uid=1001).line}),
}  # fmt: skip


@pytest.mark.parametrize("case", APART)
def test_processes_of_two_owners_are_never_one_job(case: str) -> None:
    one, differs = APART[case]
    assert joined(one, one) == [0, 0]
    assert joined(one, one._replace(**differs)) == [0, 1]
    assert identity.owner(one) != identity.owner(one._replace(**differs))


@pytest.mark.parametrize("command", CASES["programs"])
def test_a_job_is_called_after_its_script_or_module(command: str) -> None:
    assert identity.program(command.split()) == CASES["programs"][command]


def test_titles() -> None:
    origin = line("python3", "torchrun", "bash")
    assert identity.title(origin, ["python3", "torchrun", "train.py"]) == "train.py:99"
    assert identity.title(origin, []) == "torchrun:99"
    in_docker = origin._replace(cgroup=f"0::/docker/{DOCKER}")
    assert identity.title(in_docker, ["train.py"]) == "docker:0123456789ab"


@given(st.lists(st.text(), max_size=6))
def test_a_name_is_short_and_printable_whatever_the_command_line(command: list[str]) -> None:
    name = identity.program(command)
    assert name.isprintable()
    assert len(name) <= 64


def test_conmon_names_a_container_that_has_no_control_group() -> None:
    conmon = ("/usr/bin/conmon", "--api-version", "1", "-c", "4304e9ba" * 8, "-u", "x", "-n", "a")
    found = identity.job_labels(JobOrigin((), "", "0::/user.slice", conmon=conmon), "train.py:1")
    assert (found.runtime, found.job_id, found.container) == ("podman", *["4304e9ba4304"] * 2)
    garbled = JobOrigin((), "", "0::/user.slice", conmon=("conmon", "-c", "../x", "-c"))
    assert identity.job_labels(garbled, "train.py:1").runtime == "process"


@pytest.mark.parametrize(
    "cgroup", ["lxc.payload.4242", "user.slice/user-7.slice/apptainer-4242.scope"]
)
def test_a_container_called_as_a_job_of_slurm_is_another_job(cgroup: str) -> None:
    eve = Ancestor(5, "python3", 5, 1.0, 1002)
    origin = JobOrigin((eve,), "", f"0::/{cgroup}")
    kind = "lxc" if "lxc" in cgroup else "apptainer"
    found = identity.job_labels(origin, "train.py:5")
    assert (found.job_id, found.runtime) == (f"{kind}:4242@1002", kind)
    assert identity.title(origin, ()) == f"{kind}:4242@1002"


GPUS = [GpuKey(index, f"GPU-{index}") for index in range(4)]


def member(gpu: int, pid: int, key: str, owner: str = "ada") -> JobMember:
    return JobMember(GPUS[gpu], pid, key, owner)


def test_a_key_joins_and_another_does_not() -> None:
    two = member(2, 20, "slurm 7"), member(3, 21, "slurm 7")
    found = groups([*two, member(0, 10, "process 1 5"), member(1, 11, "process 1 5")])
    assert [(group.grouped_by, group.gpus) for group in found] == [
        (GroupedBy.ANCESTOR, (GPUS[0], GPUS[1])),
        (GroupedBy.SLURM, (GPUS[2], GPUS[3])),
    ]


def test_gpus_in_lock_step_are_one_job() -> None:
    hidden = [member(gpu, 30 + gpu, f"process {30 + gpu}") for gpu in range(3)]
    found = groups(hidden, lock_step=[{GPUS[0], GPUS[2]}])
    assert [(group.grouped_by, len(group.members)) for group in found] == [
        (GroupedBy.LOCK_STEP, 2),
        (GroupedBy.ALONE, 1),
    ]


def test_a_process_on_several_gpus_is_one_job() -> None:
    (group,) = groups([member(0, 10, "a"), member(1, 10, "a")])
    assert group.gpus == (GPUS[0], GPUS[1])
    assert group.grouped_by is GroupedBy.ALONE


@pytest.mark.parametrize("owners", [("ada", "eve"), ("", "")])
def test_nothing_joins_processes_of_two_owners(owners: tuple[str, str]) -> None:
    """Nor those whose owners are not known."""
    two = [member(gpu, 40 + gpu, f"process {40 + gpu}", owners[gpu]) for gpu in range(2)]
    found = groups(two, [{GPUS[0], GPUS[1]}])
    assert [set(group.pids) for group in found] == [{40}, {41}]


def test_another_owner_in_between_hides_no_job() -> None:
    mine = [member(gpu, 50 + gpu, f"process {50 + gpu}") for gpu in (0, 2)]
    found = groups([*mine, member(1, 51, "process 51", "eve")], [set(GPUS)])
    assert [set(group.pids) for group in found] == [{50, 52}, {51}]


FIRST, SECOND = GpuKey(0, "GPU-0"), GpuKey(1, "GPU-1")
RATE = 3e10
Sent = Callable[[float], float]


def same(at: float) -> float:
    return RATE * at


def in_step(
    one: Sent, other: Sent, *, seconds: int = 180, steps: LockSteps | None = None, apart: float = 0
) -> bool:
    """Return whether both are of one job in the end, by a reading every ten seconds."""
    steps = steps or LockSteps()
    found: list[frozenset[GpuKey]] = []
    for at in range(0, seconds + 1, 10):
        now = {
            FIRST: SentBytes({10}, at, one(at)),
            SECOND: SentBytes({20}, at + apart, other(at + apart)),
        }
        found = list(steps.take(now))
    return found == [frozenset((FIRST, SECOND))]


def test_ranks_send_the_same() -> None:
    assert in_step(same, same)
    assert in_step(same, lambda at: 5e12 + same(at), apart=0.05), "counted since the machine began"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (same, lambda at: 1.001 * RATE * at),  # the same model twice, on GPUs with other clocks
        (lambda _: 0.0, lambda _: 0.0),  # nothing is sent
        (same, lambda _: 0.0),
    ],
)
def test_jobs_apart_stay_apart(one: Sent, other: Sent) -> None:
    assert not in_step(one, other)


def test_minutes_are_needed() -> None:
    assert not in_step(same, same, seconds=int(COMPARED) - 10)


def test_readings_of_different_ticks_are_not_compared() -> None:
    steps = LockSteps()
    for at in range(10, 190, 5):  # each is read every ten seconds, one 5 s after the other
        one, other = at // 10 * 10, (at + 5) // 10 * 10 - 5
        now = {FIRST: SentBytes({10}, one, same(one)), SECOND: SentBytes({20}, other, same(other))}
        assert list(steps.take(now)) == []


def test_a_job_that_hangs_is_still_one() -> None:
    assert in_step(lambda at: same(min(at, 200)), lambda at: same(min(at, 200)), seconds=900)


def test_another_process_is_another_job() -> None:
    steps = LockSteps()
    assert in_step(same, same, steps=steps)
    now = {FIRST: SentBytes({10}, 190, same(190)), SECOND: SentBytes({21}, 190, same(190))}
    assert list(steps.take(now)) == []
