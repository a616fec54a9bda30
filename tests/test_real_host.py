"""Bytes of this machine's own disk and network against transfers of known size.

Needs root: fio writes and reads past the page cache, and two network namespaces are joined by veth.
"""

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent import bandwidth
from agent.assembly import Hardware, build_agent
from agent.backends.host import real_host
from agent.clock import SystemClock
from agent.config import Config, LimitConfig, NetworkConfig
from agent.look import Look
from agent.model import Metric
from agent.sources import disk, network
from tests.machines import no_driver

pytestmark = pytest.mark.root

MIB = 1 << 20
AMOUNT = 1024 * MIB
TRIES = 3
"""Others use this disk too: the least that was seen beyond the known amount counts."""

NETNS = "dgx-test"
NEAR, FAR = "dgxveth0", "dgxveth1"
NEAR_ADDRESS, FAR_ADDRESS = "10.99.77.1", "10.99.77.2"
PORT = 9999
PATIENCE = 30  # seconds
LIMIT = 10e6  # bytes per second

RECEIVER = """
import socket
server = socket.create_server(("{address}", {port}))
print("listening", flush=True)
peer, _ = server.accept()
while peer.recv(1 << 20):
    pass
"""
SENDER = """
import socket, sys
peer = socket.create_connection(("{address}", {port}))
block = bytes(1 << 20)
for _ in range(int(sys.argv[1])):
    peer.sendall(block)
peer.close()
"""


class Watch:
    """An agent on the real host, without NVML, that ticks on demand."""

    def __init__(self, config: Config | None = None) -> None:
        self.clock = SystemClock()
        hardware = Hardware(no_driver, real_host())
        self.agent = build_agent(config or Config(), hardware, self.clock, inline=True)

    def tick(self) -> Look:
        time.sleep(1.0)
        asyncio.run(self.agent.poller.tick())
        return Look(self.agent.poller.latest)

    def value(self, metric: Metric, *labels: str) -> float:
        value = self.tick().value(metric, *labels)
        assert value is not None
        return value


def disk_of(path: Path) -> str:
    """The whole disk that holds a path, as the kernel names it."""
    source = subprocess.run(
        ["findmnt", "-n", "-o", "SOURCE", "-T", path], capture_output=True, text=True, check=True
    ).stdout.strip()
    parent = subprocess.run(
        ["lsblk", "-n", "-o", "PKNAME", source], capture_output=True, text=True, check=False
    ).stdout.split()
    return parent[0] if parent else Path(source).name


def fio(direction: str, file: Path) -> None:
    command = ["fio", "--name=known", f"--rw={direction}", "--direct=1", "--bs=1M"]
    command += [f"--size={AMOUNT}", f"--filename={file}", "--output-format=json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    assert job[direction]["io_bytes"] == AMOUNT


@pytest.mark.parametrize(
    ("direction", "metric"), [("write", disk.WRITTEN_BYTES), ("read", disk.READ_BYTES)]
)
def test_disk_bytes_are_those_that_fio_moved(
    direction: str, metric: Metric, tmp_path: Path
) -> None:
    device, watch, seen = disk_of(tmp_path), Watch(), []
    file = tmp_path / "known"
    if direction == "read":
        fio("write", file)
    for _ in range(TRIES):
        subprocess.run(["sync"], check=True)
        before = watch.value(metric, device)
        fio(direction, file)
        seen.append(watch.value(metric, device) - before)
    print(f"{direction}: {min(seen) / AMOUNT:.5f} of {AMOUNT} bytes on {device}")
    assert min(seen) == pytest.approx(AMOUNT, rel=0.01)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def veth() -> Iterator[None]:
    """Two namespaces joined by a pair of interfaces."""
    ip("netns", "add", NETNS)
    try:
        ip("link", "add", NEAR, "type", "veth", "peer", "name", FAR)
        ip("link", "set", FAR, "netns", NETNS)
        ip("addr", "add", f"{NEAR_ADDRESS}/30", "dev", NEAR)
        ip("link", "set", NEAR, "up")
        ip("netns", "exec", NETNS, "ip", "addr", "add", f"{FAR_ADDRESS}/30", "dev", FAR)
        ip("netns", "exec", NETNS, "ip", "link", "set", FAR, "up")
        yield
    finally:
        subprocess.run(["ip", "link", "del", NEAR], check=False, capture_output=True)
        ip("netns", "del", NETNS)


@contextmanager
def transfer(mebibytes: int) -> Iterator[None]:
    """Send so much from here to the other namespace; at the end all of it has arrived."""
    receive = RECEIVER.format(address=FAR_ADDRESS, port=PORT)
    send = SENDER.format(address=FAR_ADDRESS, port=PORT)
    within = ["ip", "netns", "exec", NETNS, sys.executable, "-c", receive]
    with subprocess.Popen(within, stdout=subprocess.PIPE) as receiver:
        try:
            assert receiver.stdout is not None
            assert receiver.stdout.readline() == b"listening\n"
            with subprocess.Popen([sys.executable, "-c", send, str(mebibytes)]) as sender:
                yield
                assert sender.wait(PATIENCE) == 0
            receiver.wait(PATIENCE)
        finally:
            receiver.kill()


def veth_config() -> Config:
    return Config(
        network=NetworkConfig(ignore="^lo$"),
        limit=(LimitConfig("network", NEAR, "transmit", LIMIT),),
    )


@pytest.mark.usefixtures("veth")
def test_network_bytes_are_those_that_were_sent() -> None:
    watch = Watch(veth_config())
    before = watch.value(network.TRANSMITTED, NEAR)
    with transfer(512):
        pass
    sent = watch.value(network.TRANSMITTED, NEAR) - before
    print(f"sent: {sent / (512 * MIB):.5f} of {512 * MIB} bytes")
    assert sent == pytest.approx(512 * MIB, rel=0.01)


@pytest.mark.usefixtures("veth")
def test_a_veth_with_a_configured_limit_saturates_and_shows_it() -> None:
    pace = ["tc", "qdisc", "add", "dev", NEAR, "root", "tbf"]
    pace += ["rate", f"{LIMIT * 8:.0f}bit", "burst", "64kb", "latency", "50ms"]
    subprocess.run(pace, check=True, capture_output=True)
    watch = Watch(veth_config())
    key = ("network", NEAR, "", "", "transmit")
    watch.tick()
    with transfer(80):
        looks = [watch.tick() for _ in range(7)]
    look = looks[-1]
    saturated = look.value(bandwidth.SATURATED, *key)
    ratio = look.value(bandwidth.RATIO, *key)
    print(f"ratio {ratio}, saturated for {saturated} s")
    assert ratio == pytest.approx(1.0, abs=0.06)
    assert saturated is not None
    assert saturated >= 5


def test_the_tools_are_there() -> None:
    assert all(shutil.which(tool) for tool in ("fio", "ip", "tc", "findmnt", "lsblk"))
