"""Which GPUs a job was given, used or not: from Slurm's cgroups, its environment or its commands,
and from the kubelet. Pure.

Three numbers mean a GPU, and no two of them need be equal: NVML's index (by PCI address), the minor
number of its device file (/dev/nvidia3), and its place in Slurm's gres.conf. Here each becomes a
UUID.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.hardware.files import FileTree, names_in, read_text
from agent.jobs.identity import JobLabels, printable
from agent.model import Absent

DRIVER = "/proc/driver/nvidia/gpus"
MAJOR = "195"
BRACKETS = re.compile(r"^([^\[]*)\[([^\]]*)\](.*)$")
MOST_NAMES = 4096


class Allocation(NamedTuple):
    """A job and the UUIDs of the GPUs that it was given."""

    labels: JobLabels
    gpus: frozenset[str]


class Given(NamedTuple):
    """All allocations that were found; `hidden` is why some may be missing, empty where none is,
    and None where nobody gives GPUs to jobs here."""

    jobs: tuple[Allocation, ...] = ()
    hidden: str | None = None


@dataclass(slots=True)
class Allocations:
    """What was given last, for everyone on the host's thread."""

    given: Given = field(default_factory=Given)

    def of(self, uuid: str) -> tuple[Allocation, ...]:
        return tuple(one for one in self.given.jobs if uuid in one.gpus)


def by_minor(files: FileTree) -> dict[int, str]:
    """UUIDs by the minor number of the device file, as the driver tells both."""
    found = {}
    for name in names_in(files, DRIVER):
        try:
            text = read_text(files, f"{DRIVER}/{name}/information")
        except Absent:
            continue
        pairs = (line.partition(":") for line in text.splitlines())
        known = {key.strip(): value.strip() for key, _, value in pairs}
        minor = known.get("Device Minor", "")
        if minor.isdecimal() and known.get("GPU UUID"):
            found[int(minor)] = known["GPU UUID"]
    return found


def allowed(devices: str) -> frozenset[int] | None:
    """The minor numbers that a devices.list (cgroup version 1) lets in. None where it does not
    tell: a cgroup that lets in all but a few, as Slurm's do unless told otherwise, lists none."""
    lines = [line.split()[:2] for line in devices.splitlines()]
    if ["a", "*:*"] in lines or ["c", f"{MAJOR}:*"] in lines:
        return None
    own = (line[1].partition(":") for line in lines if line[0] == "c" and len(line) > 1)
    return frozenset(int(n) for major, _, n in own if major == MAJOR and n.isdecimal())


def numbers(text: str) -> list[int]:
    """`0,2-3` as a list; nothing where it is no such list."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, dash, last = part.partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)) or len(part) > 9:
            return []
        found += range(int(first), min(int(last or first), int(first) + MOST_NAMES) + 1)
    return found


def expanded(pattern: str) -> list[str]:
    """`node[01-03]` or `/dev/nvidia[0,2]` as names, several patterns after commas."""
    names: list[str] = []
    for part in re.split(r",(?![^\[]*\])", pattern):
        match = BRACKETS.match(part)
        if match is None:
            names.append(part)
            continue
        head, inside, tail = match.groups()
        width = len(re.split(r"[-,]", inside)[0])
        names += (f"{head}{number:0{width}d}{tail}" for number in numbers(inside))
    return names[:MOST_NAMES]


def slurm_order(gres: str, host: str, minors: Iterable[int]) -> list[int]:
    """Minor numbers in the order in which Slurm counts GPUs: that of their files in gres.conf, or
    else ascending, as where Slurm finds them by itself."""
    found: list[int] = []
    for line in gres.splitlines():
        words = (word.partition("=") for word in line.partition("#")[0].split())
        keys = {key.lower(): value for key, _, value in words}
        nodes = keys.get("nodename", "")
        if keys.get("name", "").lower() != "gpu" or (nodes and host not in expanded(nodes)):
            continue
        for file in expanded(keys.get("file", "")):
            minor = file.removeprefix("/dev/nvidia")
            if minor != file and minor.isdecimal():
                found.append(int(minor))
    return found or sorted(minors)


def uuids(places: Iterable[int], order: Sequence[int], minors: Mapping[int, str]) -> frozenset[str]:
    """The GPUs at these places of Slurm's order."""
    found = (order[place] for place in places if place < len(order))
    return frozenset(minors[minor] for minor in found if minor in minors)


def slurm_job(line: str, host: str) -> tuple[JobLabels, list[int]]:
    """A job as `scontrol --details --oneliner show job` writes it, and Slurm's numbers of the GPUs
    that it has on this host."""
    keys: dict[str, str] = {}
    here, places = False, []
    for word in line.split():
        key, _, value = word.partition("=")
        keys.setdefault(key, value)
        if key == "Nodes":
            here = host in expanded(value)
        if key == "GRES" and here:
            for part in re.findall(r"gpu[^(,]*(?:\([^)]*?)IDX:([0-9,-]+)", value):
                places += numbers(part)
    user = keys.get("UserId", "").partition("(")[0]
    account = "" if keys.get("Account") == "(null)" else keys.get("Account", "")
    labels = (keys.get("JobId", ""), user, "slurm", keys.get("Partition", ""), account)
    return JobLabels(*map(printable, labels)), places


def of_pods(
    pods: Iterable[tuple[str, str, str, Sequence[str]]], parents: Mapping[str, str]
) -> Iterator[Allocation]:
    """Containers that have a GPU, or one of its MIG devices; `GPU-...::2` is a share of one under
    time-slicing. `parents` are UUIDs of GPUs by theirs and by those of MIG devices."""
    for namespace, pod, container, devices in pods:
        given = (device.partition("::")[0] for device in devices)
        gpus = frozenset(parents[uuid] for uuid in given if uuid in parents)
        if gpus:
            names = (f"{namespace}/{pod}", "", "kubernetes", "", "", namespace, pod, container)
            yield Allocation(JobLabels(*map(printable, names)), gpus)


def completed(labels: JobLabels, given: Sequence[Allocation]) -> JobLabels:
    """What a process tells of its job, with what the scheduler knows besides. A pod is met by its
    name, or by being alone on the GPU."""
    alike = [one.labels for one in given if one.labels.runtime == labels.runtime]
    if labels.runtime == "kubernetes":
        alike = [one for one in alike if len(alike) == 1 or one.pod == labels.pod]
        if not alike:  # only its own environment names it, where anything may stand
            return labels._replace(namespace="", pod=labels.job_id)
        return labels._replace(**_names(alike[0]))
    same = next((one for one in alike if one.job_id == labels.job_id), None)
    if same is None:
        return labels
    return JobLabels(*(known or own for known, own in zip(same, labels, strict=True)))


def _names(labels: JobLabels) -> dict[str, str]:
    return {name: getattr(labels, name) for name in ("namespace", "pod", "container")}
