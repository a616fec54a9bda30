"""Bytes of this machine's own disk and network against transfers of known size.

Needs root: fio writes and reads past the page cache, and two network namespaces are joined by veth.
Others use this machine too. So the agent is held against the kernel's own counters, read just
before and just after each of its ticks: what it says must lie between, however late it comes.
"""

import asyncio
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import getpid
from pathlib import Path

import pytest

from agent.cli.assembly import Agent, Hardware
from agent.clock import SystemClock
from agent.config.settings import Settings
from agent.hardware.host import real_host
from agent.limits import paths
from agent.limits.resolution import LimitConfig, LimitsConfig
from agent.model import EXPIRY_INTERVALS, Metric
from agent.polling import intervals
from agent.series import SampleStore
from agent.sources import disk, network
from agent.sources.network import NetworkConfig
from tests.stack.running import run_to_end
from tests.support.kernel_counters import Between, Mark, between, marked
from tests.support.machines import no_driver
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.root

MIB = 1 << 20
AMOUNT = 1024 * MIB

OWN = getpid()  # two runs of the tests may share a machine
NETNS = f"dgx-test-{OWN}"
NEAR, FAR = f"dgx{OWN}a", f"dgx{OWN}b"
NEAR_ADDRESS, FAR_ADDRESS = (f"10.99.{OWN % 250}.{end}" for end in (1, 2))
PORT = 9999
LIMIT = 10e6  # bytes per second
PACE = 2.5 * LIMIT  # what passes at most: it may come to less where the CPUs are busy
THRESHOLD = 0.9 * LIMIT
FULL = 5.0  # seconds
AMPLE = 100_000  # mebibytes: more than is waited for
SENT = Path(f"/sys/class/net/{NEAR}/statistics/tx_bytes")
PATH = ("network", NEAR, "", "", "transmit")

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

    def __init__(self, config: Settings | None = None) -> None:
        self.clock = SystemClock()
        hardware = Hardware(no_driver, real_host())
        self.agent = Agent(config or Settings(), hardware, self.clock, inline=True)

    def tick(self) -> SampleStore:
        time.sleep(intervals.TICK)
        return self.samples()

    def samples(self) -> SampleStore:
        asyncio.run(self.agent.poller.tick())
        return SampleStore.of(self.agent.poller.latest)

    def value(self, metric: Metric, *labels: str) -> float:
        value = self.tick().value(metric, *labels)
        assert value is not None
        return value

    def marked(self, counter: Callable[[], int]) -> tuple[SampleStore, Mark]:
        """A tick between two checks of a counter of the kernel."""
        time.sleep(intervals.TICK)
        return marked(self.samples, counter)


def disk_of(path: Path) -> str:
    """The whole disk that holds a path, as the kernel names it."""
    source = run_to_end(["findmnt", "-n", "-o", "SOURCE", "-T", path]).stdout.strip()
    parent = run_to_end(["lsblk", "-n", "-o", "PKNAME", source]).stdout.split()
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
    device, watch, file = disk_of(tmp_path), Watch(), tmp_path / "known"

    def counter() -> int:
        fields = Path(f"/sys/block/{device}/stat").read_text().split()
        return 512 * int(fields[{"read": 2, "write": 6}[direction]])

    if direction == "read":
        fio("write", file)
    start, first = watch.marked(counter)
    fio(direction, file)
    end, last = watch.marked(counter)
    before, after = start.value(metric, device), end.value(metric, device)
    assert before is not None
    assert after is not None
    print(f"{direction}: {(after - before) / AMOUNT:.5f} of {AMOUNT} bytes on {device}")
    assert after - before >= AMOUNT
    least, most = between(first, last).counted
    assert least <= after - before <= most


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
def sending(mebibytes: int) -> Iterator[Callable[[], None]]:
    """Send so much from here to the other namespace. Yields what waits until all has arrived; both
    ends are gone after the block, whether it has or not."""
    receive = RECEIVER.format(address=FAR_ADDRESS, port=PORT)
    send = SENDER.format(address=FAR_ADDRESS, port=PORT)
    within = ["ip", "netns", "exec", NETNS, sys.executable, "-c", receive]
    with subprocess.Popen(within, stdout=subprocess.PIPE) as receiver:
        try:
            assert receiver.stdout is not None
            assert receiver.stdout.readline() == b"listening\n"
            with subprocess.Popen([sys.executable, "-c", send, str(mebibytes)]) as sender:
                try:
                    yield lambda: arrived(sender, receiver)
                finally:
                    sender.kill()
        finally:
            receiver.kill()


def arrived(sender: subprocess.Popen[bytes], receiver: subprocess.Popen[bytes]) -> None:
    assert sender.wait(PATIENCE) == 0
    assert receiver.wait(PATIENCE) == 0


def veth_config() -> Settings:
    return Settings(
        NetworkConfig(re.compile("^lo$")),
        LimitsConfig((LimitConfig("network", NEAR, "transmit", LIMIT),)),
    )


@pytest.mark.usefixtures("veth")
def test_network_bytes_are_those_that_were_sent() -> None:
    watch = Watch(veth_config())
    before = watch.value(network.TRANSMITTED, NEAR)
    with sending(512) as arrived:
        arrived()
    sent = watch.value(network.TRANSMITTED, NEAR) - before
    print(f"sent: {sent / (512 * MIB):.5f} of {512 * MIB} bytes")
    # The counter includes headers: 66 bytes for each segment, which has 1,448 bytes or more.
    assert 1.0 <= sent / (512 * MIB) <= 1.05


@pytest.mark.usefixtures("veth")
def test_a_veth_above_its_configured_limit_is_saturated_for_as_long() -> None:
    """Two and a half times the limit may pass; where less comes through, because the CPUs are busy,
    less is expected."""
    pace = ["tc", "qdisc", "add", "dev", NEAR, "root", "tbf"]
    pace += ["rate", f"{PACE * 8:.0f}bit", "burst", "256kb", "latency", "50ms"]
    subprocess.run(pace, check=True, capture_output=True)
    watch = Watch(veth_config())

    def tick() -> tuple[SampleStore, Mark]:
        return watch.marked(lambda: int(SENT.read_text()))

    ticks = [tick(), tick()]  # the first of a counter reports no rate
    least = most = 0.0  # seconds that were saturated for certain, and that may have been
    with sending(AMPLE):
        while least < FULL and len(ticks) < 60:
            ticks.append(tick())
            lay = between(ticks[-2][1], ticks[-1][1])
            if is_reported(ticks[-1][0], lay):
                least += lay.seconds[0] * (lay.rate[0] >= THRESHOLD)
                most += lay.seconds[1] * (lay.rate[1] >= THRESHOLD)
    ends = ticks[1], ticks[-1]
    quiet, saturated = (samples.value(paths.SATURATED, *PATH) for samples, _ in ends)
    print(f"saturated for {saturated} s, by the kernel {least:.3f} to {most:.3f} s")
    assert quiet == 0.0
    assert saturated is not None
    assert FULL <= least <= saturated <= most


def is_reported(samples: SampleStore, lay: Between) -> bool:
    """Return whether the agent reports a ratio, which must then be right; it must report one unless
    it came late."""
    ratio = samples.value(paths.RATIO, *PATH)
    if ratio is None:
        assert lay.seconds[1] > EXPIRY_INTERVALS * intervals.TICK
        return False
    low, high = (rate / LIMIT for rate in lay.rate)
    print(f"ratio {ratio:.4f}, by the kernel {low:.4f} to {high:.4f}")
    assert lay.rate[0] <= ratio * LIMIT <= lay.rate[1]
    return True


def test_the_tools_are_there() -> None:
    assert all(shutil.which(tool) for tool in ("fio", "ip", "tc", "findmnt", "lsblk"))
