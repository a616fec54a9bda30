"""Messages to the service manager: readiness, state, and the poller's watchdog notifications."""

import asyncio
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from agent.cli.run import condition_of, notify
from agent.polling.poller import Poller
from agent.polling.reads import ReadCosts
from agent.polling.worker import InlineWorker
from agent.service.journal import TIMEOUT, NotifySocket, status
from tests.stack.running import Running, eventually
from tests.support.frozen_clock import FrozenClock
from tests.support.machines import simulated


class NotifyReceiver:
    """A socket as the service manager has it."""

    def __init__(self, address: str) -> None:
        self.channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.channel.bind(address.replace("@", "\0", 1))
        self.channel.setblocking(False)
        self.heard: list[str] = []

    def lines(self) -> list[str]:
        """Every line heard so far."""
        while True:
            try:
                self.heard += self.channel.recv(4096).decode().split("\n")
            except BlockingIOError:
                return self.heard


@pytest.fixture
def address(tmp_path: Path) -> str:
    return str(tmp_path / "notify")


@pytest.fixture
def receiver(address: str) -> Iterator[NotifyReceiver]:
    receiver = NotifyReceiver(address)
    yield receiver
    receiver.channel.close()


def manager(address: str, **environment: str) -> NotifySocket:
    return NotifySocket.of({"NOTIFY_SOCKET": address, **environment})


def test_several_news_are_one_message(receiver: NotifyReceiver, address: str) -> None:
    manager(address).send("READY=1", status("All is\nwell."))
    assert receiver.channel.recv(4096) == b"READY=1\nSTATUS=All is well."


def test_an_abstract_address_begins_with_an_at() -> None:
    address = f"@dgx-telemetry-test-{os.getpid()}"
    receiver = NotifyReceiver(address)
    manager(address).send("READY=1")
    assert receiver.lines() == ["READY=1"]
    receiver.channel.close()


def test_without_a_service_manager_nothing_is_sent_and_nothing_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    NotifySocket.of({}).send("READY=1")
    assert caplog.records == []


def test_a_service_manager_that_is_gone_ends_nothing_and_may_come_back(address: str) -> None:
    gone = manager(address)
    gone.send("WATCHDOG=1")
    receiver = NotifyReceiver(address)
    gone.send("WATCHDOG=1")
    assert receiver.lines() == ["WATCHDOG=1"]
    receiver.channel.close()


def test_a_full_queue_delays_nothing(receiver: NotifyReceiver, address: str) -> None:
    silent = manager(address)
    limit = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())
    began = time.monotonic()
    for _ in range(limit + 3):
        silent.send("WATCHDOG=1")
    assert time.monotonic() - began > 2 * TIMEOUT, "the queue is full"
    assert receiver.lines()


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({}, 0.0),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
    ],
)
def test_the_watchdog_is_as_the_environment_says(
    environment: dict[str, str], seconds: float
) -> None:
    assert NotifySocket.of(environment).watchdog == seconds


def test_the_first_tick_makes_ready_and_each_tick_is_a_beat(
    receiver: NotifyReceiver, address: str
) -> None:
    bench = simulated("dgx-h100:training")
    notifier = partial(notify, manager(address), lambda: condition_of(bench.agent))
    bench.agent.poller.listeners.append(notifier)
    assert receiver.lines() == []
    bench.run(3)
    assert receiver.lines() == [
        *("WATCHDOG=1", "READY=1", "STATUS=Waiting for the first readings of nvml, host."),
        *("WATCHDOG=1", "STATUS=Monitoring 8 GPUs of NVIDIA DGX H100.") * 2,
    ]


def test_a_lost_gpu_is_in_the_status(receiver: NotifyReceiver, address: str) -> None:
    bench = simulated("dgx-station-v100:gpu-lost")
    notifier = partial(notify, manager(address), lambda: condition_of(bench.agent))
    bench.agent.poller.listeners.append(notifier)
    bench.run(15)
    assert receiver.lines()[-1] == "STATUS=3 of 4 GPUs of NVIDIA DGX Station (Tesla V100) respond."


def test_a_listener_that_stumbles_is_reported_once_and_costs_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = simulated("k40:idle")
    heard: list[int] = []

    def stumble(_: object) -> None:
        raise ZeroDivisionError("odd")

    bench.agent.poller.listeners += [stumble, lambda snapshot: heard.append(snapshot.tick)]
    bench.run(3)
    assert heard == [1, 2, 3]
    shown = [r for r in caplog.records if "listener" in r.getMessage()]
    assert len(shown) == 1


class Stopped(FrozenClock):
    """A clock on which no one ever wakes up."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.Event().wait()


class Hanging(InlineWorker):
    """A worker whose turns hang once `hangs` is set."""

    hangs = False

    def start_turn(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future() if self.hangs else super().start_turn()


async def test_a_poller_that_stands_still_sends_no_beat(
    receiver: NotifyReceiver, address: str
) -> None:
    """A timer beside the poller would go on."""
    worker = Hanging("nvml", lambda emit: None, lambda: True, Stopped())
    notifier = partial(notify, manager(address), lambda: "")
    poller = Poller([worker], ReadCosts(), worker.clock, listeners=[notifier])
    await poller.tick()
    assert count(receiver, "WATCHDOG=1") == 1
    worker.hangs = True
    frozen = asyncio.create_task(poller.tick())
    await asyncio.sleep(0.1)
    assert count(receiver, "WATCHDOG=1") == 1
    assert not frozen.done()
    frozen.cancel()


def count(receiver: NotifyReceiver, line: str) -> int:
    return receiver.lines().count(line)


def agent_with(address: str, machine: str, watchdog: str = "9000000") -> Running:
    return Running(
        *("agent", "run", "--listen", "127.0.0.1:0", "--simulate", machine),
        *("--simulate-speed", "10"),
        NOTIFY_SOCKET=address,
        WATCHDOG_USEC=watchdog,
    )


def test_a_real_agent_starts_beats_reloads_and_stops(
    receiver: NotifyReceiver, address: str
) -> None:
    with agent_with(address, "dgx-station-v100:training") as agent:
        eventually(lambda: "READY=1" in receiver.lines(), "ready")
        eventually(lambda: count(receiver, "WATCHDOG=1") > 3, "a watchdog notification")
        agent.process.send_signal(signal.SIGHUP)
        eventually(lambda: count(receiver, "READY=1") == 2, "ready after the reload")
        reload = receiver.lines().index("RELOADING=1")
        assert re.fullmatch(r"MONOTONIC_USEC=\d+", receiver.lines()[reload + 1])
        assert "READY=1" in receiver.lines()[reload:]
        assert agent.end(signal.SIGTERM) == 0
        assert "STOPPING=1" in receiver.lines()


def test_a_driver_that_hangs_stops_neither_the_start_nor_the_heartbeat(
    receiver: NotifyReceiver, address: str
) -> None:
    with agent_with(address, "dgx-station-v100:driver-hang") as agent:
        eventually(lambda: "READY=1" in receiver.lines(), "ready though the driver hangs")
        hangs = "STATUS=A call to nvml hangs; the rest is served."
        eventually(lambda: hangs in receiver.lines(), "the hang in the state")
        notifications = count(receiver, "WATCHDOG=1")
        eventually(
            lambda: count(receiver, "WATCHDOG=1") > notifications + 5,
            "a watchdog notification all the same",
        )
        agent.end(signal.SIGTERM)
    agent.line("event=stopped")
    assert "".join(agent.said).count("event=worker_stalled") == 1


def test_a_watchdog_shorter_than_two_ticks_is_warned_of_once(
    receiver: NotifyReceiver, address: str
) -> None:
    with agent_with(address, "k40:idle", watchdog="150000") as agent:
        agent.line("event=watchdog_too_short seconds=0.15 tick=0.1")
        eventually(lambda: count(receiver, "WATCHDOG=1") > 3, "a watchdog notification")
        agent.end(signal.SIGTERM)
        assert "".join(agent.said).count("watchdog_too_short") == 1
