"""The .rpm on a machine with systemd: a Debian, of whose packages rpm knows none (--nodeps)."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.container import Container
from tests.service.service import CONFIGURATION, UNIT, Service
from tests.support.repository import ROOT

pytestmark = [pytest.mark.systemd, pytest.mark.needs("rpmbuild", "rpmlint")]

BUILD = [str(ROOT / "deploy/package"), "rpm"]


def built(release: str = "1") -> Path:
    environment = {**os.environ, "DGX_RELEASE": release}
    said = subprocess.run(BUILD, env=environment, capture_output=True, text=True, check=True)
    return ROOT / said.stdout.split()[-1]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    stage = tmp_path_factory.mktemp("machine")
    shared = stage / "shared"
    shared.mkdir()
    for release in ("1", "2"):
        built(release).rename(shared / f"{release}.rpm")
    with Container(shared, stage / "boot.log", ("rpm",)) as container:
        yield Service(container)


def test_the_same_tree_gives_the_same_package_without_findings() -> None:
    package = built()
    first = package.read_bytes()
    assert built().read_bytes() == first
    config = ROOT / "deploy/rpm/rpmlint.toml"
    subprocess.run(["rpmlint", "-c", config, package], check=True)


def test_it_is_installed_upgraded_and_removed_with_rpm(service: Service) -> None:
    before = service.container.files()
    service.run("rpm -i --nodeps /mnt/1.rpm")
    assert service.show("ActiveState") == "active"
    assert service.show("UnitFileState") == "enabled"
    assert service.metric("dgx_agent_config_last_reload_successful") == 1.0
    service.run(f"echo '# mine' >>{CONFIGURATION}; systemctl disable {UNIT}")
    pid = service.pid
    service.run("rpm -U --nodeps /mnt/2.rpm")
    assert (service.show("ActiveState"), service.pid) == ("active", pid), "it was disabled"
    service.run(f"systemctl enable {UNIT}; rpm -U --nodeps --force /mnt/2.rpm")
    assert service.pid != pid
    assert "# mine" in service.run(f"cat {CONFIGURATION}")
    service.run("rpm -e dgx-telemetry")
    assert service.show("ActiveState") == "inactive"
    left = {name for name in service.container.files() - before if "dgx" in name}
    assert {
        name for name in left if not name.startswith(("/var/lib/", "/etc/dgx-telemetry"))
    } == set()
