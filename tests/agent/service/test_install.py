"""The commands of `install` and `uninstall`; tests/service runs them on a machine with systemd."""

import os
import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from agent.cli import install
from agent.config.configuration import ConfigError
from agent.errors import BadInput
from agent.service.program import FILES, KERNEL_LOG, UNITS, copy_to, distributions, shipped
from tests.stack.running import run_to_end
from tests.support.repository import ROOT


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of the root of the machine."""
    places = (
        "HOME",
        "MARK",
        "PROGRAM",
        "COMMAND",
        "CONFIGURATION",
        "UNIT_FOLDER",
        "DROP_INS",
        "STATE",
    )
    for name in (*places, "PACKAGED", "BOOTED"):
        monkeypatch.setattr(install, name, tmp_path / str(getattr(install, name)).lstrip("/"))
    install.UNIT_FOLDER.mkdir(parents=True)
    return tmp_path


def installed() -> None:
    """Leave what `install` leaves."""
    for path in (install.MARK, install.CONFIGURATION / "config.toml"):
        path.parent.mkdir(parents=True)
        path.touch()
    install.COMMAND.parent.mkdir(parents=True)
    install.COMMAND.symlink_to(install.PROGRAM)
    for name in UNITS:
        (install.UNIT_FOLDER / name).touch()


def test_a_dry_run_needs_no_systemd_and_changes_nothing(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(machine.rglob("*"))
    assert install.run(Namespace(command="install", dry_run=True)) == 0
    planned = capsys.readouterr().out
    assert sorted(machine.rglob("*")) == before
    assert [line.split()[0] for line in planned.splitlines()] == [
        "sh",
        "ln",
        "install",
        *["systemctl"] * 3,
    ]
    assert planned.endswith("systemctl restart dgx-telemetry.service\n")


def test_a_command_of_somebody_else_s_stays() -> None:
    installed()
    install.COMMAND.unlink()
    install.COMMAND.write_text("mine")
    for commands in (install.installing(), install.uninstalling(purge=True)):
        assert install.COMMAND not in {word for command in commands for word in command}


def test_a_folder_of_somebody_else_s_is_not_replaced() -> None:
    install.HOME.mkdir(parents=True)
    with pytest.raises(BadInput, match="was not made by this command: move it away"):
        list(install.installing())
    assert not list(install.uninstalling(purge=True))


def test_of_a_package_only_enabling_and_starting_is_left() -> None:
    install.PACKAGED.parent.mkdir(parents=True)
    install.PACKAGED.touch()
    assert [command[1] for command in install.installing()] == ["enable", "restart"]


def test_uninstall_leaves_settings_and_purge_leaves_files_of_others(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Keys, passwords, and the drop-in of `systemctl edit`, in whatever folder."""
    installed()
    (machine / "systemctl").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", f"{machine}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "umask", lambda _: 0)
    install.BOOTED.mkdir(parents=True)
    settings, state = (
        install.CONFIGURATION / "config.toml",
        machine / "var/lib/dgx-telemetry/hour-1.json",
    )
    kernel_log, edited = (install.DROP_INS / f"{n}.conf" for n in ("10-kernel-log", "override"))
    key = install.CONFIGURATION / "tls/server.key"
    for file in (state, kernel_log, edited, key):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()

    def left(*, purge: bool) -> set[Path]:
        assert install.run(Namespace(command="uninstall", purge=purge)) == 0
        return {path for path in machine.rglob("*") if path.is_file()} - {machine / "systemctl"}

    kept = "\nkept, not of this program: "
    assert left(purge=False) == {settings, state, edited, key}
    said = capfd.readouterr().out
    assert said.endswith(f"{settings.parent} stays: --purge removes its config.toml too\n")
    assert f"{kept}{edited}\n" in said
    assert left(purge=True) == {edited, key}
    said = capfd.readouterr().out
    assert f"{kept}{key}\n" in said
    assert f"{kept[1:]}{edited}\n" in said
    settings.touch()
    for file in (edited, key):
        file.unlink()
    key.parent.rmdir()
    assert left(purge=True) == set()
    assert not settings.parent.exists()


def test_the_words_of_a_command_that_fails_are_one_sentence() -> None:
    with pytest.raises(BadInput, match=r"^sh -c 'echo a >&2; echo b >&2; exit 3' failed: a b$"):
        install.carry_out([("sh", "-c", "echo a >&2; echo b >&2; exit 3")])


def test_wrong_settings_are_named_before_anything_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    installed()
    (install.CONFIGURATION / "config.toml").write_text("[job]\ninfo = 3\n")
    install.BOOTED.mkdir(parents=True)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(ConfigError, match=r"job\.info"):
        install.run(Namespace(command="install", dry_run=False))


def test_the_program_is_whole(tmp_path: Path) -> None:
    """Our packages, the files that they read, and every distribution that they need."""
    folder = tmp_path / "packages"
    copy_to(folder)
    wanted = {
        *("agent/__main__.py", "agent/specs/dgx-h100.toml", "alerts/build.py"),
        "agent/faults/pages/DgxGpuHot.md",
        "agent/faults/subjects/gpus.toml",
        *("aiohttp/__init__.py", "psutil/__init__.py", "pynvml.py", "yaml/__init__.py"),
        *(f"agent/service/deploy/{name}" for name in FILES),
    }
    assert [name for name in wanted if not (folder / name).is_file()] == []
    assert [*folder.rglob("__pycache__")] == []
    assert {"dgx-telemetry", "aiohttp", "multidict", "msgspec"} <= distributions().keys()
    assert "pytest" not in distributions()
    command = [sys.executable, "-I", "-S", "-B", "-c"]
    script = f"import sys; sys.path.insert(0, {str(folder)!r})\n"
    script += "import agent.cli.run as it; print(it.__file__)"
    said = subprocess.run([*command, script], capture_output=True, text=True, check=True)
    assert said.stdout.startswith(str(folder))


def test_what_a_reload_starts_comes_with_the_package() -> None:
    unit = shipped("dgx-telemetry.service").read_text()
    assert "ExecReload=/bin/kill -HUP $MAINPID\n" in unit
    control = (ROOT / "deploy/debian/control").read_text()
    depends = re.search("^Depends: (.*)$", control, re.MULTILINE)
    assert depends
    assert "procps" in depends[1].split(", ")


@pytest.mark.parametrize("line", ["install", "uninstall", "uninstall --purge"])
def test_without_systemd_it_is_refused(line: str) -> None:
    if Path("/run/systemd/system").is_dir():
        pytest.skip("systemd runs this machine")
    command = [sys.executable, "-W", "error", "-m", "agent", *line.split()]
    ended = run_to_end(command)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert f"{line.split(maxsplit=1)[0]} needs systemd" in ended.stderr


UNIT = shipped("dgx-telemetry.service").read_text()
DROP_IN = shipped(KERNEL_LOG).read_text()


def test_it_gives_one_descriptor_and_no_privilege() -> None:
    settings = dict(re.findall(r"^(\w+)=(.*)$", DROP_IN, re.MULTILINE))
    assert settings == {"StandardInput": "file:/dev/kmsg", "DeviceAllow": "/dev/kmsg r"}
    assert "ProtectKernelLogs=yes" in UNIT
    assert re.search(r"^CapabilityBoundingSet=$", UNIT, re.MULTILINE)
    families = re.search("^RestrictAddressFamilies=(.*)$", UNIT, re.MULTILINE)
    assert families
    assert "AF_NETLINK" in families[1].split()  # sockets of jobs


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
