"""Alerts in the terminal of `up`: GPUs of which the same alert fires share a line."""

from typing import Any

from agent.cli.up import by_name, lines


def starved(gpu: int, share: str = "75%", node: str = "dgx07", cause: str = "disk") -> Any:
    uuid = f"GPU-{gpu}"
    return {
        "fingerprint": f"{node}{gpu}{share}",
        "labels": {
            "alertname": "DgxGpuStarved",
            "severity": "warning",
            "instance": node,
            "gpu": f"{gpu}",
            "uuid": uuid,
        },
        "annotations": {
            "description": f"GPU {gpu} ({uuid}) of {node} waited for {share} of the last 15 min. "
            f"Starved by {cause}."
        },
    }


def test_gpus_alike_share_a_line_and_others_have_their_own() -> None:
    alerts = [starved(n, f"{75 + n}%") for n in (2, 0, 1, 4)]
    alerts += [starved(7, cause="CPU"), starved(0, node="dgx08")]
    assert list(lines(alerts)) == [
        "DgxGpuStarved (warning) GPUs 0-2, 4 and 7; GPU 0 (GPU-0) of dgx07 waited for 75% of the "
        "last 15 min. Starved by disk.",
        "DgxGpuStarved (warning) GPU 0 (GPU-0) of dgx08 waited for 75% of the last 15 min. "
        "Starved by disk.",
    ]


def test_alerts_of_no_gpu_stay_apart_and_the_watchdog_is_no_news() -> None:
    disk = {
        "fingerprint": "a",
        "labels": {"alertname": "DgxDiskSaturated", "severity": "warning", "device": "md1"},
        "annotations": {"description": "Disk md1 is full."},
    }
    other = {**disk, "fingerprint": "b", "annotations": {"description": "Disk md0 is full."}}
    watchdog = {**disk, "fingerprint": "c", "labels": {"severity": "none"}}
    news = by_name([disk, other, watchdog])
    assert list(lines(news.values())) == [
        "DgxDiskSaturated (warning) Disk md1 is full.",
        "DgxDiskSaturated (warning) Disk md0 is full.",
    ]
