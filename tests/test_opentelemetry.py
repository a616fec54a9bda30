"""The configuration for the OpenTelemetry Collector: its scrape by Prometheus' own check, and the
names in its statements. No package has a Collector that could run here."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.catalogue import EXPORTED
from tests.stack.running import run_to_end
from tests.support.repository import ROOT

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
