"""The configuration for the OpenTelemetry Collector: its scrape by Prometheus' own check, and what
its processors make of the metrics of the agent, by the documented grammar and the conventions for
hardware (docs/hardware, Development). No package has a Collector that could run here."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.stack.running import run_to_end
from tests.support import ottl
from tests.support.ottl import Attributes, Metric
from tests.support.repository import ROOT

CONFIG = yaml.safe_load((ROOT / "deploy/opentelemetry/collector.yaml").read_text())
GPU = {"hw.id", "hw.name", "hw.type", "hw.vendor"}
SENSOR = {"hw.id", "hw.name", "hw.parent", "hw.sensor_location"}
NETWORK = {"hw.id", "hw.name", "hw.type"}
DIRECTION = "network.io.direction"
CONVENTIONS = {
    "hw.gpu.utilization": ("gauge", "1", GPU | {"hw.gpu.task"}),
    "hw.gpu.memory.usage": ("updowncounter", "By", GPU),
    "hw.gpu.memory.limit": ("updowncounter", "By", GPU),
    "hw.gpu.io": ("counter", "By", GPU | {DIRECTION, "dgx.path"}),
    "hw.energy": ("counter", "J", GPU),
    "hw.power": ("gauge", "W", GPU),
    "hw.errors": ("counter", "{error}", GPU | {"error.type", "lifetime"}),
    "hw.temperature": ("gauge", "Cel", SENSOR),
    "hw.temperature.limit": ("gauge", "Cel", SENSOR | {"hw.limit_type"}),
    "hw.fan.speed_ratio": ("gauge", "1", SENSOR),
    "hw.network.io": ("counter", "By", NETWORK | {DIRECTION}),
    "hw.network.up": ("updowncounter", "1", NETWORK),
}
"""Instrument, unit and attributes of what is mapped; `dgx.path` and `lifetime` are ours."""

VALUES = {
    DIRECTION: {"transmit", "receive"},
    "hw.gpu.task": {"general", "encoder", "decoder"},
    "error.type": {"corrected", "uncorrected"},
    "hw.limit_type": {"throttled", "high.critical", "max"},
    "hw.type": {"gpu", "network"},
}


NAME = "dgx-a100-raid-degraded"


def scraped(name: str) -> list[Metric]:
    """A golden scrape as the Prometheus receiver hands it on."""
    found = []
    for family in text_string_to_metric_families((ROOT / f"tests/golden/{name}.prom").read_text()):
        suffix = "_total" if family.type == "counter" else ""
        points = [(Attributes(one.labels), one.value) for one in family.samples]
        found.append(Metric(family.name + suffix, family.type, points))
    return found


def mapped(name: str) -> list[Metric]:
    metrics = scraped(name)
    ottl.transform(metrics, CONFIG["processors"]["transform/hw"]["metric_statements"])
    ottl.leave_out(metrics, CONFIG["processors"]["filter/hw"]["metrics"]["datapoint"])
    return metrics


@pytest.mark.parametrize("name", [NAME, "gtx-1080-training", "dgx-h100-gpu-lost"])
def test_what_has_a_conventional_name_is_as_the_conventions_say(name: str) -> None:
    seen = set()
    before = {
        point[0]["uuid"] for one in scraped(name) for point in one.points if "uuid" in point[0]
    }
    for metric in mapped(name):
        if not metric.name.startswith("hw."):
            assert metric.name.startswith(("dgx_", "process_", "python_"))
            assert not any("hw.id" in attributes for attributes, _ in metric.points), metric.name
            continue
        kind, unit, attributes = CONVENTIONS[metric.name]
        assert (metric.kind, metric.unit, metric.description) == (kind, unit, ""), metric.name
        for point, _ in metric.points:
            assert point.keys() == attributes, metric.name
            assert all(point[key] in values for key, values in VALUES.items() if key in point)
            assert point["hw.id"].partition("/")[0] in before or point["hw.type"] == "network"
        seen.add(metric.name)
    without = {"gtx-1080-training": {"hw.errors"}}.get(name, {"hw.fan.speed_ratio"})
    assert seen == CONVENTIONS.keys() - without


def test_no_two_points_are_one_and_none_is_lost() -> None:
    """Four metrics of the agent are one of the conventions: their points differ by attributes."""
    points = [(one.name, labels) for one in mapped(NAME) for labels, _ in one.points]
    assert len({(metric, *sorted(labels.items())) for metric, labels in points}) == len(points)
    errors = [labels["lifetime"] for metric, labels in points if metric == "hw.errors"]
    assert set(errors) == {"volatile"}
    before = sum(len(one.points) for one in scraped(NAME))
    assert len(points) == before + len(errors), "ECC errors have both names"


def test_values_stay() -> None:
    by_name = {one.name: one for one in mapped(NAME)}
    for family in scraped(NAME):
        if family.name == "dgx_gpu_power_watts":
            assert [v for _, v in family.points] == [v for _, v in by_name["hw.power"].points]
    assert "dgx_gpu_memory_utilization_ratio" in by_name, "a part of time, not of the memory"


def test_a_pipeline_of_parts_that_are_there() -> None:
    assert CONFIG.keys() == {"receivers", "processors", "exporters", "service"}
    (pipeline,) = CONFIG["service"]["pipelines"].values()
    for kind in ("receivers", "processors", "exporters"):
        assert pipeline[kind] == list(CONFIG[kind])
        assert {one.partition("/")[0] for one in pipeline[kind]} <= {
            *("prometheus", "resource_detection", "transform", "filter", "otlp_grpc")
        }
    text = (ROOT / "deploy/opentelemetry/collector.yaml").read_text()
    assert text.count("$") == text.count("${env:"), "the Collector expands $"


@pytest.mark.promtool
def test_prometheus_takes_what_is_scraped(tmp_path: Path) -> None:
    """The receiver reads this part with Prometheus' own code."""
    config: dict[str, Any] = CONFIG["receivers"]["prometheus"]["config"]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = ["promtool", "check", "config", str(tmp_path / "prometheus.yml")]
    done = run_to_end(command)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "text",
    ["set(metric.name)", "set(metric.name, lower(metric.name))", "set(metric.name, 'x')", "drop()"],
)
def test_what_the_language_has_not_is_refused(text: str) -> None:
    with pytest.raises((ValueError, NameError)):
        ottl.transform([Metric("x", "gauge", [])], [{"statements": [text]}])
