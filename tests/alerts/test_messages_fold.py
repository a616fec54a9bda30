"""One message for a rack: GPUs folded by node, five nodes named, the rest counted."""

import json
from pathlib import Path

import pytest

from alerts.receivers import TEXT
from tests.stack.running import run_to_end

pytestmark = pytest.mark.promtool


def rendered(alerts: list[dict[str, str]], folder: Path) -> str:
    """The text of alerts with these labels, as Alertmanager renders it; a description says its
    sign, in as many characters as it may have."""
    data = [
        {
            "status": "firing",
            "labels": labels,
            "annotations": {
                "summary": f"short {labels.get('sign')}",
                "description": f"{labels.get('sign')} ".ljust(400, "x"),
                "runbook_url": "http://dgx/runbook.html",
            },
        }
        for labels in alerts
    ]
    (folder / "data.json").write_text(json.dumps({"status": "firing", "alerts": data}))
    (folder / "none.tmpl").write_text("")
    glob, data_file = f"--template.glob={folder}/none.tmpl", f"--template.data={folder}/data.json"
    done = run_to_end(["amtool", "template", "render", glob, data_file, f"--template.text={TEXT}"])
    assert done.returncode == 0, done.stderr
    return done.stdout


def of_gpus(nodes: int, **labels: str) -> list[dict[str, str]]:
    """Labels of eight GPUs of each node."""
    return [
        {"alertname": "DgxGpuHot", "instance": f"dgx-{node:03}", "gpu": str(gpu), **labels}
        for node in range(nodes)
        for gpu in range(8)
    ]


def test_sixty_four_alerts_are_one_short_message(tmp_path: Path) -> None:
    text = rendered(of_gpus(8), tmp_path)
    assert len(text) <= 3000
    assert "dgx-004: GPU 0, 1, 2, 3" in text
    assert "dgx-005:" not in text
    assert "and 3 more nodes" in text


def test_one_node_is_named_alone(tmp_path: Path) -> None:
    assert "more nodes" not in rendered(of_gpus(1), tmp_path)


def test_each_kind_of_a_fault_is_told_with_its_own_devices(tmp_path: Path) -> None:
    """A hot disk is not told to be replaced because another disk fails."""
    hot, failing = (
        {"instance": "dgx-000", "device": device, "sign": sign}
        for device, sign in (("nvme1n1", "temperature"), ("nvme0n1", "smart"))
    )
    first, second, _ = rendered([failing, hot], tmp_path).split("\n\n")
    assert first.startswith("smart ")
    assert first.endswith("dgx-000: nvme0n1")
    assert second.startswith("temperature ")
    assert second.endswith("dgx-000: nvme1n1")


def test_many_kinds_on_many_gpus_are_a_short_message_too(tmp_path: Path) -> None:
    alerts = [one for n in range(6) for one in of_gpus(8, sign=f"s{n}", xid="119")]
    text = rendered(sorted(alerts, key=lambda one: one["instance"]), tmp_path)
    assert len(text) <= 3000
    assert text.count("http://dgx/runbook.html") == 3
    assert "Also: short s5" in text
