"""Finds the GPUs that are allocated to each job, even if the job does not use them. The data comes
from Slurm commands and from the kubelet. Only functions that take a FileTree do I/O.

A GPU has three numbers, which may all differ: the NVML index (in PCI address order), the minor
number of its device file (such as /dev/nvidia3), and its position in Slurm's gres.conf. Functions
convert each of these numbers to a UUID.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import NamedTuple

from agent.bounds import MOST_NAMES
from agent.hardware.files import FileTree, names_in, text_or_nothing, whole
from agent.hardware.schedulers import SlurmJob
from agent.jobs.identity import JobLabels, printable
from agent.metrics import beside
from agent.model import Absent, Reason

PodDevices = tuple[str, str, str, Sequence[tuple[str, str]]]
"""The namespace, pod, and container, and the resource and ID of each device allocated to it."""

DRIVER = "/proc/driver/nvidia/gpus"
BRACKETS = re.compile(r"\[([^\]]*)\]")


class Allocation(NamedTuple):
    """A job and the UUIDs of its GPUs. From Slurm 26.05 on, `sluid` names the job's cgroup."""

    labels: JobLabels
    gpus: frozenset[str]
    sluid: str = ""


NO_SCHEDULER = Absent(Reason.MISSING, "no kubelet answers, and allocation.slurm is off")


class Given(NamedTuple):
    """The known allocations. `hidden` is the reason why some may be missing, or None."""

    jobs: tuple[Allocation, ...] = ()
    hidden: Absent | None = NO_SCHEDULER


class Devices(NamedTuple):
    """Maps the names that schedulers use for the GPUs of this host to GPU UUIDs."""

    uuids: Mapping[str, str]  # by UUID of the GPU or of a MIG device
    minors: Mapping[str, str]
    indices: Mapping[str, str]

    def gpu(self, device: str) -> str:
        """Return the UUID for a GPU ID of a Kubernetes plugin or driver, or raise Absent."""
        name = device.partition("::")[0]  # the suffix is the number of a share of a device
        for pattern, table in FORMS:
            found = pattern.fullmatch(name)
            uuid = getattr(self, table).get(found[1]) if found else None
            if uuid:
                return str(uuid)
        raise unknown("the device id", device)


_TABLE = beside(__file__)
FORMS = tuple((re.compile(pattern), table) for pattern, table in _TABLE["forms"])
"""For each kind of device ID: its pattern, and the mapping in `Devices` that contains the ID."""

GPU_RESOURCE, GPU_IDS = re.compile(_TABLE["resource"]), tuple(_TABLE["prefixes"])


def unknown(what: str, text: str) -> Absent:
    """Return an exception to raise if `text`, a part of an allocation, cannot be parsed."""
    return Absent(Reason.UNKNOWN, f"{what} {text!r:.80} is not understood")


@dataclass(slots=True)
class Allocations:
    """Holds the latest allocations for all sources that run on the host thread."""

    given: Given = field(default_factory=Given)

    def of(self, uuid: str) -> tuple[Allocation, ...]:
        return tuple(one for one in self.given.jobs if uuid in one.gpus)


def driver_gpus(files: FileTree) -> Iterator[tuple[str, str, str]]:
    """Yield the PCI address, minor number, and UUID of each GPU in the driver's /proc directory.
    The directory includes GPUs that NVML no longer lists. GPUs that were never initialized are
    skipped, because their UUIDs contain question marks."""
    for name in sorted(names_in(files, DRIVER)):
        text = text_or_nothing(files, f"{DRIVER}/{name}/information")
        pairs = (line.partition(":") for line in text.splitlines())
        known = {key.strip(): value.strip() for key, _, value in pairs}
        if (uuid := known.get("GPU UUID", "")) and "?" not in uuid:
            yield name, known.get("Device Minor", ""), uuid


def by_minor(files: FileTree) -> dict[int, str]:
    """Return a dict that maps the minor number of each device file to the UUID of its GPU."""
    known = ((whole(minor), uuid) for _, minor, uuid in driver_gpus(files))
    return {minor: uuid for minor, uuid in known if minor is not None}


# This expansion of host lists takes only 31 lines. python-hostlist 2.3.0 (429 lines, GPL) and
# ClusterShell 1.10.1 (1.5 MB, requires PyYAML) return the same names for mixed widths and
# five-digit numbers, and neither limits the number of names.
RANGE = re.compile(r"(\d{1,12})(?:-(\d{1,12}))?", re.ASCII)


def padded(text: str) -> list[str]:
    """Return the numbers in a list such as `9,010-011`. Each number is padded to the width of the
    first number in its range. Raise Absent if the list is invalid or longer than MOST_NAMES."""
    found: list[str] = []
    for part in filter(None, text.split(",")):
        match = RANGE.fullmatch(part)
        first = match[1] if match else ""
        span = range(int(first), int(match[2] or first) + 1) if match else range(0)
        if not 0 < len(span) <= MOST_NAMES - len(found):
            raise unknown("the list", text)
        found += [f"{number:0{len(first)}d}" for number in span]
    return found


def expanded(pattern: str) -> list[str]:
    """Return the names that match comma-separated patterns such as `rack[0-1]node[01-03]` or
    `/dev/nvidia[0,2]`. Raise Absent if the list is invalid or has more than MOST_NAMES names."""
    names: list[str] = []
    for part in re.split(r",(?![^\[]*\])", pattern):
        parts = BRACKETS.split(part)  # names and the contents of brackets, in turn
        choices = [padded(one) if place % 2 else [one] for place, one in enumerate(parts)]
        unclosed = set("[]") & set("".join(parts[::2]))
        if unclosed or prod(map(len, choices)) > MOST_NAMES - len(names):
            raise unknown("the list", pattern)
        names += map("".join, product(*choices))
    return names


def is_among(host: str, pattern: str) -> bool:
    """Return whether a node list includes this host. The names may be short or fully qualified.
    Raise Absent if the list is invalid."""
    names = expanded(pattern)
    short = host.partition(".")[0]
    alike = (one for one in names if one.partition(".")[0] == short)
    return host in names or any((one == short) != (host == short) for one in alike)


def slurm_order(gres: str, host: str, minors: Iterable[int]) -> list[int]:
    """Return the minor numbers of the GPUs in the order in which Slurm numbers them: the order of
    the device files in gres.conf, or ascending if it lists none. Raise Absent if gres.conf lists
    parts of GPUs, specifies a count without files, or includes another file."""
    found: list[int] = []
    for line in gres.replace("\\\n", " ").splitlines():
        words = (word.partition("=") for word in line.partition("#")[0].split())
        keys = {key.lower(): value for key, _, value in words}
        nodes, included = keys.get("nodename", ""), "include" in keys
        is_gpu = keys.get("name", "").lower() == "gpu"
        if not included and not (is_gpu and (not nodes or is_among(host, nodes))):
            continue
        files = expanded(keys["file"]) if "file" in keys else []
        listed = [whole(file.rpartition("/dev/nvidia")[2]) for file in files]
        counted = "multiplefiles" in keys or ("count" in keys and not files)
        if included or counted or None in listed:
            raise unknown("the order of GPUs in gres.conf", line)
        found += [minor for minor in listed if minor is not None]
    return found or sorted(minors)


def uuids(places: Sequence[int], order: Sequence[int], minors: Mapping[int, str]) -> frozenset[str]:
    """Return the UUIDs of the GPUs with Slurm indices `places`. Raise Absent if one is unknown."""
    try:
        return frozenset(minors[order[place]] for place in places)
    except (IndexError, KeyError) as error:
        raise unknown("Slurm's number of a GPU", ",".join(map(str, places))) from error


def slurm_labels(job: SlurmJob) -> JobLabels:
    account = "" if job.account == "(null)" else job.account
    return JobLabels(*map(printable, (job.job_id, job.user, "slurm", job.partition, account)))


def slurm_places(gres: Iterable[tuple[str, str]], host: str) -> list[int]:
    """Return the Slurm indices of a job's GPUs on this host. Raise Absent if they are unknown."""
    here = [resources for nodes, resources in gres if is_among(host, nodes)]
    if not here:
        why = f"scontrol names {host} in no nodes of a job that runs here"
        raise Absent(Reason.UNKNOWN, why)
    return [place for resources in here for place in _places(resources)]


def _places(gres: str) -> list[int]:
    """Return the Slurm GPU indices in a string such as `gpu:h100:2(IDX:0,2),shard:3(0/4,3/4)`.
    Raise Absent if an entry cannot be parsed."""
    found: list[int] = []
    for entry in re.split(r",(?![^(]*\))", gres):
        kind, _, inside = re.sub("^gres[/:]", "", entry).partition("(")
        name, _, count = kind.partition(":")[0], *kind.rpartition(":")[1:]
        if (name not in SHARED_GRES and "gpu" not in kind.lower()) or count == "0":
            continue
        numbered = re.search(r"IDX:([0-9,-]*)\)$", inside)
        parts = [part.partition("/") for part in inside.rstrip(")").split(",")]
        places: list[int] = []
        if numbered:
            places = sorted({int(number) for number in padded(numbered[1])})
        elif all(used.isdecimal() and of.isdecimal() for used, _, of in parts):
            places = [place for place, (used, *_) in enumerate(parts) if used.strip("0")]
        expected = whole(count) if name == "gpu" and count.isdecimal() else 1
        if name not in SHARED_GRES or expected is None or len(places) < expected:
            raise unknown("GRES", entry)
        found += places
    return found


SHARED_GRES = {"gpu", "shard", "mps"}
"""Names that Slurm uses for GPUs and for shares of GPUs."""


def of_pods(pods: Iterable[PodDevices], devices: Devices) -> Given:
    """Return an allocation for each container that has a GPU, a MIG device, or a share of a GPU."""
    found, hidden = [], None
    for namespace, pod, container, given in pods:
        gpus = set()
        for resource, device in given:
            if device.startswith(GPU_IDS) or GPU_RESOURCE.fullmatch(resource):
                try:
                    gpus.add(devices.gpu(device))
                except Absent as absent:
                    hidden = absent.without_traceback()
        if gpus:
            names = (f"{namespace}/{pod}", "", "kubernetes", "", "", namespace, pod, container)
            found.append(Allocation(JobLabels(*map(printable, names)), frozenset(gpus)))
    return Given(tuple(found), hidden)


def completed(labels: JobLabels, given: Sequence[Allocation]) -> JobLabels:
    """Return the labels of a process's job, with the labels that only its scheduler knows. The
    kubelet does not report pod UIDs, so a pod is named only if no other pod uses the GPU."""
    if labels.runtime == "kubernetes":
        alike = [one.labels for one in given if one.labels.runtime == labels.runtime]
        names = [one[-3:] for one in alike]  # namespace, pod, container
        return JobLabels(*labels[:-3], *names[0]) if len(alike) == 1 else labels
    for known, _, sluid in given:
        if known.runtime == labels.runtime and labels.job_id in (known.job_id, sluid):
            return JobLabels(*(one or own for one, own in zip(known, labels, strict=True)))
    return labels
