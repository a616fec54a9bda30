"""InfiniBand ports on fixture trees: healthy ones, and every odd one that peers tripped over."""

import errno

import pytest

from agent.model import Reason
from agent.sources import infiniband
from tests.support.fake_host import HostBench, reasons, values


def test_a_healthy_port(bench: HostBench) -> None:
    bench.port("mlx5_0")
    assert values(bench.read(infiniband, "counters")) == {
        ("dgx_infiniband_received_bytes_total", "mlx5_0", "1"): 4000,
        ("dgx_infiniband_transmitted_bytes_total", "mlx5_0", "1"): 2000,
        ("dgx_infiniband_wait_ticks_total", "mlx5_0", "1"): 7,
    }
    assert values(bench.read(infiniband, "links")) == {
        ("dgx_infiniband_link_up", "mlx5_0", "1"): 1,
        ("dgx_infiniband_rate_bytes_per_second", "mlx5_0", "1"): 12.5e9,
    }
    errors = bench.read(infiniband, "errors")
    assert {s.labels[2] for s in errors.samples} == {
        "symbol_error",
        "link_error_recovery",
        "link_downed",
        "rcv_errors",
        "rcv_remote_physical_errors",
        "xmit_discards",
        "local_link_integrity_errors",
        "excessive_buffer_overrun_errors",
    }
    assert not errors.absences


def test_odd_ports_never_cost_the_others(bench: HostBench) -> None:
    bench.port("mlx5_0")
    bench.port("mlx5_1")  # EINVAL on one counter
    bench.tree.errors["mlx5_1/ports/1/counters/port_rcv_data"] = errno.EINVAL
    bench.port("mlx5_2", counters__port_xmit_wait="N/A (no PMA)", link_layer="Ethernet")
    bench.write(f"{infiniband.CLASS}/irdma0/ports/1/hw_counters/x", "1")  # no folder of counters
    bench.write(f"{infiniband.CLASS}/switch0/node_type", "2: switch")  # no ports
    bench.port("mlx5_3", state="1: DOWN", phys_state="3: Disabled", rate="10 Gb/sec (4X SDR)")
    bench.port("mlx5_4", counters__port_xmit_data="4294967295")  # a 32-bit counter that is full
    bench.port("mlx5_5", counters__port_xmit_data="18446744073709551615")
    reading = bench.read(infiniband, "counters")
    received, sent, wait = (m.name for m in (c.metric for c in infiniband.TRAFFIC))
    assert reasons(reading.absences) == {
        (received, "mlx5_1", "1"): Reason.FAILED,
        (wait, "mlx5_2", "1"): Reason.UNKNOWN,
        (received, "irdma0", "1"): Reason.MISSING,
        (sent, "irdma0", "1"): Reason.MISSING,
        (wait, "irdma0", "1"): Reason.MISSING,
        (sent, "mlx5_4", "1"): Reason.UNKNOWN,
        (sent, "mlx5_5", "1"): Reason.UNKNOWN,
    }
    assert len(reading.samples) == 7 * 3 - 7


def test_a_refused_counter_is_not_asked_again_before_the_next_listing(bench: HostBench) -> None:
    bench.port("mlx5_0")
    bench.tree.errors["port_xmit_wait"] = errno.EINVAL
    for _ in range(59):
        bench.read(infiniband, "counters")
    wait = [path for path in bench.tree.asked if path.endswith("port_xmit_wait")]
    assert len(wait) == 1
    bench.tree.errors.clear()
    for _ in range(2):
        reading = bench.read(infiniband, "counters")
    assert ("dgx_infiniband_wait_ticks_total", "mlx5_0", "1") in values(reading)


def test_a_good_counter_that_breaks_for_good_comes_to_rest(bench: HostBench) -> None:
    bench.port("mlx5_0")
    bench.read(infiniband, "counters")
    bench.tree.errors["port_xmit_wait"] = errno.EINVAL
    bench.tree.asked.clear()
    for _ in range(50):
        bench.read(infiniband, "counters")
    assert sum(path.endswith("port_xmit_wait") for path in bench.tree.asked) == 2


def test_one_failure_of_a_good_counter_costs_one_tick(bench: HostBench) -> None:
    bench.port("mlx5_0")
    exported = []
    for error in (None, errno.EIO, None, None):
        bench.tree.errors = {"port_xmit_wait": error} if error else {}
        reading = values(bench.read(infiniband, "counters"))
        exported.append(reading.get(("dgx_infiniband_wait_ticks_total", "mlx5_0", "1")))
    assert exported == [7, None, 7, 7]


@pytest.mark.parametrize(
    ("state", "physical", "up"),
    [
        ("4: ACTIVE", "5: LinkUp", 1),
        ("4: ACTIVE", "6: LinkErrorRecovery", 0),
        ("1: DOWN", "2: Polling", 0),
        ("2: INIT", "5: LinkUp", 0),
    ],
)
def test_a_port_is_up_when_it_is_active_and_linked(
    bench: HostBench, state: str, physical: str, up: int
) -> None:
    bench.port("mlx5_0", state=state, phys_state=physical)
    found = bench.read(infiniband, "links").samples
    assert [one.value for one in found if one.metric is infiniband.PORT_UP] == [up]


def test_rates_are_known_of_active_ports_only(bench: HostBench) -> None:
    bench.port("mlx5_0", rate="400 Gb/sec (4X NDR)")
    bench.port("mlx5_1", rate="2.5 Gb/sec (1X)")
    bench.port("mlx5_2", state="1: DOWN", rate="10 Gb/sec (4X SDR)")
    bench.port("mlx5_3", rate="fast")
    bench.port("mlx5_4", rate=None)
    bench.port("mlx5_5", state="active")
    bench.port("mlx5_6", state="255: ?")
    bench.port("mlx5_7", rate="0 Gb/sec")
    bench.port("mlx5_8", rate="99999 Gb/sec")
    reading = bench.read(infiniband, "links")
    rates = {s.labels[0]: s.value for s in reading.samples if s.metric is infiniband.RATE}
    assert rates == {"mlx5_0": 50e9, "mlx5_1": 0.3125e9}
    absent = {a.labels[0]: a.reason for a in reading.absences if a.metric is infiniband.RATE}
    assert absent == {
        "mlx5_2": Reason.UNKNOWN,
        "mlx5_3": Reason.UNKNOWN,
        "mlx5_4": Reason.MISSING,
        "mlx5_5": Reason.UNKNOWN,
        "mlx5_6": Reason.UNKNOWN,
        "mlx5_7": Reason.IMPLAUSIBLE,
        "mlx5_8": Reason.IMPLAUSIBLE,
    }


def test_ports_come_and_go_with_the_next_listing(bench: HostBench) -> None:
    bench.read(infiniband, "links")
    asked = len(bench.tree.listed)
    bench.port("mlx5_0")
    assert not bench.read(infiniband, "links").samples
    assert len(bench.tree.listed) == asked
    assert bench.read(infiniband, "links", after=60).samples
