"""`/metrics/dcgm`: names, labels, units and values beside dcgm-exporter's own and beside ours."""

import gzip
import re
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from socket import gethostname

import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families as parse_text

from agent.catalogue import METRICS
from agent.model import GPU_LABELS, Metric
from agent.sources import clocks, instances, nvlink
from exporters.dcgm import DCGM_OFF, DcgmExposition, table
from exporters.http import AgentPages
from exporters.prometheus import negotiate
from exporters.settings import DcgmConfig
from tests.support import machine_controls as controls
from tests.support.dcgm_exporter import COMMENTED, DEFAULT, OLDER, RENAMED, UNITS_CHANGED
from tests.support.each import of_each
from tests.support.exposition import complaints
from tests.support.machines import AgentBench, simulated
from tests.support.repository import ROOT

BOTH = DcgmConfig(enabled=True)
SYSTEMS = ("dgx-h100:training", "dgx-1-v100:training", "dgx-h100:training+mig")
FIELDS = tomllib.loads(Path(__file__).with_name("dcgm.toml").read_text("utf-8"))["fields"]


def exposition(
    bench: AgentBench, selected: Callable[[], DcgmConfig] = lambda: BOTH
) -> DcgmExposition:
    return DcgmExposition(
        lambda: bench.latest,
        bench.clock.monotonic,
        bench.agent.poller.samples,
        selected,
    )


@cache
def ran(name: str) -> tuple[AgentBench, DcgmExposition]:
    bench = simulated(name, gpus=2)
    shown = exposition(bench)
    bench.agent.poller.listeners.append(shown.tick)
    if "mig" in name:
        controls.start_process(bench.machine, 0, 8 << 30)
    return bench.run(12), shown


def families(shown: DcgmExposition) -> dict[str, list[tuple[dict[str, str], float]]]:
    text = shown.page("").plain.decode()
    return {f.name: [(s.labels, s.value) for s in f.samples] for f in parse_text(text)}


def values(name: str, field: str, **labels: str) -> dict[str, float]:
    """By UUID, and by MIG instance behind it where there is one."""
    return {
        own["UUID"] + own.get("GPU_I_ID", ""): value
        for own, value in families(ran(name)[1])[field]
        if own.items() >= labels.items()
    }


def ours(name: str, metric: Metric, **labels: str) -> dict[str, float]:
    found = ran(name)[0].samples.where(metric, **labels)
    return {labels[1]: value for labels, value in found.items()}


NAMES = {one.name for field in table().field for one, _ in field.exported("both")}
PAGE = (ROOT / "exporters/DCGM.md").read_text()
ROWS = re.findall(r"^\| (.+?) \|", PAGE.partition("## What is not exported")[2], re.MULTILINE)
NOT_EXPORTED = set(re.findall(r"DCGM_\w+", " ".join(ROWS)))


@of_each([*DEFAULT, *OLDER, *COMMENTED])
def test_what_dcgm_exporter_ships_is_reported_or_said_not_to_be(name: str) -> None:
    assert (name in NAMES) != (name in NOT_EXPORTED)


def test_4_9_renames_as_many_as_its_notes_say() -> None:
    pairs = [
        (field.before, field.since)
        for field in table().field
        if field.before and field.since and field.before.name in DEFAULT
    ]
    changed = [(before, since) for before, since in pairs if before.name != since.name]
    assert len(changed) == RENAMED
    assert len([1 for before, since in changed if before.unit != since.unit]) == UNITS_CHANGED
    shown = {before.name for before, _ in pairs}
    assert set(DEFAULT) - shown == {"DCGM_FI_DEV_VGPU_LICENSE_STATUS"}


@pytest.mark.parametrize("name", SYSTEMS[:2])
@pytest.mark.parametrize(("field", "metric", "labels", "per"), FIELDS)
def test_values_are_ours_in_their_unit(
    name: str, field: str, metric: str, labels: dict[str, str], per: float
) -> None:
    """Whole numbers are rounded down, as in DCGM: less than one below."""
    expected = {uuid: value / per for uuid, value in ours(name, METRICS[metric], **labels).items()}
    found = values(name, field)
    assert found.keys() == expected.keys()
    assert len(found) >= 2
    whole = all(value == int(value) for value in found.values())
    for uuid, value in found.items():
        within = 0 <= expected[uuid] - value + 1e-6 < 1 if whole else value == expected[uuid]
        assert within, (uuid, value, expected[uuid])


def test_either_of_two_labels_is_summed() -> None:
    bench = simulated("dgx-station-v100:throttled").run(12)
    found = families(exposition(bench))["DCGM_FI_DEV_GPU_THERMAL_THROTTLE_SECONDS_TOTAL"]
    parts = [
        bench.samples.where(clocks.THROTTLE, reason=f"{which}_thermal")
        for which in ("software", "hardware")
    ]
    for labels, value in found:
        own = [v for part in parts for key, v in part.items() if key[1] == labels["UUID"]]
        assert len(own) == 2
        assert value == sum(own)
    assert max(value for _, value in found) > 1


def test_rates_are_those_of_our_counters() -> None:
    bench, _ = ran(SYSTEMS[0])
    both = [nvlink.TRANSMITTED, nvlink.RECEIVED]
    samples = bench.agent.poller.samples
    for uuid, rate in values(SYSTEMS[0], "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND").items():
        index = next(labels[0] for labels in samples.all(both[0]) if labels[1] == uuid)
        sent, received = (samples.rate(metric, index, uuid) or 0.0 for metric in both)
        assert rate == pytest.approx(sent + received, abs=1.0)
        assert rate > 1e9
        old = values(SYSTEMS[0], "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL")[uuid]
        assert old == int((sent + received) / 1024 / 1000)
    traffic = values(SYSTEMS[0], "DCGM_FI_PROF_PCIE_RX_BYTES")
    assert all(0 < value < 64e9 for value in traffic.values())


def test_what_is_absent_there_is_absent_here() -> None:
    """Without GPM there are no shares of tensor cores; retired pages are of older GPUs."""
    found = families(ran(SYSTEMS[1])[1])
    gone = {"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_DEV_ROW_REMAP_FAILURE"}
    assert not gone & found.keys()
    assert "DCGM_FI_DEV_RETIRED_SBE" in found
    assert "DCGM_FI_DEV_RETIRED_SBE" not in families(ran(SYSTEMS[0])[1])


def test_labels_are_those_of_each_generation() -> None:
    found = families(ran(SYSTEMS[0])[1])
    common = {"gpu", "UUID", "pci_bus_id", "device", "modelName", "hostname"}
    (old, _), *_ = found["DCGM_FI_DEV_GPU_TEMP"]
    assert old.keys() == {*common, "Hostname", "DCGM_FI_DRIVER_VERSION"}
    (new, _), *_ = found["DCGM_FI_DEV_GPU_TEMP_CELSIUS"]
    assert new.keys() == {*common, "DCGM_FI_SYSTEM_DRIVER_VERSION"}
    assert new["device"] == f"nvidia{new['gpu']}"
    assert new["hostname"] == old["Hostname"] == gethostname()
    assert re.fullmatch(r"[0-9A-F]{8}:[0-9A-F]{2}:00\.0", new["pci_bus_id"])
    (stayed, _), *_ = found["DCGM_FI_PROF_PCIE_TX_BYTES"]
    assert stayed.keys() == new.keys()
    assert len(found["DCGM_FI_PROF_PCIE_TX_BYTES"]) == 2


def test_a_generation_alone() -> None:
    bench, both = ran(SYSTEMS[0])
    old = families(exposition(bench, lambda: DcgmConfig(enabled=True, names="before-4.9")))
    new = families(exposition(bench, lambda: DcgmConfig(enabled=True, names="4.9")))
    assert "DCGM_FI_DEV_FB_USED" in old
    assert "DCGM_FI_DEV_FB_USED_BYTES" not in old
    assert "DCGM_FI_DEV_FB_USED" not in new
    assert "DCGM_FI_DEV_FB_CAPACITY_BYTES" in new
    rated = [field for field in table().field if field.rate]  # need a listener that heard the ticks
    names = {name.name for field in rated for name, _ in field.exported("both")}
    assert old.keys() | new.keys() >= families(both).keys() - names
    (stayed, _), *_ = old["DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"]
    assert "Hostname" in stayed


def test_each_mig_instance_has_a_row() -> None:
    """Memory and shares of its own, the rest of its GPU; the GPU without MIG has none."""
    found = families(ran(SYSTEMS[2])[1])
    places = [
        (labels["gpu"], labels.get("GPU_I_ID"), labels.get("GPU_I_PROFILE"))
        for labels, _ in found["DCGM_FI_DEV_FB_USED"]
    ]
    divided = [("0", "2", "3g.40gb"), ("0", "3", "2g.20gb"), ("0", "9", "1g.10gb")]
    assert sorted(places, key=str) == [*divided, ("1", None, None)]
    bench = ran(SYSTEMS[2])[0]
    for metric, name in (
        (instances.USED, "DCGM_FI_DEV_FB_USED_BYTES"),
        (instances.FREE, "DCGM_FI_DEV_FB_FREE_BYTES"),
        (instances.TENSOR_ACTIVE, "DCGM_FI_PROF_TENSOR_UTIL_RATIO"),
    ):
        own = {labels[1] + labels[2]: value for labels, value in bench.samples.all(metric).items()}
        assert values(SYSTEMS[2], name, gpu="0") == own
    assert len(set(values(SYSTEMS[2], "DCGM_FI_DEV_POWER_USAGE", gpu="0").values())) == 1
    assert not values(SYSTEMS[2], "DCGM_FI_DEV_GPU_UTIL", gpu="0")


def test_the_last_xid_stays() -> None:
    bench = simulated("k40:idle").run(2)
    shown = exposition(bench)
    (labels, value), *_ = families(shown)["DCGM_FI_DEV_XID_ERRORS"]
    assert (labels["err_code"], labels["err_msg"], value) == ("0", "no error", 0)
    for code in (13, 31):
        bench.machine.driver.xid(0, code)
    bench.run(3)
    (labels, value), *_ = families(shown)["DCGM_FI_DEV_XID_ERROR"]
    assert (labels["err_code"], value) == ("31", 31)


@pytest.mark.promtool
def test_promtool_objects_to_what_is_dcgm_exporters_alone() -> None:
    body = ran(SYSTEMS[0])[1].page("").plain.decode()
    assert {line.partition(" ")[2] for line in complaints(body)[1].splitlines()} <= {
        'counter metrics should have "_total" suffix',
        "metric name should not include type 'counter'",
        "label names should be written in 'snake_case' not 'camelCase'",
    }
    declared = dict(re.findall(r"# TYPE (\S+) (\S+)", body))
    assert declared["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] == "counter"
    assert declared["DCGM_FI_DEV_GPU_TEMP"] == "gauge"


@pytest.mark.parametrize("name", SYSTEMS)
async def test_over_http_and_off_until_configured(name: str) -> None:
    bench, _ = ran(name)
    config = [DcgmConfig()]
    shown = exposition(bench, lambda: config[0])
    poller = bench.agent.poller
    app = AgentPages(shown, lambda: poller.latest, dcgm=shown).application()
    async with TestClient(TestServer(app), auto_decompress=False) as client:
        refused = await client.get("/metrics/dcgm")
        assert (refused.status, await refused.text()) == (404, DCGM_OFF)
        config[0] = BOTH  # a reload
        zipped = await client.get(
            "/metrics/dcgm",
            headers={"Accept": "application/openmetrics-text", "Accept-Encoding": "gzip"},
        )
        assert zipped.headers["Content-Type"] == negotiate("")
        text = gzip.decompress(await zipped.read())
        assert text == shown.page("").plain
        assert text.startswith(b"# HELP DCGM_FI_DEV_SM_CLOCK ")
        assert (b"GPU_I_ID" in text) == ("mig" in name)
        assert (b"DCGM_FI_PROF_TENSOR" in text) == ("h100" in name)


def test_the_table_names_what_there_is_and_each_name_once() -> None:
    known, seen = table(), set(NOT_EXPORTED)
    for field in known.field:
        for name in (*field.metrics, *[field.instance] * bool(field.instance)):
            assert METRICS[name].labels[:2] == GPU_LABELS
            assert set(field.where) <= {*METRICS[name].labels} or name == field.instance
        names = {one.name: one.unit for one, _ in field.exported("both")}
        assert names
        assert not names.keys() & seen
        assert known.unit.keys() >= {*names.values()}
        seen |= names.keys()
