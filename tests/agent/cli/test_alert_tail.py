"""Alerts in the terminal of `up`."""

from agent.cli.up import lines


def test_each_alert_has_a_line_and_the_watchdog_none() -> None:
    disk = {
        "fingerprint": "a",
        "labels": {"alertname": "DgxDiskSaturated", "severity": "warning", "device": "md1"},
        "annotations": {"summary": "disk is full", "description": "Disk md1 is full."},
    }
    watchdog = {**disk, "fingerprint": "c", "labels": {"severity": "none"}}
    assert lines([disk, watchdog]) == {"a": "DgxDiskSaturated (warning) Disk md1 is full."}
