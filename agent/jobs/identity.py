"""Grouping of GPU processes into jobs, and the names of the jobs. Pure: from the data of /proc."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from posixpath import basename
from types import MappingProxyType
from typing import NamedTuple

from agent.bounds import LONGEST_NAME
from agent.errors import encodable
from agent.hardware.files import whole

SHELLS = {"sh", "bash", "dash", "ash", "zsh", "fish", "ksh", "csh", "tcsh", "busybox"}
HOSTS = {
    *SHELLS,
    *("init", "systemd", "runit", "runsv", "runsvdir", "s6-supervise", "s6-svscan", "supervisord"),
    *("sshd", "sshd-session", "login", "su", "sudo", "doas", "runuser", "mosh-server"),
    *("tmux", "tmux: server", "screen", "SCREEN", "zellij", "byobu", "script"),
    *("cron", "crond", "anacron", "atd"),
    *("slurmd", "slurmstepd", "pbs_mom", "sge_shepherd", "sge_execd", "sbatchd", "condor_starter"),
    *("dockerd", "containerd", "conmon", "crio", "podman", "runc", "crun", "kubelet", "pause"),
    *("tini", "dumb-init", "docker-init", "catatonit", "lxc-start", "lxd", "incusd"),
    *("node", "code-server", "code", "cursor", "emacs", "vim", "nvim", "raylet", "gcs_server"),
    *("gitlab-runner", "Runner.Worker", "Runner.Listener", "buildkite-agent", "nomad"),
}
HOST_PREFIXES = ("containerd-shim", "jupyter", "gnome-terminal", "xterm", "konsole", "kitty")
"""Programs that start unrelated jobs; a job ends below them. Names are cut at 15 letters, as by the
kernel."""

STARTERS = {
    *("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "orted", "prterun", "prte", "prted"),
    *("hydra_pmi_proxy", "hydra_bstrap_pr", "pmi_proxy", "torchrun", "horovodrun", "deepspeed"),
    "accelerate",
}
"""Programs that start the ranks of a job, often through a shell of each rank's own."""

SHOWN = frozenset(
    {
        *("SLURM_JOB_ID", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_SHARDS_ON_NODE"),
        *("APPTAINER_NAME", "SINGULARITY_NAME"),
        *("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        *("SLURM_PROCID", "SLURM_STEP_NUM_NODES", "SLURM_NNODES"),
    }
)
"""The variables of an environment that the agent looks at; all others may hold secrets."""

SLURM = re.compile(
    r"^\d+:[^:\n]*:(?:/\.\.)*/(?:slurm(?:_[^/\n]+)?/uid_(\d+)"
    r"|system\.slice/(?:[^/\n]+_)?slurmstepd\.scope)"
    r"/(?:job_(\d+)|(s[0-9A-HJKMNP-TV-Z]{13}))(?:/|$)",
    re.MULTILINE,
)
"""Path of a job's cgroup by root's slurmstepd, versions 1 and 2. A user may give any name to
cgroups below a slice or a container of their own."""
POD = re.compile(
    r"^\d+:[^:\n]*:(?:/\.\.)*/(?:kubelet(?:\.slice)?/)?(?:(?:kubelet-)?kubepods|(?<=\.\./)(?=pod))"
    r"[^\n]*?pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?=[/.]|$)",
    re.MULTILINE,
)
"""The first part of the path is missing if the agent runs in a pod beside it."""
IN_POD = re.compile(r"pod[0-9a-f_-]{32,36}(?:\.slice)?/(?:[a-z-]+-)?([0-9a-f]{12})[0-9a-f]{52}")
CONTAINERS = {
    "podman": re.compile(r"libpod-([0-9a-f]{12})[0-9a-f]*"),
    "docker": re.compile(r"/docker[/-]([0-9a-f]{12})[0-9a-f]*"),
    "containerd": re.compile(r"(?:cri-containerd|nerdctl|/default|/k8s\.io)[-/:]([0-9a-f]{12})"),
    "apptainer": re.compile(
        r"(?:apptainer|singularity)[-/](\d{1,10})(?:\.scope|/|$)", re.MULTILINE
    ),
    "lxc": re.compile(r"/lxc(?:\.payload)?[./]([^/\n]+)"),
}
"""Names that a runtime gives to its containers in the path of a cgroup."""

CHOSEN = {"apptainer", "lxc"}
"""Runtimes whose containers have names that people choose, or a pid: such a name may equal the
number of a Slurm job."""

CONTAINER_ID = re.compile(r"[0-9a-f]{64}")

CONTAINED = re.compile(
    r"^\d+:[^:\n]*:(/[^\n]*(?:pod[0-9a-f]{8}|[0-9a-f]{64}|(?<=lxc/)|lxc\.payload|"
    r"apptainer|singularity)[^/\n]*)",
    re.MULTILINE,
)
"""The path of a cgroup down to the innermost pod or container."""


class Ancestor(NamedTuple):
    """A process in the line from a GPU process up to the first of all; `started` in seconds since
    boot, `uid` None if it is not known."""

    pid: int
    name: str
    group: int
    started: float
    uid: int | None


SIZES = (
    ("WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("SLURM_STEP_NUM_NODES", ""),
    ("SLURM_NNODES", ""),
)
"""Variables that give the number of a job's hosts: a number, divided by another if a second
variable is named."""


def hosts(environment: Mapping[str, str]) -> int | None:
    """Return the number of hosts of a process's job, from its environment; None if it lacks it."""
    for name, part in SIZES:
        every, local = (whole(environment.get(x, ""), 9) if x else 1 for x in (name, part))
        if every and local:
            return max(1, -(-every // local))
    return None


def rank(environment: Mapping[str, str]) -> int | None:
    """The rank of a process in its job, by its environment; None if that has no rank."""
    names = "RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"
    known = (whole(environment.get(name, ""), 9) for name in names)
    return next((number for number in known if number is not None), None)


class JobOrigin(NamedTuple):
    """Origin of a GPU process: itself and its parents upwards, the name of the leader of its
    process group (empty if it has ended), the text of its /proc/PID/cgroup, the `Shown` part of its
    environment, as far as that may be read, the command line of the conmon above it (containers
    without root may have no control group of their own), and its user namespace, empty if that is
    hidden."""

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
    """Labels of a job outside of this agent: those of `dgx_gpu_job_info`; empty if nothing is
    known. `job_id` is the number that Slurm gave (of an array: to this task), the UID of a pod, the
    beginning of a container's id, or program and pid. A container's name that a person may have
    chosen has its runtime and user with it: `lxc:4711@1000`."""

    job_id: str = ""
    user: str = ""
    runtime: str = ""
    partition: str = ""
    account: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""


def is_host(name: str) -> bool:
    """Return whether a program starts jobs that are unrelated to each other."""
    return name in HOSTS or name.startswith(HOST_PREFIXES)


def root(line: Sequence[Ancestor]) -> Ancestor:
    """The topmost process that still belongs to the job of the first process in the line.

    The line is followed up to the last starter of ranks, also through shells, then on to the child
    of a host of jobs, or of another user's process: a service that starts jobs for many.
    """
    at = max(_starters(line), default=0)
    for parent in line[at + 1 :]:
        strange = None not in (parent.uid, line[at].uid) and parent.uid != line[at].uid
        if strange or is_host(parent.name):
            break
        at += 1
    return line[at]


def _starters(line: Sequence[Ancestor]) -> Iterator[int]:
    """The places of the starters of ranks below the first host that is no shell."""
    for place, ancestor in enumerate(line):
        if is_host(ancestor.name) and ancestor.name not in SHELLS:
            return
        if ancestor.name in STARTERS:
            yield place


def owner(origin: JobOrigin) -> str:
    """Return the owner of a process: a user, in a user namespace, a container and a pod, or in a
    job of Slurm. Processes of two owners are never the same job; empty if the user is not known."""
    if origin.uid is None:
        return ""
    kind, number = _runtime(origin)
    if kind == "slurm":
        return f"uid {origin.uid} slurm {number}"
    contained = CONTAINED.search(origin.cgroup)
    place = contained[1] if contained else number
    return " ".join(filter(None, (f"uid {origin.uid}", origin.user_namespace, place)))


def group_keys(origin: JobOrigin) -> frozenset[str]:
    """Return the keys that a process shares with the others of its job: a Slurm job, or else an
    ancestor or a process group (a script that starts ranks in the background), of one owner."""
    kind, number = _runtime(origin)
    of = f"of {owner(origin) or f'process {origin.line[0].pid}'}"
    if kind == "slurm":
        return frozenset((f"slurm {number} {of}",))
    top, group = root(origin.line), origin.line[0].group
    shared = {f"process {top.pid} {top.started:g} {of}"}
    if group > 0 and (origin.leader in SHELLS or not is_host(origin.leader)):
        shared.add(f"group {group} {of}")
    return frozenset(shared)


def keys(tied: Mapping[int, frozenset[str]]) -> dict[int, str]:
    """A key for each process: the same if shared keys join them, directly or through others."""
    above: dict[str, str] = {}

    def first(key: str) -> str:
        while (other := above.setdefault(key, key)) != key:
            above[key] = key = above[other]
        return key

    for shared in tied.values():
        merged = {first(key) for key in shared}
        above.update(dict.fromkeys(merged, min(merged)))
    return {pid: first(min(shared)) for pid, shared in tied.items()}


def runtime(cgroup: str, uid: int | None) -> tuple[str, str]:
    """Return the runtime of a process of this user by its cgroup, and the runtime's name of the
    job; `process` and nothing if it is none of these."""
    job = SLURM.search(cgroup)
    if job and (job[1] is None or int(job[1]) == uid):
        return "slurm", job[2] or job[3]
    pod = POD.search(cgroup)
    if pod:
        return "kubernetes", pod[1].replace("_", "-")
    for name, pattern in CONTAINERS.items():
        found = pattern.search(cgroup)
        if found:
            return name, found[1]
    return "process", ""


def _runtime(origin: JobOrigin) -> tuple[str, str]:
    """The same of a process, whose container conmon may name if no cgroup does."""
    found = runtime(origin.cgroup, origin.uid)
    named = dict(zip(origin.conmon, origin.conmon[1:], strict=False)).get("-c", "")
    if found[0] == "process" and CONTAINER_ID.fullmatch(named):
        return "podman", named[:12]
    return found


def called(origin: JobOrigin) -> tuple[str, str]:
    """Return the runtime of the process, and the runtime's name of the job. Anybody may set
    SLURM_JOB_ID: only the cgroup numbers a job. Apptainer, without a cgroup, names its image in the
    environment."""
    kind, number = _runtime(origin)
    if kind == "process":
        return "apptainer" if _image(origin.environment) else kind, ""
    if kind in CHOSEN:
        return kind, f"{kind}:{number}@{'' if origin.uid is None else origin.uid}"
    return kind, number


def job_labels(origin: JobOrigin, title: str) -> JobLabels:
    """All names of the job of a process but its user; `title` if nothing else numbers it. Anybody
    may set SLURM_JOB_ACCOUNT or POD_NAME: only schedulers name accounts and pods."""
    kind, number = called(origin)
    if kind == "kubernetes":
        inside = IN_POD.search(origin.cgroup)
        return JobLabels(number, "", kind, pod=number, container=inside[1] if inside else "")
    found = _runtime(origin)
    container = _image(origin.environment) or (found[1] if found[0] in CONTAINERS else "")
    return JobLabels(number or title, runtime=kind, container=container)


def _image(environment: Mapping[str, str]) -> str:
    """The image that Apptainer runs."""
    return environment.get("APPTAINER_NAME") or environment.get("SINGULARITY_NAME") or ""


def title(origin: JobOrigin, command: Sequence[str]) -> str:
    """Return the name of the job for users: `slurm:1234`, `docker:0123456789ab`, `train.py:4711`.

    `command` is the command line of the root.
    """
    kind, number = called(origin)
    if number:
        return number if kind in CHOSEN else f"{kind}:{number}"
    top = root(origin.line)
    return f"{program(command) or printable(top.name)}:{top.pid}"


def program(command: Iterable[str]) -> str:
    """The script or module that a command line runs, never its other arguments: they may hold
    secrets. Empty if it runs neither."""
    words = list(command)
    script = next((w for w in words if w.endswith((".py", ".sh")) and not w.startswith("-")), "")
    if script:
        return printable(basename(script))
    if basename(words[0] if words else "").startswith("python") and "-m" in words[:-1]:
        return printable(words[words.index("-m") + 1])
    return ""


def printable(name: str) -> str:
    """A name that can stand in a label: short, and without control characters."""
    return encodable(name)[:LONGEST_NAME]
