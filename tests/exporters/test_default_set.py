"""How the series of the default set begin: `increase()` sees the first event of each part."""

from collections.abc import Mapping
from itertools import pairwise

import pytest

from agent.catalogue import METRICS
from agent.diagnosis import accounting
from agent.limits import paths
from agent.model import Labels, Metric, Sample
from agent.sources import ecc, fabric, infiniband, nvlink, xid
from exporters.default_set import DefaultSet

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
