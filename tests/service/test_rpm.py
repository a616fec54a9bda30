"""The .rpm on a machine with systemd: a Debian, of whose packages rpm knows none (--nodeps)."""

import subprocess
from pathlib import Path

import pytest

from tests.service.conftest import built, kept_wheels
from tests.service.service import CONFIGURATION, STATE, UNIT, Service
from tests.support.nightly import NIGHTLY
from tests.support.repository import ROOT

pytestmark = [pytest.mark.systemd, pytest.mark.needs("rpmbuild", "rpmlint")]

INSTALLED = "/mnt/dgx-telemetry.rpm"


@NIGHTLY
def test_the_same_tree_gives_the_same_files(packages: Path, tmp_path: Path) -> None:
    """Digests, times and rights; test_release.py compares whole packages."""
    built(tmp_path, "rpm", DGX_RELEASE="2", **kept_wheels())
    command = ["rpm", "-qp", "--dump"]
    names = (folder / "dgx-telemetry.rpm" for folder in (packages, tmp_path))
    first, second = [subprocess.check_output([*command, name]) for name in names]
    assert first.count(b"\n") > 30
    assert first == second


def test_rpmlint_finds_nothing(packages: Path) -> None:
    package = packages / "dgx-telemetry.rpm"
    subprocess.run(["rpmlint", "-c", ROOT / "deploy/rpm/rpmlint.toml", package], check=True)


def fails_to_start(service: Service, command: str) -> None:
    """A package is installed, whose agent does not take the settings that it finds."""
    service.container.write(CONFIGURATION, "typo = 1\n")
    status, said = service.container.status(command)
    assert status == 0, said
    (line,) = (line for line in said.splitlines() if "the agent did not start" in line)
    assert "typo is not a known key" in line
    assert "(journalctl -u dgx-telemetry); correct it, then run systemctl restart" in line
    assert service.show("ActiveState") != "active"
    assert "typo = 1" in service.run(f"cat {CONFIGURATION}")


def test_it_is_installed_upgraded_and_removed_with_rpm(service: Service) -> None:
    """The same package again is an upgrade to its scripts: each makes the environment, which takes
    three seconds of a processor."""
    again = f"rpm -U --nodeps --force {INSTALLED}"
    before = service.container.files()
    fails_to_start(service, f"rpm -i --nodeps {INSTALLED}")
    service.run(f"sed -i s/typo/#typo/ {CONFIGURATION}; systemctl restart {UNIT}")
    assert service.show("ActiveState") == "active"
    assert service.show("UnitFileState") == "enabled"
    assert service.metric("dgx_agent_config_last_reload_successful") == 1.0
    service.run(f"systemctl disable {UNIT}")
    pid = service.pid
    service.run(again)
    assert (service.show("ActiveState"), service.pid) == ("active", pid), "it was disabled"
    assert "#typo" in service.run(f"cat {CONFIGURATION}")
    service.run(f"systemctl enable {UNIT}")
    fails_to_start(service, again)
    service.run("rpm -e dgx-telemetry")
    assert service.show("ActiveState") == "inactive"
    left = {name for name in service.container.files() - before if "dgx" in name}
    kept = "/var/lib/", "/etc/dgx-telemetry"
    assert [name for name in left if not name.startswith(kept)] == []
    service.run(f"rm -rf /etc/dgx-telemetry {' '.join(STATE)}")  # others find it as it was
