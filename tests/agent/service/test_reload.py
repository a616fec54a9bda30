"""Another configuration while the agent runs: in force at once, whole or not at all."""

import asyncio
import json
import logging
import re
import signal
import socket
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.cli.options import SECTIONS
from agent.config.configuration import load
from agent.config.reload import Reload
from agent.config.settings import Settings
from agent.diagnosis.thresholds import Thresholds
from agent.limits.resolution import LimitConfig, LimitsConfig
from agent.service.journal import LogConfig, start_logging
from agent.sources.agent_health import CONFIG_OK
from agent.sources.disk import DiskConfig
from agent.sources.network import NetworkConfig
from agent.sources.process import ProcessConfig
from agent.sources.workload import JobConfig
from agent.specs.sheets import SaturationConfig
from tests.stack.running import Running, eventually
from tests.support.machines import AgentBench, simulated
from tests.support.patience import PATIENCE

EVERYTHING = Settings(
    ProcessConfig(series=2),
    JobConfig(info=True),
    DiskConfig(re.compile("^nvme")),
    NetworkConfig(re.compile("^en")),
    Thresholds(held_after=5.0, busy=0.99),
    SaturationConfig(nvlink=0.01, network=0.01),
    LimitsConfig((LimitConfig("disk", "md0", "read", 1e9),)),
)


def follow(bench: AgentBench, settings: Settings) -> None:
    bench.agent.configuration.current = bench.agent.complete(settings)


def counters(scrape: str) -> dict[str, float]:
    found = re.findall(r"^(\S+_total(?:\{.*\})?) (\S+)$", scrape, re.MULTILINE)
    return {series: float(value) for series, value in found}


@pytest.mark.parametrize("name", ["titan-x-pascal:training", "dgx-h100:xid"])
def test_no_counter_goes_back(name: str) -> None:
    bench = simulated(name, gpus=2).run(20)
    before = counters(bench.scrape())
    assert any("state_seconds" in s and value for s, value in before.items())
    follow(bench, EVERYTHING)
    after = counters(bench.run(6).scrape())
    assert [s for s, value in before.items() if after.get(s, value) < value] == []
    gone = {re.split("[{]", s)[0] for s in before.keys() - after.keys()}
    assert gone <= {
        *("dgx_disk_read_bytes_total", "dgx_disk_written_bytes_total"),
        *("dgx_disk_busy_seconds_total", "dgx_network_received_bytes_total"),
        *("dgx_network_transmitted_bytes_total", "dgx_bandwidth_saturated_seconds_total"),
        "dgx_bandwidth_observed_seconds_total",
    }, "only what is ignored now is gone"
    assert gone >= {"dgx_disk_read_bytes_total", "dgx_network_received_bytes_total"}
    follow(bench, Settings())
    back = counters(bench.run(5).skip(60).run(5).scrape())
    assert [s for s, value in before.items() if back[s] < value] == [], "and it comes back"


def occurs(pattern: str) -> Callable[[AgentBench], bool]:
    return lambda bench: re.search(pattern, bench.scrape(), re.MULTILINE) is not None


EFFECTS = tomllib.loads(Path(__file__).with_name("effects.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", EFFECTS)
def test_a_setting_takes_effect_while_the_agent_runs(case: str, tmp_path: Path) -> None:
    effect = EFFECTS[case]
    pattern, seconds = effect["sign"], effect["seconds"]
    (tmp_path / "config.toml").write_text(effect["config"])
    bench = simulated(effect["machine"], gpus=1).run(8)
    assert not occurs(pattern)(bench), "not before"
    follow(bench, load(SECTIONS, tmp_path / "config.toml", {}))
    assert occurs(pattern)(bench.run(seconds % 60).skip(seconds - seconds % 60).run(2))
    follow(bench, Settings())
    if "total" not in pattern:
        bench.run(seconds % 60).skip(seconds - seconds % 60).run(2)
        assert not occurs(pattern)(bench), "and not after"


@dataclass
class Reloading:
    """A reload over a file that tests write."""

    file: Path
    bench: AgentBench = field(default_factory=lambda: simulated("k40:idle").run(2))

    def __post_init__(self) -> None:
        self.reload = Reload(
            self.bench.agent.configuration,
            read=lambda: self.bench.agent.complete(load(SECTIONS, self.file, {})),
            follow=lambda settings: start_logging(settings[LogConfig]),
        )
        self.bench.agent.poller.config_ok = lambda: self.reload.good

    def to(self, text: str) -> float | None:
        """The metric after a reload of this text."""
        self.file.write_text(text)
        asyncio.run(self.reload.reload())
        self.bench.run(1)
        return self.bench.samples.value(CONFIG_OK)


@pytest.fixture
def reloading(tmp_path: Path) -> Iterator[Reloading]:
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    yield Reloading(tmp_path / "config.toml")
    root.setLevel(before[0])
    root.handlers[:] = before[1]


BAD = {
    "unknown key": "listne = 1",
    "half good": "[process]\nseries = 3\n[job]\ninfo = 3",
    "no such system": 'system = "dgx-9"\n[process]\nseries = 3',
    "not TOML": "listen =",
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_configuration_keeps_the_old_whole_and_says_so_once(
    case: str, reloading: Reloading, caplog: pytest.LogCaptureFixture
) -> None:
    before = reloading.bench.agent.settings
    caplog.clear()
    assert reloading.to(BAD[case]) == 0
    assert reloading.bench.agent.settings is before
    failures = [r for r in caplog.records if "event=reload" in r.getMessage()]
    assert [r.levelname for r in failures] == ["ERROR"]
    assert "\n" not in failures[0].getMessage()
    assert failures[0].exc_info is None
    assert reloading.to("[process]\nseries = 3") == 1
    assert reloading.bench.agent.settings[ProcessConfig].series == 3


@pytest.mark.parametrize(("part", "in_force"), [("read", False), ("follow", True)])
def test_what_cannot_read_or_follow_is_reported_and_the_agent_goes_on(
    reloading: Reloading, part: str, caplog: pytest.LogCaptureFixture, *, in_force: bool
) -> None:
    def stumble(*_: Settings) -> Settings:
        raise ZeroDivisionError("odd")

    setattr(reloading.reload, part, stumble)
    assert reloading.to("[process]\nseries = 3") == 0
    assert "ZeroDivisionError: odd" in caplog.text
    assert (reloading.bench.agent.settings[ProcessConfig].series == 3) is in_force


def test_level_and_format_of_logs_follow_and_what_needs_a_restart_is_named(
    reloading: Reloading, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reloading.to("") == 1
    assert reloading.to('listen = ":1"') == 1
    assert reloading.to('listen = ":1"\n[log]\nformat = "json"') == 1, "it still needs one"
    assert reloading.to('[log]\nformat = "json"\nlevel = "error"') == 1
    assert reloading.to("listne = 1") == 0
    shown = capsys.readouterr().err.splitlines()
    assert [re.sub(r'.*event[=": ]+(\w+).*', r"\1", line) for line in shown] == [
        *("reloaded", "needs_a_restart", "reloaded", "needs_a_restart", "reloaded"),
        "reload_failed",
    ]
    assert shown[1].endswith("key=listen in_force=127.0.0.1:9935 new=:1")
    assert json.loads(shown[-1])["error"].startswith(f"{reloading.file}: listne")


def test_a_real_agent_reloads_on_sighup_and_goes_on_at_sigusr1(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    file.write_text(f'listen = "{address}"\n')

    def metrics() -> str:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE) as page:
            return str(page.read().decode())

    machine = ("--simulate", "dgx-station-v100:training", "--simulate-speed", "10")
    with Running("agent", "run", "--config", str(file), *machine) as agent:
        agent.line("event=nvml_connected")
        eventually(lambda: 'path="nvlink"' in metrics(), "metrics")
        before = counters(metrics())

        for number in (signal.SIGUSR1, signal.SIGUSR2):
            agent.process.send_signal(number)
            agent.line(f"event=signal_ignored signal={number.name}")
        file.write_text('web_config_file = "/nowhere.yaml"')
        agent.process.send_signal(signal.SIGHUP)
        agent.line("level=error .*event=reload_failed .*/nowhere.yaml")
        file.write_text("listne = 1")
        agent.process.send_signal(signal.SIGHUP)
        agent.line("level=error .*event=reload_failed .*listne is not a known key")
        ok = "dgx_agent_config_last_reload_successful"
        eventually(lambda: f"\n{ok} 0.0\n" in metrics(), "a failed reload in the metrics")

        file.write_text('listen = "127.0.0.1:1"\n[job]\ninfo = true\n[log]\nformat = "json"\n')
        agent.process.send_signal(signal.SIGHUP)
        agent.line("event=needs_a_restart key=listen")
        agent.line('"event": "reloaded"')
        eventually(lambda: "\ndgx_gpu_job_info{" in metrics(), "the new setting in force")
        text = metrics()
        assert f"\n{ok} 1.0\n" in text
        after = counters(text)
        own = [s for s in before if s.startswith(("dgx_gpu_state", "dgx_bandwidth", "dgx_gpu_xid"))]
        assert own
        assert [s for s in own if after[s] < before[s]] == []
        assert agent.process.poll() is None
        assert agent.end(signal.SIGTERM) == 0
