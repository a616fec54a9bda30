"""`dgx-telemetry up`: it starts, prints addresses, and leaves nothing behind."""

import json
import os
import re
import shlex
import signal
import socket
import sys
import tomllib
import urllib.request
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from agent.cli.up import plan_of, programs_of, write_files
from agent.errors import BadInput
from agent.stack.programs import FreePorts, choose, data_folder
from tests.stack.running import Running, alive, eventually, run_to_end
from tests.support.patience import PATIENCE

CASES = tomllib.loads(Path(__file__).with_name("up.toml").read_text("utf-8"))

pytestmark = pytest.mark.stack

READY = {"agent": "-/ready", "prometheus": "-/ready", "alertmanager": "-/ready"}


def addresses(up: Running) -> dict[str, str]:
    """Return the addresses that `up` prints once all is ready."""
    up.line(r"^Data in ")
    return dict(re.findall(r"^  (\w+) +(http://127\.0\.0\.1:\d+/)", "".join(up.said), re.MULTILINE))


def get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=PATIENCE) as page:
        return str(page.read().decode())


def refused(*arguments: str, **environment: str) -> str:
    """The one sentence with which `up` ends, status 2."""
    command = [sys.executable, "-W", "error", "-m", "agent", "up", *arguments]
    ended = run_to_end(command, **environment)
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.count("\n") == 1, ended.stderr
    return ended.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def up(place: Path) -> Iterator[Running]:
    """A stack where a usual port is taken, and no GPU was asked for where there is none."""
    machine = ["--simulate", "dgx-h100:gpu-lost"] if Path("/dev/nvidiactl").exists() else []
    with ExitStack() as held:
        with suppress(OSError):  # somebody else has it, which does as well
            held.enter_context(socket.create_server(("127.0.0.1", 9093)))
        yield held.enter_context(Running("agent", "up", *machine, TMPDIR=str(place)))


def test_all_is_ready_when_the_addresses_are_printed(up: Running) -> None:
    found = addresses(up)
    assert READY.keys() <= found.keys()
    for name, path in READY.items():
        assert get(found[name] + path)
    if not Path("/dev/nvidiactl").exists():
        assert "no NVIDIA GPU responds here: monitoring a simulated dgx-h100" in up.said[0]


def test_a_taken_port_is_reported_and_another_one_is_used(up: Running) -> None:
    row = next(line for line in up.said if line.startswith("  alertmanager"))
    assert ":9093/" not in row
    assert "another program has port 9093" in row


def test_prometheus_scrapes_the_agent_and_knows_the_alertmanager(up: Running) -> None:
    home = dict(re.findall(r"^  (\w+) +(http\S+)", "".join(up.said), re.MULTILINE))
    query = home["prometheus"] + "api/v1/query?query=dgx_system_gpus%7Bjob=%22dgx-telemetry%22%7D"
    eventually(lambda: json.loads(get(query))["data"]["result"], "a sample of the agent")

    def alertmanagers() -> list[str]:
        known = json.loads(get(home["prometheus"] + "api/v1/alertmanagers"))["data"]
        return [entry["url"] for entry in known["activeAlertmanagers"]]

    eventually(alertmanagers, "an Alertmanager")
    assert alertmanagers() == [home["alertmanager"] + "api/v2/alerts"]
    rules = json.loads(get(home["prometheus"] + "api/v1/rules"))["data"]["groups"]
    assert any(rule["name"] == "DgxGpuMissing" for group in rules for rule in group["rules"])


def test_a_program_that_dies_is_named_and_the_others_go_on(up: Running) -> None:
    os.kill(up.children()["prometheus"], signal.SIGKILL)
    up.line(r"prometheus was ended by SIGKILL: .*; going on without it")
    assert "prometheus" not in up.children()


def test_ctrl_c_ends_all_and_leaves_nothing(up: Running, place: Path) -> None:
    children = up.children()
    assert len(children) >= 2
    assert len(list(place.iterdir())) == 1
    assert up.end(signal.SIGINT) == 0
    assert [name for name, pid in children.items() if alive(pid)] == []
    assert list(place.iterdir()) == []


def test_a_simulated_alert_is_reported_where_up_runs_and_killed_it_takes_its_children_along(
    tmp_path: Path,
) -> None:
    data = tmp_path / "kept"
    machine = ("--simulate", "dgx-h100:gpu-lost", "--simulate-speed", "10")
    with Running("agent", "up", *machine, "--data", str(data), TMPDIR=str(tmp_path)) as up:
        addresses(up)
        assert "another `up` uses this folder" in refused("--simulate", "k40", "--data", str(data))
        up.line(r"^\d\d:\d\d:\d\d alert: DgxGpuMissing \(critical\) .*")
        children = up.children()
        assert len(children) >= 3
        assert up.end(signal.SIGKILL) == -signal.SIGKILL
    eventually(lambda: not any(map(alive, children.values())), "the children's end")
    assert (data / "prometheus.yaml").exists()


def test_grafana_is_started_where_it_is_installed(tmp_path: Path) -> None:
    """A stand-in that answers as Grafana does, and writes down how it was started."""
    server, code = tmp_path / "grafana-server", tmp_path / "server.py"
    server.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} {code}\n")
    code.write_text(
        "import http.server, json, os, sys, pathlib\n"
        "pathlib.Path(os.environ['ENVIRONMENT_FILE']).write_text(json.dumps(dict(os.environ)))\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200 if self.path == '/api/health' else 404)\n"
        "        self.end_headers()\n"
        "port = int(os.environ['GF_SERVER_HTTP_PORT'])\n"
        "http.server.HTTPServer(('127.0.0.1', port), Handler).serve_forever()\n"
    )
    server.chmod(0o755)
    environment_file = tmp_path / "witness.json"
    path = os.pathsep.join((str(tmp_path), os.environ["PATH"]))
    with Running(
        *("agent", "up", "--simulate", "k40:idle", "--data", str(tmp_path / "data")),
        PATH=path,
        ENVIRONMENT_FILE=str(environment_file),
    ) as up:
        found = addresses(up)
        shown = json.loads(environment_file.read_text())
        assert found["grafana"].endswith(f":{shown['GF_SERVER_HTTP_PORT']}/")
        provisioning = Path(shown["GF_PATHS_PROVISIONING"])
        datasource = (provisioning / "datasources/prometheus.yaml").read_text()
        assert f"url: {found['prometheus'].rstrip('/')}\n" in datasource
        boards = (provisioning / "dashboards/dgx.yaml").read_text()
        assert list(Path(json.loads(boards.partition("path: ")[2].rstrip("}\n"))).glob("*.json"))


def test_what_cannot_start_is_reported_in_its_own_words_and_the_page_comes_up(
    tmp_path: Path,
) -> None:
    for name in ("prometheus", "prometheus-alertmanager"):
        (tmp_path / name).write_text("#!/bin/sh\necho the disk is on fire >&2\nexit 7\n")
        (tmp_path / name).chmod(0o755)
    path = os.pathsep.join((str(tmp_path), os.environ["PATH"]))
    with Running("agent", "up", "--simulate", "k40:idle", PATH=path, TMPDIR=str(tmp_path)) as up:
        found = addresses(up)
        assert found.keys() & READY.keys() == {"agent"}
        assert get(found["agent"] + "-/ready")
        said = "".join(up.said)
        for name in ("prometheus", "alertmanager"):
            assert f"{name} ended with status 7: the disk is on fire; going on without it" in said
        assert up.end(signal.SIGTERM) == 0
    assert list(tmp_path.glob("dgx-telemetry-up-*")) == []


def test_an_agent_that_cannot_start_ends_all_with_its_own_words(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('system = "dgx-9"\n')
    flags = ("--simulate", "k40:idle", "--config", str(config))
    sentence = refused(*flags, TMPDIR=str(tmp_path))
    assert "agent ended with status 2" in sentence
    assert "'dgx-9'" in sentence
    assert list(tmp_path.glob("dgx-telemetry-up-*")) == []


def test_what_is_not_installed_is_not_started(tmp_path: Path) -> None:
    plan = plan_of(Namespace(config=None, simulate="k40:idle", simulate_speed=1.0, fleet=0))
    lacking = replace(plan, installed=["alertmanager"])
    names = [program.name for program in programs_of(tmp_path, lacking, FreePorts())]
    assert names == ["agent", "alertmanager"]


def test_a_machine_that_lives_fast_is_scraped_each_second_at_most(tmp_path: Path) -> None:
    """A quarter of a second to answer made false DgxAgentDown on a busy machine."""
    plan = plan_of(Namespace(config=None, simulate="k40:idle", simulate_speed=20.0, fleet=0))
    write_files(tmp_path, plan, FreePorts())
    assert "scrape_interval: 1s" in (tmp_path / "prometheus.yaml").read_text()


def test_a_file_applies_to_a_simulated_stack_and_the_rest_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        'listen = ":9944"\nweb_config_file = "x"\n[cost]\ngpu_hour = 2.0\n'
        '[alertmanager]\nwebhook_url = "http://127.0.0.1:1/"\n'
    )
    for machine, nodes in (("k40:idle", 0), (None, 4)):
        given = Namespace(config=config, simulate=machine, simulate_speed=1.0, fleet=nodes)
        plan = plan_of(given)
        first, *_ = programs_of(tmp_path, plan, plan.ports)
        assert first.arguments[-2:] == ("--config", str(config))
        assert first.address == "http://127.0.0.1:9944/"
        assert nodes or "--web.config.file=" in first.arguments
        said = capsys.readouterr().out
        assert "`web_config_file` is not applied: this stack has neither TLS nor passwords" in said
        assert "[alertmanager] is not applied: a simulated machine notifies no one" in said
        assert "`listen` names all addresses: this stack listens on loopback only" in said


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    sentence = refused("--simulate", "k40:idle", PATH="/nonexistent", TMPDIR=str(tmp_path))
    assert "up cannot start setpriv: No such file or directory" in sentence


@pytest.mark.parametrize(("arguments", "sentence"), CASES["refused"])
def test_what_cannot_be_is_refused(arguments: tuple[str, ...], sentence: str) -> None:
    assert sentence in refused(*arguments)


def test_where_nothing_can_be_written_a_folder_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("agent.stack.programs.tempfile.gettempdir", nowhere)
    with (
        pytest.raises(BadInput, match="no temporary folder can be written: --data names another"),
        data_folder(None),
    ):
        pass


def test_a_port_is_replaced_only_where_it_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        held = server.getsockname()[1]
        chosen = choose(FreePorts(agent=held, prometheus=0, alertmanager=0, grafana=0))
    assert chosen.agent != held
    assert len({chosen.agent, chosen.prometheus, chosen.alertmanager, chosen.grafana}) == 4
    assert choose(FreePorts(agent=held)).agent == held
