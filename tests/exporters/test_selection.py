"""Selection of series: the shipped small set is what boards and rules ask for."""

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest

from agent.cli.options import SECTIONS
from agent.cli.run import log_dropped
from agent.config.configuration import ConfigError, load
from agent.config.settings import Settings
from alerts.build import groups
from dashboards.build import files as boards
from exporters.prometheus import Exposition
from exporters.settings import NAMES, MetricsConfig, queries, small_set
from tests.support.machines import TEXT, AgentBench, simulated

SERIES = re.compile(r"^(\w+)(\{.*\})? ", re.MULTILINE)


@pytest.fixture(scope="module")
def machine() -> AgentBench:
    return simulated("dgx-station-v100:training").run(3)


def shown(machine: AgentBench, config: MetricsConfig) -> str:
    latest = machine.agent.poller.latest
    selected = Exposition(
        lambda: latest, machine.clock.monotonic, process=False, selected=lambda: config
    )
    return selected.render(TEXT)[0].decode()


def series(text: str) -> set[str]:
    return {f"{name}{labels}" for name, labels in SERIES.findall(text)}


def test_small_leaves_out_what_no_board_or_rule_needs(machine: AgentBench) -> None:
    full, small = series(shown(machine, MetricsConfig())), series(shown(machine, SMALL))
    gone = {name for name, _ in SERIES.findall("\n".join(f"{line} " for line in full - small))}
    assert small < full
    assert "dgx_gpu_persistence_mode" in gone
    assert "dgx_gpu_clock_hertz" not in gone


SMALL = MetricsConfig(set="small")


def test_a_family_without_series_has_no_head(machine: AgentBench) -> None:
    text = shown(machine, MetricsConfig(drop=(re.compile("dgx_nvlink_.*"),)))
    assert "dgx_nvlink" not in text.replace('metric="dgx_nvlink', "")
    assert "# HELP dgx_gpu_info" in text


def test_a_reload_counts_at_the_next_page(machine: AgentBench) -> None:
    chosen = [MetricsConfig()]
    exposition = Exposition(
        lambda: machine.agent.poller.latest, machine.clock.monotonic, selected=lambda: chosen[0]
    )
    before = exposition.render(TEXT)[0]
    chosen[0] = SMALL
    machine.clock.advance(2.0)
    assert len(exposition.render(TEXT)[0]) < len(before)
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


def test_the_small_set_is_what_a_parser_finds_in_the_rules() -> None:
    """Another reader of PromQL than the one that made the file."""
    found = {
        selector.name
        for group in groups(Settings())
        for rule in group.rules
        for selector in selectors(promql_parser.parse(rule.expr))
    } & NAMES
    assert len(found) > 50
    assert found <= small_set()


def test_every_metric_of_a_board_is_in_the_small_set() -> None:
    texts = "".join(q for board in boards().values() for q in queries(json.loads(board)))
    assert set(re.findall(r"\bdgx_\w+", texts)) & NAMES <= small_set()


def test_a_pattern_that_names_nothing_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[metrics]\ndrop = ["dgx_gpu_.*", "gpu_.*"]\n')
    with pytest.raises(ConfigError) as caught:
        load(SECTIONS, file, {})
    expected = "metrics.drop[1] must be a regular expression for the whole name of a metric"
    assert str(caught.value) == f"{file}: {expected}, not 'gpu_.*'"


def test_what_alerts_will_miss_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        log_dropped(MetricsConfig(drop=(re.compile("dgx_gpu_persistence_mode"),)))
        assert not caplog.records
        log_dropped(MetricsConfig(drop=(re.compile("dgx_gpu_(power_watts|info)"),)))
    assert "dgx_gpu_info dgx_gpu_power_watts" in caplog.text
