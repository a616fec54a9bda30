"""Number of series of a node, and the size of its scrape: the table in METRICS.md.

`tests/update` writes the table in exporters/METRICS.template.md.
"""

import re

import pytest

from agent.simulator import SYSTEMS
from exporters.reference import TEMPLATE
from exporters.settings import MetricsConfig
from tests.conftest import Committed
from tests.support.machines import TEXT, AgentBench, simulated
from tests.support.nightly import shortly


def node_series() -> list[list[str]]:
    lines = TEMPLATE.read_text().splitlines()
    return [re.findall(r"[\w-]+", line) for line in lines if "| `" in line]


def settled(system: str) -> AgentBench:
    """In training, once what is read every minute has been read twice."""
    bench = simulated(f"{system}:training").run(3)
    bench.clock.advance(60.0)
    return bench.run(3)


def counted(system: str) -> list[str]:
    """The row of a system."""
    bench, whole = settled(system), MetricsConfig(set="full")
    default, kilobytes = shown(bench, MetricsConfig())
    full, _ = shown(bench, whole)
    most, largest = shown(bench, whole, per_link=True)
    return [system, *map(str, (default, full, most, kilobytes, largest))]


def shown(bench: AgentBench, config: MetricsConfig, *, per_link: bool = False) -> tuple[int, int]:
    """Series and kB of a scrape, in two digits: some values have more digits in one run than in
    another."""
    text = bench.exposition(config, per_link=per_link).page(TEXT).plain.decode()
    return len(re.findall("^[^#]", text, re.MULTILINE)), int(float(f"{len(text) / 1000:.2g}"))


def test_a_large_node_is_small() -> None:
    """What a hosted Prometheus bills for a DGX H100 with one job."""
    bench = settled("dgx-h100")
    series, kilobytes = shown(bench, MetricsConfig())
    assert series <= 660, "show fewer series of a metric: `shown` in its declaration"
    assert kilobytes <= 100
    page = bench.exposition(MetricsConfig()).page(TEXT)
    assert len(page.zipped) < len(page.plain) / 5, "METRICS.md says so"


@pytest.mark.parametrize("system", shortly(SYSTEMS, ("dgx-station-v100", "gtx-1080")))
def test_is_as_the_page_says(system: str, committed: Committed) -> None:
    known = {row[0]: row for row in node_series()} | {system: counted(system)}
    rows = [known[name] for name in SYSTEMS if name in known]
    lines = "".join(f"| `{row[0]}` | {' | '.join(row[1:])} |\n" for row in rows)
    committed(TEMPLATE, re.sub(r"(\| `.*\n)+", lines, TEMPLATE.read_text()))


def test_every_system_is_there() -> None:
    assert [name for name, *_ in node_series()] == list(SYSTEMS)
