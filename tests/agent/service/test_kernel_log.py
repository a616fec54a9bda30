"""Access of the service to the kernel log: by a descriptor, without a privilege of its own."""

import re
import subprocess
from pathlib import Path

import pytest

from agent.service.program import KERNEL_LOG, shipped

UNIT = shipped("dgx-telemetry.service").read_text()
DROP_IN = shipped(KERNEL_LOG).read_text()


def test_it_gives_one_descriptor_and_no_privilege() -> None:
    settings = dict(re.findall(r"^(\w+)=(.*)$", DROP_IN, re.MULTILINE))
    assert settings == {"StandardInput": "file:/dev/kmsg", "DeviceAllow": "/dev/kmsg r"}
    assert "ProtectKernelLogs=yes" in UNIT
    assert re.search(r"^CapabilityBoundingSet=$", UNIT, re.MULTILINE)


@pytest.mark.needs("systemd-analyze")
def test_the_exposure_stays(tmp_path: Path) -> None:
    """Judged with the settings of the drop-in in the unit: offline, no drop-ins are read."""
    added = DROP_IN.partition("[Service]\n")[2]
    unit = tmp_path / "with.service"
    unit.write_text(UNIT.replace("[Service]\n", f"[Service]\n{added}"))
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"Overall exposure level for with\.service: (\d\.\d) ", said)
    assert found
    assert float(found[1]) <= 1.5
