"""The trial of tensor throughput that is made for real GPUs, on a simulated one."""

import json
from pathlib import Path

import pytest

from tests.hardware import tensor_trial


def test_the_trial_writes_what_a_simulated_gpu_reports(tmp_path: Path) -> None:
    assert tensor_trial.main(["--simulate", "--out", str(tmp_path / "new")]) == 0
    (row,) = json.loads((tmp_path / "new/tensor.json").read_text())
    assert row["reported"] == pytest.approx(0.47, abs=0.1)
    assert row["true"] is None
    assert len(tensor_trial.CASES) == 5 * 7 + 2
