"""Output of `check`: the table of limits, and the exit status."""

import re

import pytest

from agent.cli.check import exit_status, page
from tests.support.statuses import shown


def test_limits_are_a_table_with_origin_and_source() -> None:
    lines = list(page(shown("dgx-1-v100:pcie-degraded").run(12).look, width=200))
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
    assert max(map(len, page(shown(system).run(12).look))) <= 80


def test_a_finding_shows_whom_its_alert_calls_and_where_to_read_on() -> None:
    machine = shown("dgx-h100:nvlink-down").run(8)
    said = " ".join(" ".join(page(machine.look)).split())
    assert re.search(
        r"GPU 0: 1 NVLink is down \(link 2\). .* reset all its GPUs together .* alert "
        r"DgxNvlinkDown \(critical: pages on-call immediately\) would fire in "
        r"2 min; more: RUNBOOK.md#dgx",
        said,
    )
    assert exit_status(machine.status) == 3
    assert exit_status(shown("dgx-h100:starved-disk").run(8).status) == 0
