"""Answers of Slurm's commands, into which users may write, and of the kubelet's socket."""

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.hardware import schedulers
from agent.hardware.schedulers import SlurmJob
from agent.jobs import allocation
from agent.jobs.identity import JobLabels
from agent.model import Reason
from agent.sources import workload
from tests.agent.jobs.test_allocation import AllocationTree
from tests.support.process_tree import OTHER, labels_of

EVIL = "x UserId=root(0) Nodes=node1 CPU_IDs=0 Mem=0 GRES=gpu:8(IDX:0-7) Socks/Node=* MinCPUsNode=1"
TEXT = (
    "JobId={0} ArrayJobId=2 ArrayTaskId=5 JobName={name} UserId=eve(1001) GroupId=eve(1001) "
    "Account=nlp QOS=(null) Partition=gpu NodeList=node1 Socks/Node=* NtasksPerN:B:S:C=0:0:*:* "
    "CoreSpec=* JOB_GRES=gpu:1   Nodes=node1 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:{place}) "
    "MinCPUsNode=1 MinMemoryNode=0 Features=(null) Command=(null) WorkDir=/ Comment={name}"
)
"""As Slurm 22.05 and 24.11 write it. Slurm lets a name have blanks and ends of lines."""
SQUEUE = Path(__file__).with_name("squeue.sh").read_text(encoding="utf-8")
SCONTROL = """#!/bin/sh
for last; do :; done
echo "$@" >>"$0.asked"
cat "$0.$last" 2>/dev/null
"""


class FakeSlurm:
    """Programs that answer as Slurm's do, by files beside them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        for name, text in (("squeue", SQUEUE), ("scontrol", SCONTROL)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        monkeypatch.setenv("EVIL", EVIL)
        self.slurm = schedulers.RealSchedulers()

    def says(self, job: str, text: str) -> None:
        (self.folder / f"scontrol.{job}").write_text(text)

    def asked(self) -> list[str]:
        return (self.folder / "scontrol.asked").read_text().splitlines()

    def jobs(self) -> list[tuple[str, str, str, list[int] | None]]:
        return [
            (*job[:3], None if job.gres is None else allocation.slurm_places(job.gres, "node1"))
            for job in self.slurm.slurm("node1")
        ]


def test_what_users_write_charges_no_one_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without scontrol's JSON, text that users write charges no other user."""
    fake = FakeSlurm(tmp_path, monkeypatch)
    fake.says("1", TEXT.format(1, name=EVIL, place=0))
    fake.says("2_5", TEXT.format(3, name="a\n   UserId=root(0)", place=1))
    fake.says("2_7", TEXT.format(2, name="a\n   UserId=root(0)", place=2))
    for _ in range(2):
        assert fake.jobs() == [
            ("1", "eve", "nlp", [0]),
            ("3", "ada", "bio", [1]),
            ("2", "ada", "bio", [2]),
        ]
    assert len(fake.asked()) == 6, "each is asked for once, in JSON and as text"
    assert "--nodelist=node1" in (tmp_path / "squeue.asked").read_text()
    (tmp_path / "squeue").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(OSError, match="squeue fails: exit status 1"):
        fake.slurm.slurm("node1")
    (tmp_path / "squeue").unlink()
    with pytest.raises(OSError, match="squeue is not installed"):
        fake.slurm.slurm("node1")


def test_an_empty_answer_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeSlurm(tmp_path, monkeypatch)
    fake.says("1", "")
    assert fake.slurm.slurm("node1") == [*map(SlurmJob, "132")]
    fake.says("1", TEXT.format(1, name=EVIL, place=0))
    assert fake.jobs()[0] == ("1", "eve", "nlp", [0])


def test_jobs_in_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Slurm 24.11 writes them."""
    nodes = {"list": "node[1-2]", "allocation": [{"name": "node2"}, {"name": "node1"}]}
    job = {
        "job_id": 1, "name": EVIL, "user_name": "eve", "account": "nlp", "partition": "gpu",
        "gres_detail": ["gpu:2(IDX:0-1)", "gpu:1(IDX:3)"], "job_resources": {"nodes": nodes},
    }  # fmt: skip
    fake = FakeSlurm(tmp_path, monkeypatch)
    fake.says("1", json.dumps({"jobs": [job]}))
    other = {"job_id": 3, "gres_detail": [], "step_id": {"sluid": "s5K1KKYAYG5D00"}}
    fake.says("3", json.dumps({"jobs": [job | other]}))
    fake.says("2", json.dumps({"jobs": []}))
    assert fake.jobs() == [("1", "eve", "nlp", [3]), ("3", "eve", "nlp", []), ("2", "", "", None)]
    assert fake.slurm.slurm("node1")[1].sluid == "s5K1KKYAYG5D00"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("sleep 1000 & wait", "does not answer"),
        ("printf '1|1|\\377ve|n\\344p|gpu\\n'", ""),
        ("printf '1|1|eve|two words|a|b\\n'", ""),
    ],
)
def test_whatever_a_command_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, why: str
) -> None:
    """Never, no UTF-8, a name with what parts the columns."""
    fake = FakeSlurm(tmp_path, monkeypatch)
    monkeypatch.setattr(schedulers, "SECONDS", 1.0 if "sleep" in answer else 60.0)
    (tmp_path / "squeue").write_text(f"#!/bin/sh\n{answer}\n")
    if why:
        with pytest.raises(OSError, match=why):
            fake.slurm.slurm("node1")
    else:
        assert fake.slurm.slurm("node1") == [SlurmJob("1")]


def field(number: int, content: bytes) -> bytes:
    length, head = len(content), bytes([number << 3 | 2])
    while length > 0x7F:
        head, length = head + bytes([length & 0x7F | 0x80]), length >> 7
    return head + bytes([length]) + content


def pod(name: str, container: str, *devices: str) -> bytes:
    """A PodResources as the kubelet writes it, with CPU numbers and a topology besides."""
    ids = b"".join(field(2, one.encode()) for one in devices)
    of_gpu = field(1, b"nvidia.com/gpu") + ids + field(3, field(1, b"\x08\x01"))
    inside = field(1, container.encode()) + field(2, of_gpu) + field(3, b"\x00\x01")
    return field(1, field(1, name.encode()) + field(2, b"nlp") + field(3, inside))


LISTED = pod("bert-0", "train", "GPU-1") + pod("web", "nginx")
SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"


def claim(driver: str, *devices: str) -> bytes:
    """A pod with a claim: dynamic resource allocation."""
    given = b"".join(
        field(4, field(2, driver.encode()) + field(3, b"node") + field(4, one.encode()))
        for one in devices
    )
    inside = field(1, b"train") + field(5, field(2, b"two-gpus") + field(3, b"nlp") + given)
    return field(1, field(1, b"claims") + field(2, b"nlp") + field(3, inside))


FORMS = {
    "a UUID": pod("a", "b", "GPU-2"),
    "a replica of a sharing plugin": pod("a", "b", "GPU-2::1"),
    "a share of a plugin that cuts memory": pod("a", "b", "GPU-2-_-12"),
    "GKE": pod("a", "b", "nvidia1"),
    "a resource that was renamed": pod("a", "b", "nvidia1").replace(
        b"nvidia.com/gpu", b"example.com/ai"
    ),
    "GKE with MIG": pod("a", "b", "nvidia1/gi1"),
    "GKE with time-sharing": pod("a", "b", "nvidia1/vgpu0"),
    "GKE with both": pod("a", "b", "nvidia1/gi1/vgpu0"),
    "an index": pod("a", "b", "2"),
    "MIG by GPU and instance": pod("a", "b", "2:1"),
    "a claim": claim("gpu.nvidia.com", "gpu-1"),
    "a claim of MIG": claim("gpu.nvidia.com", "gpu-1-mig-9-0-1"),
}
"""Answers of the kubelet; all mean the GPU with index 2 and minor number 1."""


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_an_id_means_its_gpu(tmp_path: Path, form: str) -> None:
    tree = AllocationTree(tmp_path)
    tree.write(SOCKET, "")
    tree.answers.pods = FORMS[form]
    assert tree.allocated() == {"0": 0, "1": 0, "2": 1}


ODD = (
    *("MIG-5", "nvidia9", "0000:3b:00.0", "gpu-x", "17", "::", "MIG-GPU-2/7", "2:1:3", "nvidia1/"),
    *("/dev/nvidia1", "GPU-2_0", "GPU-2#1", "nvidia.com/gpu=2", "1-2", "GPU-9-2", "gpu-9-mig-1"),
    *("GPU-2-replica-1", "nvidia0/gi0/ci0", "-1", "GPU-1,GPU-2", "\u00b2"),
)


@pytest.mark.parametrize("odd", ODD)
def test_an_id_that_is_not_understood_leaves_unknown_what_no_other_has(
    tmp_path: Path, odd: str
) -> None:
    tree = AllocationTree(tmp_path)
    tree.write(SOCKET, "")
    tree.answers.pods = pod("a", "b", "GPU-1") + pod("c", "d", odd)
    reading = tree.look()
    assert [(labels[0], value) for _, labels, value in reading.samples] == [("1", 1)]
    assert {(a.labels[0], a.reason) for a in reading.absences} == {
        ("0", Reason.UNKNOWN),
        ("2", Reason.UNKNOWN),
    }
    assert all(odd in absence.detail for absence in reading.absences)


@pytest.mark.parametrize("driver", ["mig.nvidia.com", "vgpu.nvidia.com", "nvidia.com"])
def test_a_claim_of_another_driver_of_nvidia_is_unknown(tmp_path: Path, driver: str) -> None:
    tree = AllocationTree(tmp_path)
    tree.write(SOCKET, "")
    tree.answers.pods = claim(driver, "card-7")
    assert {absence.reason for absence in tree.look().absences} == {Reason.UNKNOWN}


def test_devices_that_are_no_gpus_hide_nothing(tmp_path: Path) -> None:
    tree = AllocationTree(tmp_path)
    tree.write(SOCKET, "")
    nic = pod("a", "b", "0000:3b:00.2").replace(b"nvidia.com/gpu", b"nvidia.com/nic")
    tree.answers.pods = nic + claim("compute-domain.nvidia.com", "channel-0")
    assert tree.allocated() == {"0": 0, "1": 0, "2": 0}


def test_the_kubelet_shows_pods_and_containers(tmp_path: Path) -> None:
    tree = AllocationTree(tmp_path)
    tree.write("/var/lib/kubelet/pod-resources/kubelet.sock", "")
    tree.answers.pods = LISTED + pod("a", "b", "GPU-2::0") + pod("b", "b", "GPU-2::1")
    assert tree.allocated() == {"0": 0, "1": 1, "2": 1}
    uid = "8d3b1c7e-1111-2222-3333-444455556666"
    tree.start(100)
    tree.write("/proc/100/cgroup", f"0::/kubepods/pod{uid}/{'0123456789abcdef' * 4}\n")
    tree.occupy(100, gpu=OTHER)
    infos = [JobLabels(*i[2:]) for i in labels_of(tree.read(), workload.JOB_INFO)]
    assert infos == [
        JobLabels(uid, "ada", "kubernetes", "", "", "nlp", "bert-0", "train"),
        JobLabels("nlp/a", "", "kubernetes", "", "", "nlp", "a", "b"),
        JobLabels("nlp/b", "", "kubernetes", "", "", "nlp", "b", "b"),
    ]


@given(st.binary() | st.integers(0, len(LISTED)).map(lambda n: LISTED[:n]))
def test_a_garbled_answer_is_refused(answer: bytes) -> None:
    try:
        found = list(schedulers.pods(answer))
    except ValueError:
        return
    assert all(len(one) == 4 for one in found)


def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    head = struct.pack(">I", len(content))[1:] + bytes((kind, flags))
    return head + struct.pack(">I", stream) + content


@contextmanager
def kubelet(path: Path, *frames: bytes) -> Iterator[list[bytes]]:
    """A server that takes one call and answers with these frames."""
    heard: list[bytes] = []

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            heard.append(connection.recv(65_536))
            connection.sendall(b"".join(frames))
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65_536):
                pass

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        yield heard
        thread.join()


HELLO = frame(4, 0, 0, b"") + frame(6, 0, 0, b"12345678") + frame(1, 4, 1, b"\x88")
MESSAGE = b"\0" + struct.pack(">I", len(LISTED)) + LISTED
END = frame(1, 5, 1, b"\x00")


def test_the_socket_is_asked_in_http_2(tmp_path: Path) -> None:
    path = tmp_path / "kubelet.sock"
    parts = frame(0, 0, 1, MESSAGE[:9]) + frame(0, 8, 1, b"\x02" + MESSAGE[9:] + b"\0\0")
    with kubelet(path, HELLO, parts, END) as heard:
        found = schedulers.RealSchedulers().kubelet(str(path))
    assert found == LISTED
    assert heard[0].startswith(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert b"/v1.PodResourcesLister/List" in heard[0]


@pytest.mark.parametrize(
    "answer",
    [b"", END, frame(7, 0, 0, bytes(8)), frame(3, 0, 1, bytes(4)), frame(0, 1, 1, MESSAGE[:20])],
    ids=["closed", "an error", "going away", "refused", "cut short"],
)
def test_a_call_that_fails_is_an_error(tmp_path: Path, answer: bytes) -> None:
    path = tmp_path / "kubelet.sock"
    with kubelet(path, HELLO, answer), pytest.raises(OSError, match="kubelet"):
        schedulers.RealSchedulers().kubelet(str(path))
