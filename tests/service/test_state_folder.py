"""The unit's state folder under a real systemd, with a program in the agent's place that writes."""

from collections.abc import Iterator

import pytest

from tests.service.container import Container
from tests.support.repository import ROOT

pytestmark = pytest.mark.systemd

PROGRAM = """#!/bin/sh
echo serves >/run/dgx-telemetry/serves
echo $$ >>$STATE_DIRECTORY/hour-1.json
systemd-notify --ready --pid=$PPID
exec sleep 600
"""
STATE = "/var/lib/dgx-telemetry"
HOLD = "mount --bind /var /var && mount -o remount,ro,bind /var"
OLDER = f"""
systemctl stop dgx-telemetry; mkdir -m 0700 -p /var/lib/private && mv {STATE} /var/lib/private
ln -s private/dgx-telemetry {STATE}
"""
"""As StateDirectory= of a dynamic user leaves it."""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    folder = tmp_path_factory.mktemp("state")
    with Container(folder, folder / "log") as container:
        unit = (ROOT / "deploy/dgx-telemetry.service").read_text()
        lines = (line for line in unit.splitlines() if not line.startswith(("Device", "IPAddress")))
        text = "\n".join(lines).replace("Type=notify", "Type=simple").replace("WatchdogSec=30", "")
        container.run("mkdir -p /opt/dgx-telemetry/bin")
        container.write("/opt/dgx-telemetry/bin/dgx-telemetry", PROGRAM)
        container.write("/etc/systemd/system/dgx-telemetry.service", text)
        container.run("chmod 755 /opt/dgx-telemetry/bin/dgx-telemetry; systemctl daemon-reload")
        yield container


def written(machine: Container) -> int:
    """Return the number of runs that have written into the folder, this one included."""
    machine.run("systemctl restart dgx-telemetry; sleep 1; systemctl is-active dgx-telemetry")
    return len(machine.run(f"cat {STATE}/hour-1.json 2>/dev/null", check=False).splitlines())


def test_it_serves_where_var_is_read_only_and_keeps_hours_where_not(machine: Container) -> None:
    machine.run(HOLD)
    assert written(machine) == 0, "the first start"
    machine.run("umount /var")
    assert [written(machine) for _ in range(2)] == [1, 2]
    machine.run(f"chown -R 4242 {STATE}")  # the number of the user of another run
    assert written(machine) == 3
    machine.run(OLDER)
    assert written(machine) == 4, "what an older release kept"
    machine.run(HOLD)
    assert written(machine) == 4, "a later start"
    machine.run("umount /var")
