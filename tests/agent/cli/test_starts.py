"""Real processes: a driver library that crashes, a driver that is given back."""

import json
import re
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.stack.running import Running, eventually
from tests.support import crashing_library
from tests.support.nightly import NIGHTLY
from tests.support.patience import PATIENCE
from tests.support.repository import TAPES


def serving(running: Running) -> int:
    return int(running.line(r"listen=http://127\.0\.0\.1:(\d+)/")[1])


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
        return str(answer.read().decode())


def value(port: int, series: str) -> float | None:
    found = re.search(rf"^{re.escape(series)} (\S+)$", scrape(port), re.MULTILINE)
    return float(found[1]) if found else None


def test_an_agent_without_tls_loads_no_openssl() -> None:
    with Running("agent", "run", "--listen", "127.0.0.1:0") as agent:
        assert "process_open_fds" in scrape(serving(agent))
        maps = Path(f"/proc/{agent.process.pid}/maps").read_text()
    assert not re.search("libssl|libcrypto", maps)


def test_no_second_is_counted_after_the_end_of_a_tape() -> None:
    fast = ("--simulate-speed", "10", "--listen", "127.0.0.1:0")
    with Running("agent", "run", "--replay", f"{TAPES}/h100-idle.tape", *fast) as agent:
        port = serving(agent)

        def status() -> dict[str, Any]:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/status") as answer:
                return dict(json.load(answer))

        def stands() -> bool:
            before = status()
            time.sleep(0.4)  # four ticks
            return status() == before

        eventually(stands, "the end of the tape")
        assert "(ended)" in status()["machine"]["text"]
        assert "dgx_gpu_power_watts{" in scrape(port)


# A driver library that crashes.


def test_a_library_that_crashes_leaves_the_host_watched(tmp_path: Path) -> None:
    crashing_library.make(tmp_path)
    with Running("agent", "run", "--listen", "127.0.0.1:0", LD_LIBRARY_PATH=str(tmp_path)) as agent:
        port = serving(agent)
        absent = 'dgx_agent_absent_values{metric="dgx_system_gpus",reason="crashed"}'
        eventually(lambda: value(port, absent) == 1.0, "the reason")
        assert value(port, 'dgx_agent_source_up{source="nvml"}') == 0.0
        eventually(lambda: value(port, "dgx_cpu_busy_ratio") is not None, "two looks at the CPUs")
        assert "SIGILL" in agent.line("event=read_failed source=nvml").string
        assert agent.process.poll() is None
        assert agent.end(signal.SIGTERM) == 0


def test_check_names_it_and_ends_well(tmp_path: Path) -> None:
    crashing_library.make(tmp_path)
    environment = {"LD_LIBRARY_PATH": str(tmp_path), "DGX_TELEMETRY_LISTEN": "127.0.0.1:1"}
    with Running("agent", "check", **environment) as check:  # an agent of other tests may run
        check.line(r"NVML crashed: nvmlInit ended a process that tried it \(SIGILL\)")
        assert check.process.wait(PATIENCE) == 1


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
