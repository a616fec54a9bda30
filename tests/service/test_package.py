"""The service as the package brings it, from the first start to the last trace, in order."""

import os
import re
import socket
from functools import partial
from pathlib import Path

import bcrypt
import pytest

from tests.service.service import CONFIGURATION, DROP_IN, PYTHON, STATE, UNIT, Service, lasting, now
from tests.stack.running import eventually
from tests.support.repository import ROOT

pytestmark = pytest.mark.systemd

MANUAL = (ROOT / "deploy/README.md").read_text()
WATCHDOG = 6
"""Seconds, where the shipped unit has 30."""

LAUNCHER = """
import os, subprocess, sys
os.setgid(4242); os.setuid(4242)
loader = subprocess.Popen([sys.executable, "-c", "while True: pass"])
print(os.getpid(), flush=True)
sys.stdin.read()
loader.kill()
"""


def connect(service: Service, address: str) -> None:
    """Connect from an address of the machine to the same."""
    ends = (address, 9935), 5, (address, 0)
    service.container.in_network(partial(socket.create_connection, *ends)).close()


# The package is installed.


def test_without_a_python_the_package_says_what_it_needs(service: Service) -> None:
    python = service.run(PYTHON)
    service.run(f"mv {python} /usr/bin/away")
    status, said = service.container.status("dpkg -i /mnt/dgx-telemetry.deb")
    service.run(f"mv /usr/bin/away {python}")
    assert status != 0
    assert said.count("dgx-telemetry: needs python3.13, python3.12 or python3.11 in /usr/bin") == 1
    assert "Traceback" not in said


def test_the_package_installs_enables_and_starts(service: Service) -> None:
    service.run("dpkg --configure dgx-telemetry")
    assert service.show("ActiveState") == "active"
    assert service.show("UnitFileState") == "enabled"
    assert service.show("NRestarts") == "0"
    assert service.metric("dgx_agent_config_last_reload_successful") == 1.0
    assert service.run("dgx-telemetry --version").startswith("dgx-telemetry ")
    assert "is active" in service.run("dgx-telemetry install")


def test_the_units_have_no_fault(service: Service) -> None:
    """Systemd ignores what it does not understand, with only a warning."""
    folder = "/usr/lib/systemd/system"
    said = service.run(f"systemd-analyze verify --man=no {folder}/dgx-telemetry*.service")
    assert said == ""


def test_the_service_is_hardly_exposed(service: Service) -> None:
    said = service.run(f"systemd-analyze security --no-pager {UNIT}")
    overall = said.splitlines()[-1]
    print(overall)
    found = re.search(r"Overall exposure level for dgx-telemetry\.service: (\d\.\d) ", overall)
    assert found, said
    assert float(found[1]) <= 1.5, said


def test_it_has_no_privilege(service: Service) -> None:
    pid = service.pid
    status = dict(
        line.split(":\t", 1)
        for line in service.run(f"cat /proc/{pid}/status").splitlines()
        if ":\t" in line
    )
    assert int(status["Uid"].split()[0]) >= 61184  # the first of dynamic users
    assert {status[f"Cap{kind}"].strip("0") for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {""}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


def test_a_client_with_a_public_address_gets_no_answer(service: Service) -> None:
    """Wherever it listens; both addresses are of this machine, so that nothing else is between."""
    good = service.run(f"cat {CONFIGURATION}")
    service.container.write(CONFIGURATION, 'listen = "0.0.0.0:9935"\n')
    service.run("ip address add 203.0.113.5/32 dev lo; ip address add 10.9.9.9/32 dev lo")
    service.change()
    try:
        connect(service, "10.9.9.9")
        with pytest.raises(TimeoutError):
            connect(service, "203.0.113.5")
    finally:
        service.container.write(CONFIGURATION, good + "\n")
        service.run("ip address del 203.0.113.5/32 dev lo; ip address del 10.9.9.9/32 dev lo")
        service.change()


def test_its_status_names_it_and_is_short(service: Service) -> None:
    said = service.run(f"systemctl status --no-pager --lines 0 {UNIT}")
    assert re.search(r"Main PID: \d+ \(dgx-telemetry\)", said), said
    assert "ExecStartPre=/opt/dgx-telemetry/bin/keep-state (code=exited, status=0/SUCCESS)" in said
    assert len(said.splitlines()) <= 12


def test_it_plays_a_simulated_machine_as_the_manual_says(service: Service) -> None:
    (line,) = re.findall(r"`(ExecStart=/opt.*? --simulate .*?)`", MANUAL)
    service.change("ExecStart=", line)
    try:
        eventually(lambda: "DGX H100" in service.fetch("/api/v1/snapshot"), "a DGX that is played")
    finally:
        service.change()


# What the diagnosis sees from within the unit.


def test_processes_of_another_user_and_mounts_of_the_host_are_seen(service: Service) -> None:
    service.run("echo ada:x:4242:4242::/home/ada:/bin/sh >>/etc/passwd")
    service.run("mkdir -p /home/ada && mount -t tmpfs data /home/ada")
    launcher = service.container.start("python3", "-c", LAUNCHER)
    assert launcher.stdout is not None
    try:
        seen = service.sandbox_report("diagnosis", int(launcher.stdout.readline()))
        mounts = len(service.run("cat /proc/1/mounts").splitlines())
        print("seen of another user's processes, from within the unit:", seen)
        assert seen["uid"] not in (0, 4242)
        assert seen["verdict"] == [["starved", "cpu"]]
        assert seen["workers"] == [1.0]
        wants = ("working running", "working queued")  # a core, or its turn on a busy machine
        assert sum(seen["seconds"].get(doing, 0.0) for doing in wants) > 1.5
        assert seen["seconds"]["launching running"] == pytest.approx(0.0, abs=0.3)
        assert {job["user"] for job in seen["jobs"]} == {"ada"}
        assert seen["mounts"] == mounts
    finally:
        launcher.communicate()
        service.run("umount /home/ada; rmdir /home/ada; sed -i /^ada:/d /etc/passwd")


# Devices.


def test_only_nodes_of_the_driver_are_opened_also_those_that_come_later(service: Service) -> None:
    """Without a driver, the kernel answers ENXIO for a node that the unit may open."""
    service.run("mknod -m 666 /dev/other c 196 0; mknod -m 666 /dev/nvidiactl c 195 255")
    service.change(
        *(
            "Type=exec",
            "Restart=no",
            "WatchdogSec=0",
            "StandardOutput=truncate:/run/sandbox-report",
        ),
        "ExecStart=",
        "ExecStart=/opt/dgx-telemetry/bin/python -OO /mnt/tests/service/sandbox_report.py "
        "devices /dev/null /dev/other /dev/nvidiactl /dev/nvidia0",
    )
    service.run("sleep 1; mknod -m 666 /dev/nvidia0 c 195 0")
    opened = service.testimony
    service.run("rm /dev/other /dev/nvidiactl /dev/nvidia0")
    assert opened == {
        "/dev/null": "opened",
        "/dev/other": "EPERM",
        "/dev/nvidiactl": "ENXIO",
        "/dev/nvidia0": "ENXIO",
    }


def test_nodes_are_made_before_the_agent_starts_where_there_is_a_driver(service: Service) -> None:
    devices = "dgx-telemetry-devices.service"
    show = f"systemctl show --property ActiveState,ConditionResult --value {devices}"
    assert service.run(show).split() == ["inactive", "no"]
    for tool in ("nvidia-modprobe", "nvidia-smi"):
        script = f'#!/bin/sh\necho "{tool} $*" >>/run/asked\n'
        service.container.write(f"/usr/bin/{tool}", script)
        service.run(f"chmod 755 /usr/bin/{tool}")
    service.change()
    assert service.run("cat /run/asked") == "nvidia-modprobe -c 0\nnvidia-smi -L"
    assert service.run(show).split() == ["active", "yes"]
    service.change()
    assert len(service.run("cat /run/asked").splitlines()) == 2, "once a boot"
    service.run(f"rm /usr/bin/nvidia-modprobe /usr/bin/nvidia-smi; systemctl stop {devices}")


# It comes back.


def test_killed_it_is_back(service: Service) -> None:
    service.change()
    before, since = service.pid, now()
    service.run(f"kill -9 {before}")
    service.active_again(before)
    events = service.events(since)
    died = next(at for at, message in events if "Main process exited, code=killed" in message)
    begun = next(at for at, message in events if message.startswith("Starting "))
    ready = next(at for at, message in events if message.startswith("Started "))
    print(f"kill -9: started again after {begun - died:.2f} s, ready after {ready - died:.2f} s")
    assert service.fetch("/-/healthy")


def test_a_frozen_event_loop_is_restarted(service: Service) -> None:
    """Only the thread of the loop stands still: the others go on."""
    assert service.show("WatchdogUSec") == "30s", "as shipped"
    service.change(f"WatchdogSec={WATCHDOG}")
    before, since = service.pid, now()
    freezer = service.container.start("python3", "/mnt/tests/service/freeze.py", str(before))
    assert freezer.stdout is not None
    try:
        assert freezer.stdout.readline() == "frozen\n"
        service.active_again(before)
    finally:
        freezer.communicate()
    messages = [message for _, message in service.events(since)]
    assert any(f"Watchdog timeout (limit {WATCHDOG}s)" in message for message in messages)
    assert "in _run_once" in service.journal(), "every thread says where it was"


def test_a_driver_that_hangs_is_not(service: Service) -> None:
    service.change(
        f"WatchdogSec={WATCHDOG}",
        "ExecStart=",
        "ExecStart=/opt/dgx-telemetry/bin/dgx-telemetry run --simulate titan-x-pascal:driver-hang",
    )
    before = service.pid
    eventually(
        lambda: service.metric('dgx_agent_source_up{source="nvml"}') == 0.0,
        "the agent says that NVML hangs",
    )
    service.run(f"sleep {WATCHDOG + 2}")
    assert service.pid == before
    assert service.show("NRestarts") == "0"
    assert service.show("ActiveState") == "active"
    service.change()


# Settings.


def test_a_bad_configuration_is_reported_and_the_old_one_kept(service: Service) -> None:
    good, before = service.run(f"cat {CONFIGURATION}"), service.pid
    successful = "dgx_agent_config_last_reload_successful"
    service.container.write(CONFIGURATION, 'listen = "127.0.0.1:9935"\ntypo = 1\n')
    service.run(f"systemctl reload {UNIT}")
    eventually(lambda: service.metric(successful) == 0.0, "the reload has failed")
    assert "typo" in service.journal()
    service.container.write(CONFIGURATION, good + "\n")
    service.run(f"systemctl reload {UNIT}")
    eventually(lambda: service.metric(successful) == 1.0, "the reload was good")
    assert (service.pid, service.show("ActiveState")) == (before, "active")


def test_secrets_that_only_root_may_read_are_handed_over(service: Service) -> None:
    good = service.run(f"cat {CONFIGURATION}")
    stored = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    service.container.write("/etc/dgx-telemetry/web.yaml", f"basic_auth_users: {{ada: {stored}}}\n")
    service.run("chmod 600 /etc/dgx-telemetry/web.yaml")
    file = f"/run/credentials/{UNIT}/web.yaml"
    service.container.write(CONFIGURATION, f'web_config_file = "{file}"\n')
    service.change("LoadCredential=web.yaml:/etc/dgx-telemetry/web.yaml")
    assert service.fetch("/metrics") == "401"
    assert service.fetch("/metrics", "ada:wrong") == "401"
    assert "dgx_agent_build_info" in service.fetch("/metrics", "ada:secret")
    service.run("rm /etc/dgx-telemetry/web.yaml")
    service.container.write(CONFIGURATION, good + "\n")
    service.change()


MINUTES = float(os.environ.get("DGX_SERVICE_MINUTES", "0.5"))
"""For how long the price of a bad start is measured."""


def cost(service: Service, minutes: float) -> tuple[float, float]:
    """The share of a core, and lines in the journal a minute, that the unit and systemd take."""

    def now_used() -> tuple[float, int]:
        nanoseconds = service.show("CPUUsageNSec")
        lines = service.run(f"journalctl --unit {UNIT} --no-pager --output cat | wc -l")
        return int(nanoseconds) / 1e9 if nanoseconds.isdecimal() else 0.0, int(lines)

    before = now_used()
    service.run(f"sleep {60 * minutes}")
    after = now_used()
    return (after[0] - before[0]) / (60 * minutes), (after[1] - before[1]) / minutes


def test_a_bad_configuration_at_the_start_costs_little_and_ends_nothing(service: Service) -> None:
    good = service.run(f"cat {CONFIGURATION}")
    service.container.write(CONFIGURATION, "typo = 1\n")
    status, said = service.container.status(f"systemctl restart {UNIT}")
    assert status != 0
    assert "failed" in said
    assert "typo" in service.journal("--lines 20")
    core, lines = cost(service, MINUTES)
    print(f"an unknown key: {core:.2%} of a core, {lines:.1f} lines a minute")
    assert core <= 0.06
    assert lines <= 45.0
    eventually(lambda: int(service.show("NRestarts")) >= 2, "further attempts")
    assert service.show("StartLimitIntervalUSec") == "0", "or systemd gives up after some"
    service.container.write(CONFIGURATION, good + "\n")
    service.active_again(0)


def test_a_driver_library_that_crashes_costs_next_to_nothing(service: Service) -> None:
    service.change("Environment=LD_LIBRARY_PATH=/mnt/crashing")
    crashed = 'dgx_agent_absent_values{metric="dgx_system_gpus",reason="crashed"}'
    eventually(lambda: service.metric(crashed) == 1.0, "the reason")
    service.run("sleep 20")  # its start is over
    before = service.pid
    core, lines = cost(service, MINUTES)
    print(f"NVML crashes: {core:.2%} of a core, {lines:.1f} lines a minute")
    assert core <= 0.02
    assert lines <= 2.0
    assert (service.pid, service.show("NRestarts")) == (before, "0")
    service.change()


# The driver is released.


def test_the_driver_is_released_and_taken_again(service: Service) -> None:
    """Also by a process that comes meanwhile; the file belongs to root alone."""
    service.run("touch /run/dgx-telemetry-release-driver")
    released = 'dgx_agent_absent_values{metric="dgx_system_gpus",reason="released"}'
    eventually(lambda: service.metric(released) == 1.0, "released")
    assert "the driver is released by" in service.run("dgx-telemetry check", check=False)
    assert "the driver is released by" in service.show("StatusText")
    service.change()
    eventually(lambda: service.metric(released) == 1.0, "released still")
    service.run("rm /run/dgx-telemetry-release-driver")
    eventually(lambda: service.metric(released) is None, "taken again")


# The package goes.


def test_an_upgrade_restarts_and_says_in_one_sentence_why_its_agent_does_not_start(
    service: Service,
) -> None:
    good, before = service.run(f"cat {CONFIGURATION}"), service.pid
    service.container.write(CONFIGURATION, "typo = 1\n")
    status, said = service.container.status("dpkg -i /mnt/dgx-telemetry.deb")
    assert status != 0
    (line,) = (line for line in said.splitlines() if "did not start" in line)
    assert "typo is not a known key" in line
    assert "(journalctl -u dgx-telemetry); correct it, then run dpkg --configure" in line
    assert "deb-systemd-invoke" not in said
    service.container.write(CONFIGURATION, f"{good}\n# mine\n")
    service.run("dpkg --configure dgx-telemetry")
    assert service.show("ActiveState") == "active"
    assert service.pid != before
    assert service.run(f"tail -1 {CONFIGURATION}") == "# mine"
    status, said = service.container.status("dgx-telemetry uninstall")
    assert (status, said.count("\n")) == (2, 0)
    assert "apt remove dgx-telemetry" in said


def test_removed_it_stops_and_purged_it_leaves_nothing(
    service: Service, untouched: set[str]
) -> None:
    pid = service.pid
    service.run(f"rm -rf {Path(DROP_IN).parent}; dpkg -r dgx-telemetry")
    assert service.container.status(f"test -e /proc/{pid}")[0] != 0
    assert service.show("ActiveState") == "inactive"
    left = lasting(service.container.files() - untouched)
    stays = {file for file in left if not file.startswith(("/etc/systemd/system/", *STATE))}
    assert stays == {CONFIGURATION}
    key, script = "/etc/dgx-telemetry/server.key", "/run/postrm"
    service.container.write(key, "mine\n")
    service.run(f"cp /var/lib/dpkg/info/dgx-telemetry.postrm {script}; dpkg -P dgx-telemetry")
    assert lasting(service.container.files() ^ untouched) == {key}
    service.run(f"rm {key}; {script} purge")
    assert lasting(service.container.files() ^ untouched) == set()
    assert service.container.status("test -e /etc/dgx-telemetry")[0] != 0
