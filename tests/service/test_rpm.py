"""The .rpm on a machine with systemd: a Debian, of whose packages rpm knows none (--nodeps)."""

import subprocess
from pathlib import Path

import pytest

from tests.service.conftest import built, kept_wheels
from tests.service.service import CONFIGURATION, STATE, UNIT, Service
from tests.support.repository import ROOT

pytestmark = [pytest.mark.systemd, pytest.mark.needs("rpmbuild", "rpmlint")]

FIRST, SECOND = "/mnt/dgx-telemetry.rpm", "/mnt/second/dgx-telemetry.rpm"


@pytest.fixture(scope="module")
def second(service: Service, shared: Path) -> Path:
    """The package of the next release of the same tree."""
    (shared / "second").mkdir()
    built(shared / "second", "rpm", DGX_RELEASE="2", **kept_wheels())
    return shared / "second/dgx-telemetry.rpm"


def test_the_same_tree_gives_the_same_files_without_findings(packages: Path, second: Path) -> None:
    """Digests, times and rights; test_release.py compares whole packages in the long form."""
    command = ["rpm", "-qp", "--dump"]
    first = packages / second.name
    dumps = [subprocess.check_output([*command, package]) for package in (first, second)]
    assert dumps[0].count(b"\n") > 30
    assert dumps[0] == dumps[1]
    subprocess.run(["rpmlint", "-c", ROOT / "deploy/rpm/rpmlint.toml", first], check=True)


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


@pytest.mark.usefixtures("second")
def test_it_is_installed_upgraded_and_removed_with_rpm(service: Service) -> None:
    before = service.container.files()
    fails_to_start(service, f"rpm -i --nodeps {FIRST}")
    service.run(f"rm {CONFIGURATION}; rpm -e dgx-telemetry; rpm -i --nodeps {FIRST}")
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
    fails_to_start(service, f"rpm -U --nodeps --force {SECOND}")
    service.run("rpm -e dgx-telemetry")
    assert service.show("ActiveState") == "inactive"
    left = {name for name in service.container.files() - before if "dgx" in name}
    assert {
        name for name in left if not name.startswith(("/var/lib/", "/etc/dgx-telemetry"))
    } == set()
    service.run(f"rm -rf /etc/dgx-telemetry {' '.join(STATE)}")  # others find it as it was
