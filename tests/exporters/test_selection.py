"""The sets of `/metrics`: the default one has what rules and boards ask for."""

import json
import logging
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agent.catalogue import METRICS
from agent.cli.options import SECTIONS
from agent.cli.run import log_dropped
from agent.config.configuration import ConfigError, load
from agent.config.settings import Settings
from agent.diagnosis import accounting
from agent.limits import paths
from agent.model import InDefault, Kind, Labels, Metric, Sample
from agent.sources import ecc, fabric, infiniband, nvlink, xid
from alerts.build import groups
from dashboards.build import files as boards
from exporters.default_set import DefaultSet
from exporters.prometheus import Exposition
from exporters.settings import MetricsConfig
from tests.support.machines import TEXT, AgentBench, simulated
from tests.support.parsed_queries import selectors

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
    return machine.exposition(config, per_link=False).page(TEXT).plain.decode()


def names(text: str) -> set[str]:
    return {name for name, _ in re.findall(r"^(\w+)(\{.*\})? ", text, flags=re.MULTILINE)}


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
        str(selector.name)
        for group in groups(Settings())
        for expr in (*(one.expr for one in group.records), *(one.expr for one in group.faults))
        for selector, _ in selectors(expr)
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


GPU = ("0", "GPU-0")
PORT = ("mlx5_0", "1")


def chosen(
    default: DefaultSet, metric: Metric, values: Mapping[Labels, float], now: float
) -> dict[Labels, float]:
    samples = [Sample(metric, labels, value) for labels, value in values.items()]
    found = default.choose({metric.name: samples}, now)
    return {labels: value for _, labels, value in found.get(metric.name, [])}


@pytest.mark.parametrize(
    ("metric", "zeros", "unnamed"),
    [
        (
            nvlink.ERRORS,
            [(*GPU, str(n), k) for n in range(18) for k in ("crc", "replay")],
            (*GPU, "", ""),
        ),
        (xid.XID_ERRORS, [(*GPU, "48"), (*GPU, "79")], (*GPU, "")),
        (ecc.ERRORS, [(*GPU, s, "volatile") for s in ("corrected", "uncorrected")], (*GPU, "", "")),
        (infiniband.ERRORS, [(*PORT, "symbol"), (*PORT, "local")], (*PORT, "")),
        (fabric.HEALTH, [(*GPU, "route_recovery")], (*GPU, "")),
    ],
)
def test_a_family_at_zero_is_one_series_a_device(
    metric: Metric, zeros: list[Labels], unnamed: Labels
) -> None:
    assert chosen(DefaultSet(), metric, dict.fromkeys(zeros, 0.0), 0.0) == {unnamed: 0.0}


LINK: Labels = (*GPU, "3", "replay")


@pytest.mark.parametrize("interval", [15, 60, 120])
@pytest.mark.parametrize("clients", [("prometheus",), ("one", "two")])
@pytest.mark.parametrize("curl", [None, 1, 5])
def test_every_prometheus_sees_the_first_event(
    interval: int, clients: tuple[str, ...], curl: int | None
) -> None:
    """A person with curl between the scrapes, as often as every second, shortens nothing."""
    default, samples = DefaultSet(), {name: list[float]() for name in clients}
    for second in range(600):
        values = {LINK: 0.0 if second < 100 else 7.0}
        asks = [n for place, n in enumerate(clients) if (second + 7 * place) % interval == 0]
        asks += ["curl"] if curl and second % curl == 0 else []
        for client in asks:
            shown = chosen(default, nvlink.ERRORS, values, second)
            default.answered(client)
            if client in samples and LINK in shown:
                samples[client].append(shown[LINK])
    for found in samples.values():
        assert sum(later - before for before, later in pairwise(found)) == 7.0
        assert found[0] == 0.0


def test_a_part_that_is_there_at_the_start_counts_at_once() -> None:
    """Counts of a driver's lifetime are no growth after a restart of the agent."""
    labels = (*GPU, "corrected", "aggregate")
    assert chosen(DefaultSet(), ecc.ERRORS, {labels: 5.0}, 0.0)[labels] == 5.0


@pytest.mark.parametrize(
    ("metric", "labels"),
    [
        (xid.XID_ERRORS, (*GPU, "79")),
        (ecc.ERRORS, (*GPU, "uncorrected", "volatile")),
        (METRICS["dgx_gpu_remapped_rows_total"], (*GPU, "uncorrected")),
        (fabric.HEALTH, (*GPU, "route_unhealthy")),
    ],
)
def test_what_cannot_wait_shows_at_once(metric: Metric, labels: Labels) -> None:
    """The node of an XID 79 may die within a minute."""
    default = DefaultSet()
    chosen(default, metric, {labels: 0.0}, 0.0)
    assert chosen(default, metric, {labels: 1.0}, 1.0)[labels] == 1.0


def test_a_part_that_moved_is_kept() -> None:
    default, labels = DefaultSet(), (*GPU, "route_recovery")
    chosen(default, fabric.HEALTH, {labels: 1.0}, 0.0)
    assert chosen(default, fabric.HEALTH, {labels: 0.0}, 900.0)[labels] == 0.0


def test_states_that_never_were_have_no_series() -> None:
    default, busy, held = DefaultSet(), (*GPU, "busy", "none"), (*GPU, "held", "none")
    found = chosen(default, accounting.STATE_SECONDS, {busy: 1.0, held: 0.0}, 0.0)
    assert found == {busy: 1.0}


def test_a_link_has_a_series_once_it_was_down() -> None:
    default, down, up = DefaultSet(), (*GPU, "1"), (*GPU, "2")
    assert chosen(default, nvlink.LINK_UP, {down: 0.0, up: 1.0}, 0.0) == {down: 0.0}
    assert chosen(default, nvlink.LINK_UP, {down: 1.0, up: 1.0}, 60.0) == {down: 1.0}


def path(direction: str) -> Labels:
    return ("infiniband", "mlx5_0:1", "", "", direction)


def test_equal_directions_are_one_series_until_they_differ() -> None:
    default = DefaultSet()
    both = {path("transmit"): 5e10, path("receive"): 5e10}
    assert chosen(default, paths.LIMIT, both, 0.0) == {path(""): 5e10}
    less = {path("transmit"): 5e10, path("receive"): 2.5e10}
    assert chosen(default, paths.LIMIT, less, 60.0) == less
    assert chosen(default, paths.LIMIT, both, 120.0) == both


@pytest.mark.parametrize(
    ("origin", "limit", "series"),
    [("hardware", 2.5e10, 1), ("hardware", 5e10, 0), ("configured", 2.5e10, 0)],
)
def test_a_spec_shows_where_the_hardware_falls_short(
    origin: str, limit: float, series: int
) -> None:
    families = {
        metric.name: [Sample(metric, (*path(way), *more), value) for way in ("transmit", "receive")]
        for metric, more, value in (
            (paths.LIMIT, (), limit),
            (paths.SPEC, (), 5e10),
            (paths.LIMIT_INFO, (origin, "a file"), 1.0),
        )
    }
    found = DefaultSet().choose(families, 0.0)
    assert len(found.get(paths.SPEC.name, [])) == series
    assert len(found.get(paths.LIMIT_INFO.name, [])) == series


def test_the_rest_of_a_sum_is_no_state() -> None:
    default, busy, unknown = DefaultSet(), (*GPU, "busy", "none"), (*GPU, "starved", "unknown")
    values: dict[Labels, float] = {busy: 188.0, unknown: 1.1e-19}
    assert chosen(default, accounting.STATE_SECONDS, values, 0.0) == {busy: 188.0}
