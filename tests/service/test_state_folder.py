"""The unit's state folder under a real systemd, with a program in the agent's place that writes."""

from collections.abc import Iterator

import pytest

from tests.service.container import Container
from tests.stack.running import eventually
from tests.support.repository import ROOT

pytestmark = pytest.mark.systemd

PROGRAM = """#!/bin/sh
echo serves >/run/dgx-telemetry/serves
echo $$ >>$STATE_DIRECTORY/hour-1.json
systemd-notify --ready --pid=$PPID
exec sleep 600
"""
KEEP = "/opt/dgx-telemetry/bin/keep-state"
STATE, OLD_PLACE = "/var/lib/dgx-telemetry", "/var/lib/private/dgx-telemetry"
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
        container.write(KEEP, (ROOT / "deploy/keep-state").read_text())
        container.run(
            f"chmod 755 {KEEP} /opt/dgx-telemetry/bin/dgx-telemetry; systemctl daemon-reload"
        )
        yield container


def written(machine: Container) -> int:
    """Return the number of runs that have written into the folder, this one included."""
    machine.run("systemctl restart dgx-telemetry")
    runs = "cat /proc/$(systemctl show --property MainPID --value dgx-telemetry)/comm"
    eventually(lambda: machine.run(runs, check=False) == "sleep", "its last command")
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
    assert left(machine).split() in ([], [OLD_PLACE]), "its folder is in use until the next start"
    assert not machine.run(f"ls -A {OLD_PLACE} 2>/dev/null", check=False), "a copy with names"
    machine.run(f"{OLDER}mkdir -p {STATE}.new; echo names >{STATE}.new/hour-1.json")
    assert written(machine) == 5, "a move that was interrupted in its copy"
    machine.run(f"{OLDER}rm {STATE}")
    assert written(machine) == 6, "and behind its removal of the link"
    machine.run("mkdir -p /var/lib/private/dgx-telemetry")
    assert written(machine) == 7, "beside a copy that an earlier move left"
    assert not left(machine)
    machine.run(HOLD)
    assert written(machine) == 7, "a later start"
    machine.run("umount /var")


def left(machine: Container) -> str:
    return machine.run(f"ls -d /var/lib/private/dgx-telemetry {STATE}.new 2>/dev/null", check=False)


PRERM = (ROOT / "deploy/debian/prerm").read_text().splitlines()[3]
OWN = ("Environment=STATE_DIRECTORY", "ExecStartPre=", "ReadWritePaths=")


def test_an_older_release_starts_again_and_has_the_hours(machine: Container) -> None:
    """0.2.0 (cced224) lets systemd keep its state, below /var/lib/private."""
    before = written(machine)
    place = "/etc/systemd/system/dgx-telemetry.service"
    newer = machine.run(f"cat {place}")
    lines = [line for line in newer.splitlines() if not line.startswith(OWN)]
    state = "StateDirectory=dgx-telemetry\nStateDirectoryMode=0700\n"
    machine.write(place, "\n".join(lines).replace("[Service]\n", f"[Service]\n{state}") + "\n")
    machine.run(f"systemctl daemon-reload; {PRERM}")
    assert written(machine) == before + 1
    machine.write(place, newer)
    machine.run("systemctl daemon-reload")
    assert [written(machine) for _ in range(2)] == [before + 2, before + 3], "the newer one again"
    assert not left(machine)
