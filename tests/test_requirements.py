"""Files for users are right: packages are pinned as pyproject.toml has them, the collector shows
what the agent has, and the table against other agents names what exists."""

import re
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from agent.catalogue import EXPORTED, METRICS
from agent.cli.parser import parser
from tests.stack.running import run_to_end
from tests.support.repository import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
AGENT = [*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"]["auth"]]
SOURCE = [
    *PROJECT["build-system"]["requires"],
    *PROJECT["project"]["optional-dependencies"]["dashboards"],
]
WANTED = {
    "agent": AGENT,
    "source": SOURCE,
    "dev": [*AGENT, *SOURCE, *PROJECT["dependency-groups"]["dev"]],
    "pip": ["pip"],
}
PIN = re.compile(r"^([\w.-]+)==(\S+)[^\n]*(?: \\\n +--hash=sha256:[0-9a-f]{64})+$", re.MULTILINE)


def pins(name: str) -> Mapping[str, str]:
    """Version by name."""
    text = (ROOT / f"deploy/requirements/{name}.txt").read_text()
    found = dict(PIN.findall(text))
    assert len(found) == len(re.findall(r"^[\w.-]+==", text, re.MULTILINE)), "some has no hash"
    return found


@pytest.mark.parametrize("name", WANTED)
def test_what_pyproject_asks_for_is_pinned(name: str) -> None:
    found = pins(name)
    for line in WANTED[name]:
        wanted = Requirement(line)
        assert found[wanted.name.lower()] in wanted.specifier, f"{line}: run deploy/lock"


def test_all_lists_agree() -> None:
    everything = pins("dev")
    for name in ("agent", "source"):
        found = pins(name)
        assert {package: everything[package] for package in found} == found


TABLE = (ROOT / "deploy/PEERS.md").read_text(encoding="utf-8")
ROWS = [re.split(r"(?<!\\)\|", line)[1:-1] for line in TABLE.splitlines() if line[:2] == "| "]
WORDS = re.compile(r"(have|half|miss|\?)(: .+| \(.+\)|, .+)?|(below )?\d.*")


@pytest.mark.parametrize("row", ROWS[1:], ids=lambda row: row[0].strip())
def test_each_row_is_judged_and_shown(row: list[str]) -> None:
    title, *judged, command = (cell.strip() for cell in row)
    assert len(judged) == 5, title
    assert [cell for cell in judged if not WORDS.fullmatch(cell)] == []
    assert "half" not in judged, "a half has its limit"
    assert bool(command) != judged[0].startswith("miss"), "what is there is shown"
    for name in re.findall(r"dgx_\w+", command):
        assert name in METRICS
    for path in re.findall(r"deploy/[\w./-]+", command):
        assert (ROOT / path).exists()
    shown = re.match("`(dgx-telemetry .*?)`", command)
    if shown:
        parser().parse_args(shlex.split(shown[1])[1:])


TEXT = (ROOT / "deploy/opentelemetry/collector.yaml").read_text(encoding="utf-8")
CONFIG = yaml.safe_load(TEXT)


def test_a_pipeline_of_parts_that_are_there() -> None:
    assert CONFIG.keys() == {"receivers", "processors", "exporters", "service"}
    (pipeline,) = CONFIG["service"]["pipelines"].values()
    for kind in ("receivers", "processors", "exporters"):
        assert pipeline[kind] == list(CONFIG[kind])
        assert {one.partition("/")[0] for one in pipeline[kind]} <= {
            *("prometheus", "resource_detection", "transform", "filter", "otlp_grpc")
        }
    assert TEXT.count("$") == TEXT.count("${env:"), "the Collector expands $"


def test_statements_name_metrics_of_the_agent() -> None:
    names = {metric.name for metric in EXPORTED}
    given = [*re.findall(r'metric\.name == "(dgx_\w+)"', TEXT)]
    patterns = re.findall(r'IsMatch\(metric\.name, "(\^dgx[^"]+)"\)', TEXT)
    assert {name for name in given if name not in names} == set()
    assert [one for one in patterns if not any(re.search(one, name) for name in names)] == []
    assert len(given) > 10


@pytest.mark.promtool
def test_prometheus_takes_what_is_scraped(tmp_path: Path) -> None:
    """The receiver reads this part with Prometheus' own code."""
    config: dict[str, Any] = CONFIG["receivers"]["prometheus"]["config"]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = ["promtool", "check", "config", str(tmp_path / "prometheus.yml")]
    done = run_to_end(command)
    assert done.returncode == 0, done.stdout + done.stderr
