"""Output of `check`: the table of limits, and the exit status."""

import re

import pytest

from agent.cli.check import page
from agent.specs.sheets import load
from tests.support.machines import simulated

SYSTEMS = load().systems


def test_limits_are_a_table_with_origin_and_source() -> None:
    bench = simulated("dgx-1-v100:pcie-degraded").run(12)
    lines = list(page(bench.agent.poller.latest, SYSTEMS["dgx-1-v100"], width=200))
    table = lines[lines.index("Limits:") + 1 : lines.index("Absent values:") - 1]
    assert table[0].split() == ["path", "device", "direction", "limit", "origin", "source"]
    rows = [re.sub(r"(\d) ([GM]b?B?/s)", r"\1\2", row).split(maxsplit=5) for row in table[1:]]
    found = {(path, device, way): rest for path, device, way, *rest in rows if path != "infiniband"}
    assert found["pcie", "gpu0", "both"][:2] == ["7.9GB/s", "hardware"]
    assert found["pcie", "gpu1-7", "both"][:2] == ["16GB/s", "spec"]
    assert "NVIDIA DGX-1" in found["disk", "md0", "read"][2]
    assert ("disk", "md0", "write") not in found


@pytest.mark.parametrize("system", ["dgx-h100", "dgx-1-p100@580", "k40"])
def test_it_fits_eighty_columns(system: str) -> None:
    bench = simulated(system).run(12)
    spec = bench.agent.recognise(bench.agent.gpus.inventory)
    assert max(map(len, page(bench.agent.poller.latest, spec))) <= 80


@pytest.mark.parametrize(
    ("machine", "last"),
    [
        ("dgx-station-v100:training", "No hardware fault found."),
        ("dgx-station-v100:starved-disk", "No hardware fault found. GPUs 0-3 starved by disk "),
        ("dgx-station-v100:held", "No hardware fault found. GPUs 0-3 occupied by an idle process"),
        ("dgx-station-v100:starved-disk+pcie-degraded", "GPUs 0-3 starved by disk "),
    ],
)
def test_what_gpus_lose_is_said_without_a_fault_too(machine: str, last: str) -> None:
    bench = simulated(machine).run(70 if "held" in machine else 24)
    lines = list(page(bench.agent.poller.latest, SYSTEMS["dgx-station-v100"], width=200))
    assert lines[-1].startswith(last)
    assert lines[-1].endswith(("found.", " % of the time: see `once`."))


def test_a_finding_shows_whom_its_alert_calls_and_where_to_read_on() -> None:
    bench = simulated("dgx-h100:nvlink-down").run(8)
    said = " ".join(" ".join(page(bench.agent.poller.latest, SYSTEMS["dgx-h100"])).split())
    assert re.search(
        r"critical: GPU 0: NVLink 2 is down.* reset all its GPUs at once .* \(alert DgxNvlinkDown "
        r"\(critical: pages on-call immediately\) fires after 3 min; more: RUNBOOK.md#Dgx",
        said,
    )
