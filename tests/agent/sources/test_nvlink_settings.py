"""Series that the settings of NVLink leave out."""

import re

import pytest

from agent.config.settings import Settings
from agent.sources.context import NvlinkConfig
from tests.support.machines import simulated


@pytest.mark.parametrize("per_link", [True, False])
def test_bytes_of_single_links_are_a_setting(per_link: bool) -> None:
    bench = simulated("dgx-station-v100:training", Settings(NvlinkConfig(per_link=per_link)))
    scrape = bench.run(3).scrape()
    found = set(re.findall(r"^dgx_nvlink_\w+", scrape, re.MULTILINE))
    kept = {"dgx_nvlink_transmitted_bytes_total", "dgx_nvlink_link_up", "dgx_nvlink_errors_total"}
    assert kept <= found
    assert ("dgx_nvlink_link_transmitted_bytes_total" in found) is per_link
    why = 'absent_values{metric="dgx_nvlink_link_received_bytes_total",reason="not_configured"} 4'
    assert (why in scrape) is not per_link
    assert ('device="gpu0:0"' in scrape) is per_link, "a limit without bytes is of no use"
