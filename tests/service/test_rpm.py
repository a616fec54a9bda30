"""The .rpm on a machine with systemd: a Debian, of whose packages rpm knows none (--nodeps)."""

import subprocess
from pathlib import Path

import pytest

from tests.service.conftest import built
from tests.service.service import CONFIGURATION, STATE, UNIT, Service
from tests.support.repository import ROOT

pytestmark = [pytest.mark.systemd, pytest.mark.needs("rpmbuild", "rpmlint")]

FIRST, SECOND = "/mnt/dgx-telemetry.rpm", "/mnt/second/dgx-telemetry.rpm"


def test_the_same_tree_gives_the_same_package_without_findings(
    packages: Path, tmp_path: Path
) -> None:
    built(tmp_path, "rpm")
    package = tmp_path / "dgx-telemetry.rpm"
    assert package.read_bytes() == (packages / package.name).read_bytes()
    config = ROOT / "deploy/rpm/rpmlint.toml"
    subprocess.run(["rpmlint", "-c", config, package], check=True)


def test_it_is_installed_upgraded_and_removed_with_rpm(service: Service, shared: Path) -> None:
    (shared / "second").mkdir()
    built(shared / "second", "rpm", "2")
    before = service.container.files()
    service.run(f"rpm -i --nodeps {FIRST}")
    assert service.show("ActiveState") == "active"
    assert service.show("UnitFileState") == "enabled"
    assert service.metric("dgx_agent_config_last_reload_successful") == 1.0
    service.run(f"echo '# mine' >>{CONFIGURATION}; systemctl disable {UNIT}")
    pid = service.pid
    service.run(f"rpm -U --nodeps {SECOND}")
    assert (service.show("ActiveState"), service.pid) == ("active", pid), "it was disabled"
    service.run(f"systemctl enable {UNIT}; rpm -U --nodeps --force {SECOND}")
    assert service.pid != pid
    assert "# mine" in service.run(f"cat {CONFIGURATION}")
    service.run("rpm -e dgx-telemetry")
    assert service.show("ActiveState") == "inactive"
    left = {name for name in service.container.files() - before if "dgx" in name}
    assert {
        name for name in left if not name.startswith(("/var/lib/", "/etc/dgx-telemetry"))
    } == set()
    service.run(f"rm -rf /etc/dgx-telemetry {' '.join(STATE)}")  # others find it as it was
