"""The sets of `/metrics`: the default one has what rules and boards ask for."""

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest

from agent.catalogue import METRICS
from agent.cli.options import SECTIONS
from agent.cli.run import log_dropped
from agent.config.configuration import ConfigError, load
from agent.config.settings import Settings
from agent.model import InDefault, Kind
from alerts.build import groups
from dashboards.build import files as boards
from exporters.prometheus import Exposition
from exporters.settings import MetricsConfig
from tests.support.machines import TEXT, AgentBench, simulated

SERIES = re.compile(r"^(\w+)(\{.*\})? ", re.MULTILINE)
NAME = re.compile(r"(?<![\w:])dgx_\w+(?![\w:])")
FULL = MetricsConfig(set="full")
UNASKED = {
    "dgx_gpu_utilization_ratio",  # the one figure that everyone knows
    "dgx_gpu_fan_ratio",  # of workstations
    "dgx_cost_info",  # the currency that a report asks for
    "dgx_gpu_job_share_ratio",  # of GPUs that several jobs use, with job.info
}
"""Of the default set though no rule and no board asks for them; rows of MIG besides."""


@pytest.fixture(scope="module")
def machine() -> AgentBench:
    return simulated("dgx-station-v100:training").run(3)


def shown(machine: AgentBench, config: MetricsConfig) -> str:
    latest = machine.agent.poller.latest
    selected = Exposition(
        lambda: latest, machine.clock.monotonic, process=False, selected=lambda: config
    )
    return selected.page(TEXT).plain.decode()


def names(text: str) -> set[str]:
    return {name for name, _ in SERIES.findall(text)}


def test_the_default_set_is_a_part_of_the_full_one(machine: AgentBench) -> None:
    full, default = names(shown(machine, FULL)), names(shown(machine, MetricsConfig()))
    assert default < full
    assert "dgx_gpu_persistence_mode" in full - default
    assert "dgx_gpu_clock_hertz" in default


def test_the_old_name_of_a_set_still_counts(
    machine: AgentBench, caplog: pytest.LogCaptureFixture
) -> None:
    small = MetricsConfig(set="small")
    assert shown(machine, small) == shown(machine, MetricsConfig())
    log_dropped(small)
    assert "metrics.set" in caplog.text


def test_one_line_brings_a_family_back(machine: AgentBench) -> None:
    kept = MetricsConfig(keep=(re.compile("dgx_gpu_xid_errors_total"),))
    wanted = re.compile(r"^dgx_gpu_xid_errors_total.*", re.MULTILINE)
    assert wanted.findall(shown(machine, kept)) == wanted.findall(shown(machine, FULL))


def test_a_family_without_series_has_no_head(machine: AgentBench) -> None:
    text = shown(machine, MetricsConfig(drop=(re.compile("dgx_nvlink_.*"),)))
    assert "dgx_nvlink" not in text.replace('metric="dgx_nvlink', "")
    assert "# HELP dgx_gpu_info" in text


def test_a_reload_counts_at_the_next_page(machine: AgentBench) -> None:
    chosen = [FULL]
    exposition = Exposition(
        lambda: machine.agent.poller.latest, machine.clock.monotonic, selected=lambda: chosen[0]
    )
    before = exposition.page(TEXT).plain
    chosen[0] = MetricsConfig()
    machine.clock.advance(2.0)
    assert len(exposition.page(TEXT).plain) < len(before)
    machine.clock.advance(-2.0)


def selectors(node: Any) -> Iterator[Any]:
    """The vector selectors of a parsed query, wherever they stand in it."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for name in ("expr", "lhs", "rhs", "param", "vector_selector", "vs"):
        if (inner := getattr(node, name, None)) is not None:
            yield from selectors(inner)
    for argument in getattr(node, "args", None) or ():
        yield from selectors(argument)


def queries(document: Any) -> Iterator[str]:
    """The PromQL of a board."""
    if isinstance(document, dict):
        for key, value in document.items():
            if key in ("expr", "query", "definition") and isinstance(value, str):
                yield value
            else:
                yield from queries(value)
    elif isinstance(document, list):
        for value in document:
            yield from queries(value)


@pytest.fixture(scope="module")
def asked() -> set[str]:
    """The metrics that rules, by a parser, and boards ask for."""
    of_rules = {
        selector.name
        for group in groups(Settings())
        for rule in group.rules
        for selector in selectors(promql_parser.parse(rule.expr))
    }
    texts = "".join(q for board in boards().values() for q in queries(json.loads(board)))
    assert len(of_rules & METRICS.keys()) > 50
    return (of_rules | set(NAME.findall(texts))) & METRICS.keys()


def test_rules_and_boards_ask_for_the_default_set(asked: set[str]) -> None:
    assert [name for name in asked if METRICS[name].shown is InDefault.FULL] == []


def test_the_default_set_has_nothing_else(asked: set[str]) -> None:
    idle = {
        metric.name
        for metric in METRICS.values()
        if metric.kind is not Kind.INTERNAL
        and metric.shown is not InDefault.FULL
        and "gpu_instance" not in metric.labels
    }
    assert idle - asked <= UNASKED


@pytest.mark.parametrize("key", ["keep", "drop"])
def test_a_pattern_that_names_nothing_is_refused(key: str, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[metrics]\n{key} = ["dgx_gpu_.*", "dgx_gpu_power_wats"]\n')
    with pytest.raises(ConfigError) as caught:
        load(SECTIONS, file, {})
    expected = f"{file}: metrics.{key}[1]: 'dgx_gpu_power_wats' is not a regular expression for"
    assert str(caught.value).startswith(expected)
    assert "dgx_gpu_power_watts" in str(caught.value)


def test_a_set_that_is_unknown_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[metrics]\nset = "huge"\n')
    with pytest.raises(ConfigError, match=r"metrics\.set: .*huge.*default.*full"):
        load(SECTIONS, file, {})


def test_metrics_that_alerts_will_miss_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        log_dropped(MetricsConfig(drop=(re.compile("dgx_gpu_persistence_mode"),)))
        assert not caplog.records
        log_dropped(MetricsConfig(drop=(re.compile("dgx_gpu_(power_watts|info)"),)))
    assert "dgx_gpu_info dgx_gpu_power_watts" in caplog.text
