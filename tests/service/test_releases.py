"""From the package of release 0.2.0 to that of this tree and back, in a booted machine: it starts,
keeps its hours, and leaves no copy of them behind."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.conftest import staged
from tests.service.container import Container
from tests.service.service import CONFIGURATION, STATE, UNIT, Service
from tests.stack.running import eventually
from tests.support.nightly import NIGHTLY
from tests.support.repository import ROOT

pytestmark = [pytest.mark.systemd, NIGHTLY]

OLDER = "cced224a14a728552eb1b6e6cf34a5be39d8fd7a"  # 0.2.0
PLACE, PRIVATE = STATE
SECONDS = {"busy/none": 2700.0, "starved/disk": 900.0}
HOUR = int(time.time() // 3600) - 2
WRITER = f"""
import msgspec
from agent.diagnosis.hours import Hour, HourRow
row = HourRow("4711", "ada", "gpu", "bio", {SECONDS}, 3.6e6)
print(msgspec.json.encode(Hour({HOUR}, [row])).decode())
"""
"""Writes an hour in the form of the version that runs it."""

REPORT = "/opt/dgx-telemetry/bin/dgx-telemetry report"
UPGRADE = "dpkg -i /mnt/dgx-telemetry.deb </dev/null"
GO_BACK = "dpkg -i --force-confold /mnt/older.deb"


@pytest.fixture(scope="module")
def service(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A machine with the older package, and an hour that it has kept."""
    stage = tmp_path_factory.mktemp("releases")
    tree, shared = stage / "tree", staged(package, stage)
    subprocess.run(
        ["git", "-C", ROOT, "worktree", "add", "-q", "--detach", tree, OLDER], check=True
    )
    try:
        subprocess.run([tree / "deploy/deb"], check=True, capture_output=True)
        (built,) = (tree / "dist").glob("*.deb")
        built.rename(shared / "older.deb")
    finally:
        subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", tree], check=True)
    with Container(shared, stage / "boot.log") as machine:
        machine.run("dpkg -i /mnt/older.deb && systemctl stop dgx-telemetry")
        shipped = (ROOT / "deploy/config.toml").read_text()  # 0.2.0 must take it, too
        machine.write(CONFIGURATION, shipped.replace("# info = false", "info = true"))
        machine.run(f"/opt/dgx-telemetry/bin/python - > {PLACE}/hour-{HOUR}.json", given=WRITER)
        machine.run(f"chown --reference={PLACE}/ {PLACE}/hour-*; systemctl start dgx-telemetry")
        yield Service(machine)


def check(service: Service, place: str) -> None:
    """It serves the hour, which lies here alone."""
    eventually(lambda: service.show("ActiveState") == "active", "it serves")
    found = json.loads(service.fetch("/api/v1/hours"))["hours"]
    rows = [row for hour in found if hour["hour"] == HOUR for row in hour["rows"]]
    assert [(row["user"], row["seconds"]) for row in rows] == [("ada", SECONDS)]
    for by in ("node", "user"):
        said = service.run(f"{REPORT} --by {by}")
        assert "1.00" in said, said
    copies = service.run("grep -rl 4711 /var/lib --include='hour-*'").split()
    assert copies == [f"{place}/hour-{HOUR}.json"]


def test_each_way(service: Service) -> None:
    check(service, PRIVATE)
    said = service.run(UPGRADE)
    assert f"address 127.0.0.1:9935, settings {CONFIGURATION}; " in said
    check(service, PLACE)
    service.run(GO_BACK)
    check(service, PRIVATE)


@pytest.mark.parametrize("after", [0.3, 1.5, 4.0], ids=lambda after: f"{after:g} s")
def test_an_upgrade_that_is_killed(service: Service, after: float) -> None:
    """In the unpacking or the making of the environment; the machine is booted, and it is done
    again."""
    service.run(f"{UPGRADE} & sleep {after}; kill -9 $!; pkill -9 postinst; true")
    service.run(f"systemctl daemon-reload; systemctl restart {UNIT}")
    eventually(lambda: service.show("ActiveState") == "active", "it serves")
    service.run(f"cp -a {PRIVATE} {PLACE}.new 2>/dev/null; true")  # the power goes in the move
    service.run(UPGRADE)
    check(service, PLACE)
    service.run(GO_BACK)
    check(service, PRIVATE)
