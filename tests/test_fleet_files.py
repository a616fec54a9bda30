"""The files of deploy/fleet are what the programs take, and agree with each other."""

import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.cli.inventory import FleetFile, nodes
from agent.config.decoding import decode
from agent.config.settings import Settings
from alerts.build import rules
from tests.stack.running import run_to_end
from tests.support.repository import ROOT

FLEET = ROOT / "deploy/fleet"
SCRAPING = ("prometheus.yaml", "prometheus-agent.yaml", "vmagent.yaml")
PROGRAMS = {
    "prometheus": "prometheus",
    "prometheus-agent": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "victoria-metrics": "victoria-metrics",
    "vmagent": "vmagent",
    "vmalert": "vmalert",
}
VICTORIAS = ("victoria-metrics", "vmagent", "vmalert")
COMMENTED = re.compile(r"^( *)# ((?:scheme|tls_config|basic_auth|http_sd_configs): )")


def document(name: str) -> Any:
    return yaml.safe_load((FLEET / name).read_text())


def agents(name: str) -> Any:
    jobs = document(name)["scrape_configs"]
    return next(job for job in jobs if job["job_name"] == "dgx-telemetry")


def test_all_scrape_alike() -> None:
    first, *others = SCRAPING
    assert [agents(name) for name in others] == [agents(first)] * len(others)
    spans = [document(name)["global"]["scrape_interval"] for name in SCRAPING]
    assert set(spans) == {"15s"}


def test_the_list_of_nodes_is_one() -> None:
    fleet = decode(tomllib.loads((FLEET / "fleet.toml").read_text()), FleetFile)
    assert [node.name for node in nodes(fleet, list)] == [f"dgx00{n}" for n in range(1, 9)]


def installed(folder: Path) -> Path:
    """The files as README.md has them installed."""
    shutil.copytree(FLEET, folder / "fleet")
    (folder / "fleet/rules").mkdir()
    for name, text in rules(Settings()).items():
        (folder / "fleet/rules" / name).write_text(text)
    (folder / "fleet/targets").mkdir()
    return folder / "fleet"


@pytest.mark.promtool
@pytest.mark.parametrize("name", ["prometheus.yaml", "prometheus-agent.yaml"])
def test_prometheus_takes_it(name: str, tmp_path: Path) -> None:
    folder = installed(tmp_path)
    agent = ["--agent"] if "agent" in name else []
    command = ["promtool", "check", "config", *agent, str(folder / name)]
    done = run_to_end(command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert agent or "rules found" in done.stdout


@pytest.mark.promtool
def test_what_is_commented_out_is_taken_too(tmp_path: Path) -> None:
    folder = installed(tmp_path)
    for file in ("ca.crt", "alertmanager.password", "agents.password"):
        (folder / file).write_text("x")
    lines = (folder / "prometheus.yaml").read_text().splitlines()
    shown = [COMMENTED.sub(r"\1\2", line) for line in lines]
    assert len([1 for a, b in zip(lines, shown, strict=True) if a != b]) == 7
    (folder / "prometheus.yaml").write_text("\n".join(shown))
    command = ["promtool", "check", "config", "--syntax-only", str(folder / "prometheus.yaml")]
    done = run_to_end(command)
    assert done.returncode == 0, done.stdout + done.stderr


def known_flags(program: str) -> str:
    path = shutil.which(program)
    assert path, f"{program} is not installed"
    done = run_to_end([path, "--help"])
    return done.stdout + done.stderr


def flags_exist(name: str) -> None:
    text = (FLEET / "default" / name).read_text()
    asked = set(re.findall(r"(?<=[ \"])(--?[a-zA-Z][\w.-]*)", text.replace("# -", " -")))
    known = known_flags(PROGRAMS[name])
    assert asked
    assert [flag for flag in asked if not re.search(rf"(?m)^ +(-h, )?{flag}\b", known)] == []


@pytest.mark.stack
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in VICTORIAS])
def test_flags_of_prometheus_exist(name: str) -> None:
    flags_exist(name)


@pytest.mark.stack
@pytest.mark.victoria
@pytest.mark.parametrize("name", VICTORIAS)
def test_flags_of_victoria_metrics_exist(name: str) -> None:
    flags_exist(name)


@pytest.mark.stack
@pytest.mark.victoria
@pytest.mark.parametrize(
    ("program", "flag"), [("vmagent", "promscrape.config"), ("vmalert", "rule")]
)
def test_victoria_metrics_takes_files_and_rules(program: str, flag: str, tmp_path: Path) -> None:
    folder = installed(tmp_path)
    file = {"vmagent": "vmagent.yaml", "vmalert": "rules/*.yaml"}[program]
    path = shutil.which(program)
    assert path, f"{program} is not installed"
    command = [path, "-dryRun", f"-{flag}={folder / file}"]
    done = run_to_end(command)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", sorted(FLEET.glob("*.service")), ids=lambda path: path.stem)
def test_units_name_programs_of_packages(path: Path) -> None:
    text = path.read_text()
    program = "/usr/local/bin/dgx-telemetry inventory" if "inventory" in path.stem else path.stem
    assert re.search(rf"(?m)^ExecStart=(/usr/bin/)?{program} ", text)
    for file in re.findall(r"(?m)^EnvironmentFile=/etc/default/(\w+)$", text):
        assert (FLEET / "default" / file).is_file()
