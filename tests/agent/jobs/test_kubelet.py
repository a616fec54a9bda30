"""The kubelet's socket: every form of an id, and what is not understood."""

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
from agent.jobs.identity import JobLabels
from agent.model import Reason
from agent.sources import workload
from tests.agent.jobs.test_allocation import AllocationTree
from tests.support.process_tree import OTHER, labels_of


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
