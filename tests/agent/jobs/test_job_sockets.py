"""TCP sockets of jobs: real ones on loopback, those on a tape, and when the agent asks for them."""

import errno
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from agent.hardware import sockets
from agent.hardware.host import Host
from agent.hardware.sockets import Found, TcpSocket, tcp_sockets
from agent.replay.player import Tape, TapePlayer
from agent.replay.recorder import TapeRecorder
from tests.support.fake_host import FakePsutil, OddTree
from tests.support.frozen_clock import FrozenClock
from tests.support.process_tree import ProcessTree
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


@pytest.mark.parametrize(
    ("family", "address"),
    [
        (socket.AF_INET, "127.0.0.1"),
        (socket.AF_INET6, "::1"),
        (socket.AF_INET6, "127.0.0.1"),  # an address of IPv4 at a socket of IPv6
    ],
)
def test_the_kernel_tells_what_each_socket_received(
    family: socket.AddressFamily, address: str
) -> None:
    with connected(family, address) as (listener, client):
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
            child = subprocess.Popen(
                [sys.executable, "-c", CHILD, str(place)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            stack.callback(child.communicate)
            assert child.stdout
            ports[name] = int(child.stdout.readline())
        found = tcp_sockets(names[:count])
    assert {name: [one.port for one in its] for name, its in found.items()} == {
        name: [ports[name]] for name in names[:count]
    }


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


def one(cookie: int, received: int = 0, address: str = NEAR, *, listens: bool = False) -> TcpSocket:
    return TcpSocket(cookie, listens, address, 5000, FAR, 443, received, 0, 0, 0)


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
