"""The exposition: exact bytes, formats, one build a tick, expiry."""

import gzip
import logging
import math
import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families as parse_text

from agent.errors import LogEvent, encodable
from agent.model import Sample
from exporters.documents import document
from exporters.prometheus import negotiate
from tests.support.call_count import calls_of
from tests.support.exposition import (
    BUSY,
    CLOCK,
    GOLDEN_OPENMETRICS,
    GOLDEN_TEXT,
    OM,
    PROMETHEUS_2,
    PROMETHEUS_3,
    READ,
    RICH,
    SMALL,
    TEXT_0,
    A,
    ExpositionBench,
    complaints,
    of_the_library,
    power,
    reading,
    snapshot,
)

CASES = tomllib.loads(Path(__file__).with_name("prometheus.toml").read_text("utf-8"))

# The exposition


def test_text_is_exact() -> None:
    assert ExpositionBench().exposition.page("").plain == GOLDEN_TEXT.encode()
    assert negotiate("") == TEXT_0


@pytest.mark.parametrize("accept", [PROMETHEUS_2, PROMETHEUS_3], ids=["2.42", "3"])
def test_openmetrics_is_exact(accept: str) -> None:
    assert ExpositionBench().text(accept) == GOLDEN_OPENMETRICS


def test_an_empty_snapshot_is_valid() -> None:
    bench = ExpositionBench(snapshot())
    assert bench.text() == ""
    assert bench.text(OM) == "# EOF\n"


parse_openmetrics: Callable[[str], Iterable[Any]] = (
    openmetrics_parser.text_string_to_metric_families
)


def values(families: Iterable[Any]) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


@given(st.text(), st.floats(allow_nan=False, allow_infinity=False))
def test_any_label_and_number_survive(label: str, number: float) -> None:
    text = ExpositionBench(snapshot(reading("disk", Sample(READ, (label,), number)))).text()
    sent = encodable(label)
    assert values(parse_text(text)) == {("dgx_disk_read_bytes_total", sent): number}
    assert sent.isprintable()


@pytest.mark.parametrize(
    "code", [*range(0x20), 0x7F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
)
def test_no_label_commands_a_terminal_or_turns_text(code: int) -> None:
    bench = ExpositionBench(snapshot(reading("disk", Sample(READ, (f"a{chr(code)}b",), 1.0))))
    assert 'dgx_disk_read_bytes_total{device="a?b"} 1.0\n' in bench.text()
    assert document(bench.snapshot, 0.0)["host"][READ.name] == [{"device": "a?b", "value": 1.0}]
    assert LogEvent("x", name=chr(code)).__str__().isprintable()


LABEL = st.text(
    st.sampled_from(["a", '"', "\\", "\n", "\x85", "\u2028", "#", " ", "\udcff"]), max_size=3
)
NUMBER = st.sampled_from([0.0, -0.0, 1.0, 1e7, 123456789.0, -1e-9, 1e300, math.nan, math.inf])


@given(st.lists(st.lists(st.tuples(LABEL, LABEL, NUMBER), max_size=6), min_size=1, max_size=4))
def test_whatever_changes_is_written_as_the_library_writes_it(
    ticks: list[list[tuple[str, str, float]]],
) -> None:
    bench = ExpositionBench()
    for number, rows in enumerate(ticks):
        samples = [
            sample
            for gpu, name, value in rows
            for sample in (power((gpu, name), value), Sample(READ, (name,), value))
        ]
        bench.snapshot = replace(snapshot(reading("a", *samples)), tick=number)
        for accept in ("", PROMETHEUS_2, PROMETHEUS_3):
            text = bench.exposition.page(accept).plain
            assert text == of_the_library(bench.snapshot, bench.clock.monotonic(), accept)


def test_a_scrape_of_another_tick_costs_a_fraction_of_what_the_library_takes() -> None:
    rows = [Sample(READ, (f"disk{number}",), float(number)) for number in range(500)]
    bench = ExpositionBench(snapshot(reading("a", *rows)))
    bench.text()
    shown = []
    for tick in (2, 3):  # the first may import what no one needed before
        rows = [row._replace(value=row.value + 1) for row in rows]
        bench.snapshot = replace(snapshot(reading("a", *rows)), tick=tick)
        shown.append(calls_of(bench.text))
    library = calls_of(lambda: of_the_library(bench.snapshot, bench.clock.monotonic(), ""))
    assert shown[-1] < library / 3


def test_the_process_is_exported_unless_switched_off() -> None:
    text = ExpositionBench(process=True).text()
    assert text.startswith(GOLDEN_TEXT)
    assert "\nprocess_resident_memory_bytes " in text
    assert len(re.findall("^process_", text, re.MULTILINE)) == 6, "METRICS.md says so"
    assert "python_info" not in text
    assert "process_" not in ExpositionBench().text()


@pytest.mark.parametrize("labels", [(*A, None), (*A, ["sm"])])
@pytest.mark.parametrize("value", [1.0, "fast"])
def test_a_metric_that_cannot_be_written_costs_only_itself(
    labels: tuple[str, ...], value: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench = ExpositionBench()

    def text(tick: int, sample: Sample) -> str:
        readings = {**SMALL.readings, **snapshot(reading("z", sample)).readings}
        bench.snapshot = replace(SMALL, tick=tick, readings=readings)
        return bench.text()

    bad, good = Sample(CLOCK, labels, value), Sample(CLOCK, (*A, "sm"), 1.0)
    assert [text(tick, bad) for tick in range(3)] == [GOLDEN_TEXT] * 3
    assert f'{CLOCK.name}{{clock="sm",gpu="0",uuid="GPU-a"}} 1.0\n' in text(3, good)
    assert text(4, bad) == GOLDEN_TEXT
    assert [record.getMessage() for record in caplog.records] == [
        f"event=collector_failed collector={CLOCK.name}"
    ] * 2, "once for each time that it begins"


@pytest.mark.promtool
def test_promtool_has_no_complaint() -> None:
    rich = replace(SMALL, readings={**SMALL.readings, **RICH.readings})
    body = ExpositionBench(rich, process=True).text()
    openmetrics = list(parse_openmetrics(ExpositionBench(rich).text(OM)))
    assert len(openmetrics) == len(list(parse_text(ExpositionBench(rich).text())))
    assert complaints(body) == (0, "")


# Negotiation


@pytest.mark.parametrize(("accept", "content_type"), CASES["accepts"])
def test_openmetrics_is_spoken_to_who_takes_it(accept: str, content_type: str) -> None:
    assert negotiate(accept) == content_type


# The cache


def test_one_build_a_tick_and_format() -> None:
    bench = ExpositionBench()
    for accept in ("", "text/plain", OM, PROMETHEUS_2, OM):
        bench.exposition.page(accept)
    assert bench.builds == 2  # text, OpenMetrics
    bench.snapshot = replace(SMALL, tick=2)
    bench.exposition.page("")
    bench.exposition.page("")
    assert bench.builds == 3


def test_zipped_bytes_are_the_same_and_reproducible() -> None:
    zipped = [ExpositionBench().exposition.page("").zipped for _ in range(2)]
    assert zipped[0] == zipped[1]
    assert zipped[0][4:8] == bytes(4)  # the header's time of writing
    assert gzip.decompress(zipped[0]) == GOLDEN_TEXT.encode()


def test_data_older_than_three_beats_vanishes_though_the_tick_stands_still() -> None:
    fast = reading("fast", Sample(BUSY, (), 0.5), every=1.0)
    slow = reading("slow", power(A, 1.0), every=10.0)
    bench = ExpositionBench(snapshot(fast, slow))
    seen = []
    for _ in range(5):
        text = bench.text()
        seen.append(("dgx_cpu_busy_ratio 0.5" in text, "dgx_gpu_power_watts{" in text))
        bench.clock.advance(1.0)
    assert seen == [(True, True)] * 4 + [(False, True)]


def test_bytes_serve_for_one_second_at_most() -> None:
    bench = ExpositionBench()
    builds = []
    for step in (0.0, 1.0, 0.01, 0.5):
        bench.clock.advance(step)
        bench.exposition.page("")
        builds.append(bench.builds)
    assert builds == [1, 1, 2, 2]
