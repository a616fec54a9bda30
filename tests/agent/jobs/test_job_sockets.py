"""TCP sockets of jobs: real ones on loopback, those on a tape, and when the agent asks for them."""

import errno
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from agent.hardware import sockets
from agent.hardware.host import Host
from agent.hardware.sockets import Found, TcpSocket, tcp_sockets
from agent.jobs.job_sockets import WAYS, CgroupSockets
from agent.replay.player import Tape, TapePlayer
from agent.replay.recorder import TapeRecorder
from agent.sources import workload
from tests.support.fake_host import FakePsutil, OddTree
from tests.support.frozen_clock import FrozenClock
from tests.support.process_tree import GPU, OTHER, ProcessTree
from tests.support.taped_machine import machine

OWN = Path("/proc/self/cgroup").read_text(encoding="ascii").rpartition("::")[2].strip()
MOUNT = next((p for p in map(Path, sockets.MOUNTS) if (p / "cgroup.procs").exists()), None)

pytestmark = pytest.mark.skipif(MOUNT is None, reason="needs cgroup version 2")


@contextmanager
def connected(family: socket.AddressFamily, address: str) -> Iterator[tuple[socket.socket, ...]]:
    """A listener, a client that sent 300 bytes, and a server that answered with 20."""
    with ExitStack() as stack:
        dual = family == socket.AF_INET6
        listener = socket.create_server(("", 0), family=family, dualstack_ipv6=dual)
        client = socket.create_connection((address, listener.getsockname()[1]))
        server, _ = listener.accept()
        for one in (listener, client, server):
            stack.enter_context(one)
        client.sendall(b"x" * 300)
        server.recv(300, socket.MSG_WAITALL)
        server.sendall(b"y" * 20)
        client.recv(20, socket.MSG_WAITALL)
        yield listener, client


@pytest.mark.parametrize(("v6", "address"), [(0, "127.0.0.1"), (1, "::1"), (1, "127.0.0.1")])
def test_the_kernel_tells_what_each_socket_received(v6: int, address: str) -> None:
    with connected((socket.AF_INET, socket.AF_INET6)[v6], address) as (listener, client):
        found = tcp_sockets([OWN, "/no/such/group"])
        assert found.keys() == {OWN}
        port, far = listener.getsockname()[1], client.getsockname()[1]
        by_end = {(one.port, one.remote_port): one for one in found[OWN]}
    assert by_end[port, 0].listens
    here, there = by_end[port, far], by_end[far, port]
    assert {here.address, here.remote_address, there.address, there.remote_address} == {address}
    assert (here.received, there.received) == (300, 20)
    assert (here.listens, there.acked >= 300, here.cookie == there.cookie) == (False, True, False)
    assert here.quiet < sockets.LONGEST


CHILD = """
import pathlib, socket, sys
pathlib.Path(sys.argv[1], "cgroup.procs").write_text("0")
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
input()
"""


@pytest.mark.root
@pytest.mark.parametrize("count", [1, 2, 3])
def test_sockets_belong_to_the_cgroup_in_which_they_were_opened(count: int) -> None:
    assert MOUNT
    names = [f"/dgx-test-{number}" for number in range(3)]
    ports = {}
    with ExitStack() as stack:
        for name in names:
            place = Path(f"{MOUNT}{name}")
            place.mkdir(exist_ok=True)
            stack.callback(place.rmdir)
            words = [sys.executable, "-c", CHILD, str(place)]
            child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            stack.callback(child.communicate)
            assert child.stdout
            ports[name] = int(child.stdout.readline())
        found = tcp_sockets(names[:count])
    seen = {name: [one.port for one in its] for name, its in found.items()}
    assert seen == {name: [ports[name]] for name in names[:count]}


def test_a_refusal_of_the_kernel_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "BC_CGROUP_COND", 99)  # as unknown as to an older kernel
    with pytest.raises(OSError, match="Invalid argument") as failure:
        tcp_sockets([OWN])
    assert failure.value.errno == errno.EINVAL


def test_more_sockets_than_are_looked_at_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "MOST_SOCKETS", 2)
    with connected(socket.AF_INET, "127.0.0.1"), pytest.raises(OSError, match="more than 2"):
        tcp_sockets([OWN])


# ---- tapes

JOB = "/system.slice/job.scope"
FAR, NEAR = "203.0.113.7", "198.51.100.9"


def one(
    cookie: int, received: int = 0, address: str = NEAR, port: int = 5000, *, listens: bool = False
) -> TcpSocket:
    return TcpSocket(cookie, listens, address, port, FAR, 443, received, 0, 0, 0)


def test_a_tape_holds_sockets_without_their_addresses(tmp_path: Path) -> None:
    clock, taped = FrozenClock(), [one(1, received=7), one(2, address="127.0.0.1", listens=True)]
    asked: list[Collection[str]] = []

    def ask(cgroups: Collection[str]) -> Found:
        asked.append(cgroups)
        if len(asked) > 2:
            raise PermissionError(errno.EACCES, "denied")
        return {JOB: taped}

    host = Host(OddTree(tmp_path), FakePsutil(), sockets=ask)
    recorder = TapeRecorder(machine(clock).nvml, host, clock)
    groups = [JOB, "/other.scope"]
    assert recorder.host.sockets(groups) == {JOB: taped, "/other.scope": []}
    clock.advance(2.0)
    taped = [one(1, received=9)]
    recorder.host.sockets(groups)
    clock.advance(2.0)
    with pytest.raises(PermissionError):
        recorder.host.sockets(groups)
    recorder.write(tmp_path / "x.tape")

    clock = FrozenClock()
    player = TapePlayer(Tape(tmp_path / "x.tape"), clock)
    masked = "/system.slice/unit1.scope"
    first, second = player.host.sockets([masked])[masked]
    assert (first.received, first.port, second.listens) == (7, 5000, True)
    assert {first.address, first.remote_address}.isdisjoint({FAR, NEAR})
    assert second.address == "127.0.0.1"
    assert second.remote_address == first.remote_address != first.address
    clock.advance(2.0)
    assert player.host.sockets([masked])[masked][0].received == 9
    clock.advance(2.0)
    with pytest.raises(PermissionError):
        player.host.sockets([masked])
    with pytest.raises(FileNotFoundError):
        player.host.sockets(["/never.scope"])


# ---- when the agent asks


@pytest.mark.parametrize(
    ("cgroup", "own", "bytes_a_second", "asks"),
    [
        (JOB, "/", 1e6, 5),
        (JOB, "/", 1e5, 0),  # too little to be of interest
        ("/", "/system.slice/agent.service", 1e6, 0),  # the root has sockets of all
        (JOB, JOB, 1e6, 0),
    ],
)
def test_sockets_of_jobs_that_receive_are_looked_at(
    tree: ProcessTree, cgroup: str, own: str, bytes_a_second: float, asks: int
) -> None:
    tree.write("/proc/100/cgroup", f"0::{cgroup}\n")
    tree.write("/proc/self/cgroup", f"0::{own}\n")
    tree.occupy(100)
    for second in range(11):
        tree.write("/proc/100/net/dev", f"head\n  eth0: {second * bytes_a_second:.0f} 0\n")
        tree.read()
    assert tree.looks == [{JOB}] * asks


# ---- what is counted


def looked(
    *looks: Found, job: Set[str] = frozenset({JOB}), here: Set[str] = frozenset(), of: str = JOB
) -> Mapping[str, float]:
    """The counts of a cgroup after looks that found these sockets (none: refused)."""
    at = iter(looks)

    def ask(_: Collection[str]) -> Found:
        if found := next(at):
            return found
        raise PermissionError(errno.EACCES, "denied")

    counted = CgroupSockets(ask)
    for number in range(len(looks)):
        assert counted.due(2.0 * number + 2.0, 1e6 * number + 1e6)
        counted.look([job], here)
    return counted.counts.get(of, {})


LISTENER = one(1, port=80, listens=True)


def test_bytes_count_by_the_end_that_opened_the_connection() -> None:
    far, near = TcpSocket(9, False, NEAR, 6, NEAR, 7, 0, 0, 0, 0), one(8, 500)
    peers = far._replace(received=40), far._replace(cookie=10, port=7, remote_port=6, received=2)
    request = one(3, 90, port=80)._replace(acked=7, quiet=5)
    before = [LISTENER, near, far, request]
    after = [LISTENER, near._replace(received=800), *peers]
    after += [request._replace(received=190, acked=19), one(4, 1000, port=80), one(5, 6)]
    found = looked({JOB: before}, {JOB: after})
    assert WAYS == ("opened", "accepted", "exchanged", "answered", "begun", "settled")
    assert [found[way] for way in WAYS] == [306, 1100, 42, 12, 1, 2]


@pytest.mark.parametrize(("quiet", "silent", "settled"), [(8, 300, 1), (300, 8, 2), (8, 8, 2)])
def test_a_request_is_owed_an_answer_until_it_is_sent(
    quiet: int, silent: int, settled: int
) -> None:
    request = one(3, port=80)
    last = request._replace(quiet=quiet, silent=silent)
    assert looked({JOB: [LISTENER, request]}, {JOB: [LISTENER, last]})["settled"] == settled


@pytest.mark.parametrize(("port", "answered"), [(80, 1), (81, 0)])
def test_a_connection_that_was_accepted_and_ended_has_been_answered(
    port: int, answered: int
) -> None:
    assert looked({JOB: [LISTENER, one(3, port=port)]}, {JOB: [LISTENER]})["answered"] == answered


def test_what_ranks_in_cgroups_of_their_own_send_each_other_is_exchanged() -> None:
    here = TcpSocket(1, False, NEAR, 6, NEAR, 7, 0, 0, 0, 0)
    there = TcpSocket(2, False, NEAR, 7, NEAR, 6, 0, 0, 0, 0)
    looks = ({"/a": [here], "/b": [there]}, {"/a": [here._replace(received=5)], "/b": [there]})
    assert looked(*looks, job={"/a", "/b"}, of="/a")["exchanged"] == 5
    assert looked(*looks, job={"/a", "/b"}, of="/b")["exchanged"] == 0


def test_a_job_without_sockets_is_not_counted() -> None:
    assert looked({JOB: [one(1, 5)]}, {JOB: []}) == looked({JOB: [one(1, 5)]}, {}) == {}
    assert looked({JOB: [one(1, 5)]}, {JOB: []}, {JOB: [one(1, 9)]})["opened"] == 0
    assert looked({JOB: []}, {JOB: []}, here={JOB}) == {"settled": 2, "answered": 0}


@pytest.mark.parametrize(("own", "known"), [(1_000_000, {GPU, OTHER}), (2_000_000, {GPU})])
def test_each_gpu_has_the_bytes_of_its_jobs(
    tree: ProcessTree, own: int, known: set[tuple[str, str]]
) -> None:
    tree.write("/proc/self/cgroup", "0::/\n")
    tree.start(200)
    tree.write("/proc/200/cgroup", "0::/other.scope\n")
    tree.occupy(100)
    tree.occupy(200, gpu=OTHER)
    for second in range(9):
        for pid, rate in (("100", 1_000_000), ("200", 1_000_000), ("self", own)):
            tree.write(f"/proc/{pid}/net/dev", f"head\n  eth0: {second * rate} 0\n")
        tree.sockets = {JOB: [one(1, 70 * second)], "/other.scope": []}
        reading = tree.read()
    found = {s.labels: s.value for s in reading.samples if s.metric is workload.SOCKETS}
    assert {labels[:2] for labels in found} == known  # one without sockets in another network?
    assert found[*GPU, "opened"] % 70 == 0 < found[*GPU, "opened"]
    assert found[*GPU, "accepted"] == 0
