"""Real processes: starts that fail, a driver library that crashes, a driver that is given back."""

import re
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cli import run
from tests.stack.running import Running, eventually
from tests.support import crashing_library
from tests.support.nightly import NIGHTLY
from tests.support.patience import PATIENCE

STARTED = r"listen=http://127\.0\.0\.1:(\d+)/"


def serving(running: Running) -> int:
    return int(running.line(STARTED)[1])


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
        return str(answer.read().decode())


def value(port: int, series: str) -> float | None:
    found = re.search(rf"^{re.escape(series)} (\S+)$", scrape(port), re.MULTILINE)
    return float(found[1]) if found else None


# A driver library that crashes.


def test_a_library_that_crashes_leaves_the_host_watched(tmp_path: Path) -> None:
    crashing_library.make(tmp_path)
    with Running("agent", "run", "--listen", "127.0.0.1:0", LD_LIBRARY_PATH=str(tmp_path)) as agent:
        port = serving(agent)
        absent = 'dgx_agent_absent_values{metric="dgx_system_gpus",reason="crashed"}'
        eventually(lambda: value(port, absent) == 1.0, "the reason")
        assert value(port, 'dgx_agent_source_up{source="nvml"}') == 0.0
        assert "dgx_cpu_busy_ratio" in scrape(port)
        assert "SIGILL" in agent.line("event=read_failed source=nvml").string
        assert agent.process.poll() is None
        assert agent.end(signal.SIGTERM) == 0


def test_check_names_it_and_ends_well(tmp_path: Path) -> None:
    crashing_library.make(tmp_path)
    with Running("agent", "check", LD_LIBRARY_PATH=str(tmp_path)) as check:
        check.line(r"NVML crashed: nvmlInit ended a process that tried it \(SIGILL\)")
        assert check.process.wait(PATIENCE) == 1


# A start that fails.


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        channel.settimeout(PATIENCE)
        yield channel


class Start:
    """The agent as systemd starts it, with a configuration that is wrong."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "config.toml"
        self.file.write_text("unknown = 1\n")

    @property
    def failed(self) -> str:
        count = self.folder / run.COUNT
        return count.read_text() if count.exists() else ""

    def run(self) -> Running:
        environment = {
            "RUNTIME_DIRECTORY": str(self.folder),
            "NOTIFY_SOCKET": str(self.folder / "notify"),
        }
        return Running("agent", "run", "--config", str(self.file), **environment)


def test_each_start_that_fails_ends_later(tmp_path: Path, manager: socket.socket) -> None:
    start, took = Start(tmp_path), []
    for number in (1, 2, 3):
        began = time.monotonic()
        with start.run() as running:
            running.line("unknown")
            assert running.process.wait(PATIENCE) == 2
        took.append(time.monotonic() - began)
        assert start.failed == str(number)
    assert took[2] > 2.0, "it waits that long before it ends"
    heard = [manager.recv(4096).decode() for _ in range(2)]
    assert all(re.match(r"STATUS=Cannot start: .*unknown.*tried again within", h) for h in heard)
    longer = [int(h.rpartition("EXTEND_TIMEOUT_USEC=")[2]) for h in heard]
    assert longer == sorted(longer)
    assert longer[0] > 60e6


def test_a_file_that_changes_ends_the_wait(tmp_path: Path, manager: socket.socket) -> None:
    start = Start(tmp_path)
    (tmp_path / run.COUNT).write_text("40")
    with start.run() as running:
        assert f"within {run.LONGEST:g} s" in manager.recv(4096).decode()
        start.file.write_text('listen = "127.0.0.1:0"\n')
        assert running.process.wait(PATIENCE) == 2
    assert start.failed == ""
    with start.run() as running:
        assert scrape(serving(running))
        assert running.end(signal.SIGTERM) == 0


def test_who_stops_it_while_it_waits_hears_at_once_what_is_wrong(
    tmp_path: Path, manager: socket.socket
) -> None:
    start = Start(tmp_path)
    (tmp_path / run.COUNT).write_text("40")
    with start.run() as running:
        manager.recv(4096)
        assert running.end(signal.SIGTERM) == 0
    assert start.failed == ""


def test_a_start_that_crashed_begins_the_next_one_later(
    tmp_path: Path, manager: socket.socket
) -> None:
    start = Start(tmp_path)
    start.file.write_text('listen = "127.0.0.1:0"\n')
    for number in range(2):
        with start.run() as running:
            serving(running)
            running.process.kill()
            running.process.wait(PATIENCE)
        assert start.failed == str(number or "")
    (tmp_path / run.COUNT).write_text("40")
    with start.run() as running:
        heard = manager.recv(4096).decode()
        while "STATUS=The last start crashed; tried again within 600 s" not in heard:
            heard = manager.recv(4096).decode()
        start.file.write_text('listen = "127.0.0.1:0" \n')
        assert scrape(serving(running))
        assert running.end(signal.SIGTERM) == 0
    assert not [*tmp_path.glob(run.UNDER_WAY), *tmp_path.glob(run.COUNT)]


def test_by_hand_it_ends_at_once(tmp_path: Path) -> None:
    start = Start(tmp_path)
    with Running("agent", "run", "--config", str(start.file)) as running:
        running.line("unknown")
        assert running.process.wait(PATIENCE) == 2
    assert start.failed == ""


# A driver that is given back.


class Held:
    """An agent whose library holds a file open."""

    def __init__(self, folder: Path, how: str) -> None:
        self.node, self.file = folder / "nvidia0", folder / "release"
        self.node.touch()
        config = folder / "config.toml"
        config.write_text(f'[driver]\nrelease_file = "{self.file}"\n')
        words = ("run", "--listen", "127.0.0.1:0", "--config", str(config))
        self.running = Running("tests.support.held_driver", str(self.node), how, *words)

    def opened(self) -> int:
        """Return the number of times that the process has the file open."""
        folder = Path(f"/proc/{self.running.process.pid}/fd")
        found = 0
        for link in folder.iterdir():
            try:
                found += link.readlink() == self.node
            except FileNotFoundError:
                continue
        return found


def gpus(port: int) -> float | None:
    return value(port, "dgx_system_gpus")


RELEASED = 'dgx_agent_absent_values{metric="dgx_system_gpus",reason="released"}'


def test_the_driver_is_closed_and_opened_again(tmp_path: Path) -> None:
    held = Held(tmp_path, "well")
    with held.running as running:
        port = serving(running)
        eventually(lambda: gpus(port) == 2.0, "two GPUs")
        assert held.opened() == 1
        held.file.touch()
        eventually(lambda: value(port, RELEASED) == 1.0, "released")
        assert held.opened() == 0
        running.line("event=driver_released")
        held.file.unlink()
        eventually(lambda: gpus(port) == 2.0, "two GPUs again")
        assert held.opened() == 1
        assert running.end(signal.SIGTERM) == 0
    assert not [line for line in running.said if "restarting" in line]


@pytest.mark.parametrize("how", [pytest.param("keeps", marks=NIGHTLY), "hangs"])
def test_what_cannot_be_closed_goes_with_the_program(tmp_path: Path, how: str) -> None:
    held = Held(tmp_path, how)
    with held.running as running:
        port = serving(running)
        eventually(lambda: gpus(port) == 2.0, "two GPUs")
        pid = running.process.pid
        held.node.with_suffix(".hang").touch()
        if how == "hangs":
            up = 'dgx_agent_source_up{source="nvml"}'
            eventually(lambda: value(port, up) == 0.0, "the hang is seen")
        held.file.touch()
        running.line(r"event=restarting why=.*still open")
        port = serving(running)
        eventually(lambda: value(port, RELEASED) == 1.0, "released")
        assert (running.process.pid, held.opened()) == (pid, 0)
        held.node.with_suffix(".hang").unlink()
        held.file.unlink()
        eventually(lambda: gpus(port) == 2.0, "two GPUs again")
        assert running.end(signal.SIGTERM) == 0


@NIGHTLY
def test_a_simulated_driver_that_hangs_is_released_as_a_real_one(tmp_path: Path) -> None:
    file, config = tmp_path / "release", tmp_path / "config.toml"
    config.write_text(f'[driver]\nrelease_file = "{file}"\n')
    machine = ("--simulate", "dgx-h100:driver-hang", "--simulate-speed", "4")
    words = ("run", "--listen", "127.0.0.1:0", "--config", str(config), *machine)
    with Running("agent", *words) as running:
        port = serving(running)
        up = 'dgx_agent_source_up{source="nvml"}'
        eventually(lambda: value(port, up) == 0.0, "the hang is seen")
        file.touch()
        running.line("event=restarting why=.*still open")
        port = serving(running)
        eventually(lambda: value(port, RELEASED) == 1.0, "released")
        before = value(port, "dgx_agent_last_tick_timestamp_seconds")
        time.sleep(3.0)  # the driver hangs again by now, and no thread is in it
        assert value(port, RELEASED) == 1.0
        assert value(port, up) == 1.0
        assert value(port, "dgx_cpu_busy_ratio") is not None
        assert value(port, "dgx_agent_last_tick_timestamp_seconds") != before
        file.unlink()
        eventually(lambda: value(port, up) == 0.0, "the driver is taken, and hangs")
        assert running.end(signal.SIGTERM) == 0
