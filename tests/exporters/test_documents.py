"""The snapshot as JSON, and METRICS.md."""

from dataclasses import replace

from agent.model import BUSY as BUSY_PAIR
from agent.model import Absence, GpuKey, Metric, Reason, Sample, SignalQuality, Verdict
from exporters.reference import reference
from exporters.snapshot_json import document, instant
from tests.support.exposition import (
    BUSY,
    CLOCK,
    LIMIT,
    LOADERS,
    POWER,
    READ,
    RICH,
    UP,
    A,
    power,
    reading,
    snapshot,
)


def test_the_whole_document() -> None:
    assert document(RICH, 1.0) == {
        "time": "2023-11-14T22:13:20.250Z",
        "timestamp": 1_700_000_000.25,
        "tick": 1,
        "system": {"system": "dgx-h100", "driver_version": "580"},
        "gpus": [
            {
                "gpu": "0",
                "uuid": "GPU-a",
                "info": {"model": "H100"},
                "verdict": {},
                "values": {
                    "dgx_bandwidth_limit_bytes_per_second": [
                        {
                            "path": "nvlink",
                            "device": "gpu0",
                            "direction": "transmit",
                            "value": 4.5e11,
                        }
                    ],
                    "dgx_gpu_clock_hertz": [
                        {"clock": "memory", "value": 2.6e9},
                        {"clock": "sm", "value": 1.98e9},
                    ],
                    "dgx_gpu_power_watts": 400.0,
                    "dgx_loader_sleep_ratio": 0.5,
                },
                "absent": {
                    "dgx_gpu_clock_hertz": [
                        {"labels": {"clock": "video"}, "reason": "denied", "detail": "video clock"}
                    ],
                    "dgx_gpu_energy_joules_total": {
                        "reason": "unsupported",
                        "detail": "nvmlTotalEnergy",
                    },
                },
            },
            bare_gpu("9", "GPU-c", 61.0),
            bare_gpu("10", "GPU-b", 60.0),
        ],
        "host": {
            "dgx_bandwidth_limit_bytes_per_second": [
                {"path": "disk", "device": "nvme0n1", "direction": "read", "value": 6.5e9}
            ],
            "dgx_cpu_busy_ratio": 0.25,
            "dgx_disk_read_bytes_total": [{"device": "nvme0n1", "value": 7.0}],
        },
        "absent": [
            {
                "metric": "dgx_disk_read_bytes_total",
                "labels": {"device": "sdb"},
                "reason": "not_present",
                "detail": "/proc/diskstats",
            }
        ],
        "sources": [
            {"source": "host", "up": False},
            {"source": "nvml", "read_seconds": 1.5, "up": True},
        ],
    }


def bare_gpu(index: str, uuid: str, watts: float) -> dict[str, object]:
    found = {"dgx_gpu_power_watts": watts}
    empty: dict[str, dict[str, str]] = {"info": {}, "verdict": {}, "absent": {}}
    return {"gpu": index, "uuid": uuid, "values": found, **empty}


def test_expired_values_are_stalled() -> None:
    (gpu,) = document(snapshot(reading("gpu0", power(A, 1.0))), 3.5)["gpus"]
    assert gpu["values"] == {}
    assert gpu["absent"] == {
        "dgx_gpu_power_watts": {"reason": "stalled", "detail": "its data expired"}
    }


def test_a_gpu_whose_index_shifted_is_still_one() -> None:
    before = reading("before", power(("1", "GPU-a"), 1.0), Sample(CLOCK, ("1", "GPU-a", "sm"), 5.0))
    after = reading("after", power(("0", "GPU-a"), 2.0), at=1.0)
    for order in ((before, after), (after, before)):
        (gpu,) = document(snapshot(*order), 1.0)["gpus"]
        assert (gpu["gpu"], gpu["values"]["dgx_gpu_power_watts"]) == ("0", 2.0)
        assert gpu["values"]["dgx_gpu_clock_hertz"] == [{"clock": "sm", "value": 5.0}]


def test_a_verdict_says_since_when() -> None:
    verdict = Verdict(*BUSY_PAIR, SignalQuality.GPM, {BUSY_PAIR: 1.0}, since=-10.0)
    shown = replace(snapshot(reading("gpu0", power(A, 1.0))), verdicts={GpuKey(0, A[1]): verdict})
    (gpu,) = document(shown, 0.0)["gpus"]
    assert gpu["verdict"]["seconds"] == shown.at + 10.0
    assert gpu["verdict"]["since"] == instant(shown.wall - shown.at - 10.0)


def test_an_absence_without_labels_belongs_to_the_host() -> None:
    lost = replace(reading("x"), absences=(Absence(POWER, (), Reason.NO_DRIVER, "no driver"),))
    content = document(snapshot(lost), 0.0)
    assert content["gpus"] == []
    assert [(a["metric"], a["reason"]) for a in content["absent"]] == [
        ("dgx_gpu_power_watts", "no_driver")
    ]


def test_a_text_of_the_reference_breaks_no_table() -> None:
    """The page itself is compared with METRICS.md."""
    odd = Metric("dgx_gpu_odd_ratio", "Either |a|\nor <b>.", "x")
    row = "| `dgx_gpu_odd_ratio` | gauge |  | all | Either \\|a\\| or &lt;b>. | x |"
    assert row in reference([odd]).splitlines()


def test_the_reference_says_where_it_comes_from_and_does_not_depend_on_order() -> None:
    metrics = [POWER, READ, BUSY, LIMIT, LOADERS, UP]
    assert reference(metrics) == reference(reversed(metrics))
    assert "Generated by `dgx-telemetry build`" in reference(metrics)
