"""One message for a rack: GPUs folded by node, five nodes named, the rest counted."""

import json
from pathlib import Path

import pytest

from alerts.receivers import TEXT
from tests.stack.running import run_to_end

pytestmark = pytest.mark.promtool


def rendered(nodes: int, folder: Path) -> str:
    """The text as Alertmanager renders it for eight GPUs of each node."""
    alerts = [
        {
            "status": "firing",
            "labels": {"alertname": "DgxGpuHot", "instance": f"dgx-{node:03}", "gpu": str(gpu)},
            "annotations": {"description": "x" * 400, "runbook_url": "http://dgx/runbook.html"},
        }
        for node in range(nodes)
        for gpu in range(8)
    ]
    (folder / "data.json").write_text(json.dumps({"status": "firing", "alerts": alerts}))
    (folder / "none.tmpl").write_text("")
    glob, data = f"--template.glob={folder}/none.tmpl", f"--template.data={folder}/data.json"
    done = run_to_end(["amtool", "template", "render", glob, data, f"--template.text={TEXT}"])
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_sixty_four_alerts_are_one_short_message(tmp_path: Path) -> None:
    text = rendered(8, tmp_path)
    assert len(text) <= 3000
    assert "dgx-004: GPU 0 GPU 1" in text
    assert "dgx-005:" not in text
    assert "and 3 more nodes" in text


def test_one_node_is_named_alone(tmp_path: Path) -> None:
    assert "more nodes" not in rendered(1, tmp_path)
