"""Determines the job of a GPU process and the job's name from data in /proc, without I/O."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from posixpath import basename
from types import MappingProxyType
from typing import NamedTuple

from agent.bounds import LONGEST_NAME
from agent.errors import encodable
from agent.hardware.files import whole
from agent.metrics import beside

_TABLE = beside(__file__)
SHELLS = frozenset(_TABLE["shells"])
HOSTS, HOST_PREFIXES = SHELLS.union(_TABLE["hosts"]), tuple(_TABLE["host_prefixes"])
STARTERS, SHOWN = frozenset(_TABLE["starters"]), frozenset(_TABLE["shown"])

CGROUP = {name: re.compile(pattern, re.MULTILINE) for name, pattern in _TABLE["cgroup"].items()}
CONTAINERS = {name: re.compile(path, re.MULTILINE) for name, path in _TABLE["container"].items()}

CHOSEN = {"apptainer", "lxc"}
"""Runtimes whose container names are PIDs or chosen by users. Such a name may be a Slurm job ID."""

CONTAINER_ID = re.compile(r"[0-9a-f]{64}")


class Ancestor(NamedTuple):
    """A GPU process or one of its ancestors. `started` is in seconds since boot."""

    pid: int
    name: str
    group: int
    started: float
    uid: int | None


def hosts(environment: Mapping[str, str]) -> int | None:
    """Return the number of hosts of a job from the environment of a process. None means unknown."""
    for name, part in _TABLE["hosts_of_job"].items():
        every, local = (whole(environment.get(x, ""), 9) if x else 1 for x in (name, part))
        if every and local:
            return max(1, -(-every // local))
    return None


def rank(environment: Mapping[str, str]) -> int | None:
    """Return the rank of a process in its job from its environment. None means unknown."""
    known = (whole(environment.get(name, ""), 9) for name in _TABLE["rank"])
    return next((number for number in known if number is not None), None)


class JobOrigin(NamedTuple):
    """Data about the job of a GPU process. `line` is the process, followed by its ancestors.
    `leader` is the name of the process group leader, or empty if it has exited. `cgroup` is the
    content of /proc/PID/cgroup. `environment` contains the variables in `SHOWN`. `conmon` is the
    command line of a conmon ancestor, because a rootless container may have no cgroup.
    `user_namespace` is empty if hidden."""

    line: tuple[Ancestor, ...]
    leader: str
    cgroup: str
    environment: Mapping[str, str] = MappingProxyType({})
    conmon: tuple[str, ...] = ()
    user_namespace: str = ""

    @property
    def uid(self) -> int | None:
        return self.line[0].uid if self.line else None


class JobLabels(NamedTuple):
    """Labels of a job in `dgx_gpu_job_info`. Unknown labels are empty. `job_id` is the Slurm job ID
    (of the task, for an array), the pod UID, a container ID prefix, or a program name and PID.
    A name that users can choose is extended: `lxc:4711@1000` is LXC container 4711 of UID 1000."""

    job_id: str = ""
    user: str = ""
    runtime: str = ""
    partition: str = ""
    account: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""


def is_host(name: str) -> bool:
    """Return whether a program is one that starts unrelated jobs, such as a shell or a service."""
    return name in HOSTS or name.startswith(HOST_PREFIXES)


def root(line: Sequence[Ancestor]) -> Ancestor:
    """Return the topmost ancestor in `line` that belongs to the same job as the first process.

    The search begins at the topmost rank launcher, or else at the first process. It ends below the
    first program that starts unrelated jobs and below the first process of another user, because
    such a process may be a service that starts jobs for many users.
    """
    at = max(_starters(line), default=0)
    for parent in line[at + 1 :]:
        strange = None not in (parent.uid, line[at].uid) and parent.uid != line[at].uid
        if strange or is_host(parent.name):
            break
        at += 1
    return line[at]


def _starters(line: Sequence[Ancestor]) -> Iterator[int]:
    """Yield the indices of the rank launchers in `line`, up to the first service."""
    for place, ancestor in enumerate(line):
        if is_host(ancestor.name) and ancestor.name not in SHELLS:
            return
        if ancestor.name in STARTERS:
            yield place


def owner(origin: JobOrigin) -> str:
    """Return a string that identifies the owner of a process: its UID and Slurm job or, without
    Slurm, its UID, user namespace, and container or pod. The owner is empty if the UID is unknown.
    Processes with different owners never belong to the same job."""
    if origin.uid is None:
        return ""
    kind, number = runtime(origin)
    if kind == "slurm":
        return f"uid {origin.uid} slurm {number}"
    contained = CGROUP["contained"].search(origin.cgroup)
    place = contained[1] if contained else number
    return " ".join(filter(None, (f"uid {origin.uid}", origin.user_namespace, place)))


def group_keys(origin: JobOrigin) -> frozenset[str]:
    """Return the keys that a process shares with the other processes of its job. In a Slurm job,
    the only key is the job ID. Otherwise, there are two keys, for the root process and the process
    group, because a script may start ranks in the background."""
    kind, number = runtime(origin)
    of = f"of {owner(origin) or f'process {origin.line[0].pid}'}"
    if kind == "slurm":
        return frozenset((f"slurm {number} {of}",))
    top, group = root(origin.line), origin.line[0].group
    shared = {f"process {top.pid} {top.started:g} {of}"}
    if group > 0 and (origin.leader in SHELLS or not is_host(origin.leader)):
        shared.add(f"group {group} {of}")
    return frozenset(shared)


def keys(tied: Mapping[int, frozenset[str]]) -> dict[int, str]:
    """Return one key for each PID. `tied` contains several keys for each PID. Processes that share
    any of these, directly or through other processes, get the same key."""
    above: dict[str, str] = {}

    def first(key: str) -> str:
        while (other := above.setdefault(key, key)) != key:
            above[key] = key = above[other]
        return key

    for shared in tied.values():
        merged = {first(key) for key in shared}
        above.update(dict.fromkeys(merged, min(merged)))
    return {pid: first(min(shared)) for pid, shared in tied.items()}


def runtime(origin: JobOrigin) -> tuple[str, str]:
    """Return the runtime of a process, such as `slurm` or `docker`, and the job ID or name that the
    runtime uses. They are read from the cgroup, or else from the command line of conmon. If the
    runtime is unknown, return `process` and an empty name."""
    job = CGROUP["slurm"].search(origin.cgroup)
    if job and (job[1] is None or int(job[1]) == origin.uid):
        return "slurm", job[2] or job[3]
    pod = CGROUP["pod"].search(origin.cgroup)
    if pod:
        return "kubernetes", pod[1].replace("_", "-")
    for name, pattern in CONTAINERS.items():
        found = pattern.search(origin.cgroup)
        if found:
            return name, found[1]
    named = dict(zip(origin.conmon, origin.conmon[1:], strict=False)).get("-c", "")
    return ("podman", named[:12]) if CONTAINER_ID.fullmatch(named) else ("process", "")


def called(origin: JobOrigin) -> tuple[str, str]:
    """Return the runtime of a process and the job ID. The job ID never comes from the environment,
    because any user can set SLURM_JOB_ID. Apptainer containers without a cgroup of their own are
    recognized by the image name in the environment."""
    kind, number = runtime(origin)
    if kind == "process":
        return "apptainer" if _image(origin.environment) else kind, ""
    if kind in CHOSEN:
        return kind, f"{kind}:{number}@{'' if origin.uid is None else origin.uid}"
    return kind, number


def job_labels(origin: JobOrigin, title: str) -> JobLabels:
    """Return the labels of a process's job, except the user. If no scheduler or container provides
    a job ID, use `title`. Account and pod names are not read from the environment, because any user
    can set SLURM_JOB_ACCOUNT or POD_NAME."""
    kind, number = called(origin)
    if kind == "kubernetes":
        inside = CGROUP["in_pod"].search(origin.cgroup)
        return JobLabels(number, "", kind, pod=number, container=inside[1] if inside else "")
    found = runtime(origin)
    container = _image(origin.environment) or (found[1] if found[0] in CONTAINERS else "")
    return JobLabels(number or title, runtime=kind, container=container)


def _image(environment: Mapping[str, str]) -> str:
    """Return the name of the Apptainer image, or an empty string."""
    return environment.get("APPTAINER_NAME") or environment.get("SINGULARITY_NAME") or ""


def title(origin: JobOrigin, command: Sequence[str]) -> str:
    """Return the name of a process's job for display, such as `slurm:1234`, `docker:0123456789ab`,
    or `train.py:4711`. `command` is the command line of the root process."""
    kind, number = called(origin)
    if number:
        return number if kind in CHOSEN else f"{kind}:{number}"
    top = root(origin.line)
    return f"{program(command) or printable(top.name)}:{top.pid}"


def program(command: Iterable[str]) -> str:
    """Return the name of the script or module that a command line runs, or an empty string. Other
    arguments are never returned, because they may contain secrets."""
    words = list(command)
    script = next((w for w in words if w.endswith((".py", ".sh")) and not w.startswith("-")), "")
    if script:
        return printable(basename(script))
    if basename(words[0] if words else "").startswith("python") and "-m" in words[:-1]:
        return printable(words[words.index("-m") + 1])
    return ""


def printable(name: str) -> str:
    """Return a name as a safe label value: shortened, and without control characters."""
    return encodable(name)[:LONGEST_NAME]
