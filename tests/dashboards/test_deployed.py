"""Provisioning of the boards in Grafana, and its containers. No container is started here."""

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.build import files
from tests.support.repository import DEPLOY

GRAFANA = DEPLOY / "grafana"


def content(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def project() -> Any:
    return tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())


@pytest.fixture
def compose() -> Any:
    return content(DEPLOY / "compose.yaml")


def test_the_committed_boards_are_those_that_are_built() -> None:
    committed = {p.name for p in (GRAFANA / "dashboards").glob("*.json")}
    assert committed == {Path(name).name for name in files()}


def test_provisioned_boards_come_from_the_mounted_folder(compose: Any) -> None:
    (provider,) = content(GRAFANA / "provisioning/dashboards/dgx.yaml")["providers"]
    assert provider["type"] == "file"
    assert provider["allowUiUpdates"] is False
    mounts = dict(v.split(":")[:2] for v in compose["services"]["grafana"]["volumes"])
    assert mounts["./grafana/dashboards"] == provider["options"]["path"]
    assert mounts["./grafana/provisioning"] == "/etc/grafana/provisioning"
    home = compose["services"]["grafana"]["environment"]
    folder = mounts["./grafana/dashboards"]
    shown = home["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"].removeprefix(folder)
    assert (GRAFANA / "dashboards" / shown.strip("/")).is_file()


def test_grafana_knows_how_often_prometheus_scrapes(compose: Any) -> None:
    (source,) = content(GRAFANA / "provisioning/datasources/prometheus.yaml")["datasources"]
    prometheus = yaml.safe_load(compose["configs"]["prometheus"]["content"])
    assert source["type"] == "prometheus"
    assert source["jsonData"]["timeInterval"] == prometheus["global"]["scrape_interval"]
    listen = option(compose, "prometheus", "--web.listen-address")
    assert source["url"] == f"http://{listen}"


def option(compose: Any, service: str, name: str) -> str:
    (found,) = (w for w in compose["services"][service]["command"] if w.startswith(f"{name}="))
    return str(found.partition("=")[2])


def test_prometheus_scrapes_the_agent_and_itself_and_names_the_alertmanager(compose: Any) -> None:
    prometheus = yaml.safe_load(compose["configs"]["prometheus"]["content"])
    jobs = {job["job_name"]: job["static_configs"] for job in prometheus["scrape_configs"]}
    itself = option(compose, "prometheus", "--web.listen-address")
    assert jobs == {  # itself for the alert on rules that fail
        "dgx-telemetry": [{"targets": ["127.0.0.1:9935"]}],
        "prometheus": [{"targets": [itself]}],
    }
    (manager,) = prometheus["alerting"]["alertmanagers"]
    listen = option(compose, "alertmanager", "--web.listen-address")
    assert manager["static_configs"] == [{"targets": [listen]}]
    assert prometheus["rule_files"] == ["/etc/prometheus/rules/*.yaml"]
    mounts = dict(v.split(":")[:2] for v in compose["services"]["prometheus"]["volumes"])
    assert mounts["./prometheus"] == "/etc/prometheus/rules"
    said = Path(option(compose, "alertmanager", "--config.file"))
    mounts = dict(v.split(":")[:2] for v in compose["services"]["alertmanager"]["volumes"])
    assert mounts["./alertmanager"] == str(said.parent)
    assert content(DEPLOY / "alertmanager" / said.name)["receivers"]
    rules = [path for path in (DEPLOY / "prometheus").glob("*.yaml") if "groups" in content(path)]
    assert rules


def test_containers_are_pinned_and_on_loopback(compose: Any) -> None:
    services = compose["services"]
    assert set(services) == {"agent", "simulated", "prometheus", "alertmanager", "grafana"}
    for name, service in services.items():
        assert service["network_mode"] == "host", name
        assert service["profiles"], name
        if "build" in service:
            assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        else:
            assert re.fullmatch(r"[a-z]+/[a-z]+:v?\d+\.\d+\.\d+", service["image"]), name
    for service in ("prometheus", "alertmanager"):
        assert option(compose, service, "--web.listen-address").startswith("127.0.0.1:")
    assert services["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    named = {v.split(":")[0] for s in services.values() for v in s.get("volumes", ())}
    assert {name for name in named if not name.startswith(".")} == set(compose["volumes"])
    used = {c["source"] for s in services.values() for c in s.get("configs", ())}
    assert used == set(compose["configs"])


def test_the_image_holds_what_the_agent_needs() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    copied = {word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]}
    wheel = project()["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"pyproject.toml", "README.md", "LICENSE", "deploy/requirements"}
    needed |= {*wheel["packages"], *wheel["force-include"]}
    assert {f for f in needed if not any(fnmatch(f, pattern) for pattern in copied)} == set()
    assert {p for p in copied if not any(fnmatch(file, p) for file in needed)} == set()
    kept = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    assert {word[1:] for word in kept if word.startswith("!")} == copied
    assert "USER dgx-telemetry" in lines
