"""Installing the service below a folder, with a systemctl that only keeps count."""

import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from agent.cli.install import NO_SYSTEMD, InstallPaths, carry_out, installing, uninstalling
from agent.cli.install import run as install_command
from agent.errors import BadInput
from agent.service import environment
from agent.service.environment import needed, running_program
from tests.stack.running import run_to_end
from tests.support.patience import PATIENCE
from tests.support.repository import ROOT

HELLO = {"agent/__init__.py": "", "agent/__main__.py": "def main() -> int:\n    print('hello')\n"}
SERVICE = "etc/systemd/system/dgx-telemetry.service"


class Machine:
    """A file system that begins at a folder, on which a small program is installed."""

    def __init__(self, root: Path) -> None:
        self.paths = InstallPaths(root)
        self.files: dict[str, Path | str] = {**HELLO}
        self.asked: list[str] = []

    def systemctl(self, *words: str) -> str:
        if words[0] != "show":
            self.asked.append(words[0])
        return "failed\n"

    def install(self, *, dry: bool = False) -> None:
        carry_out(installing(self.paths, self.systemctl, lambda: self.files), dry=dry)

    def uninstall(self, *, purge: bool) -> int:
        return carry_out(uninstalling(self.paths, self.systemctl, purge=purge))

    def listed(self) -> list[str]:
        """The files that matter."""
        kept = (path for path in self.paths.root.rglob("*") if not path.is_dir())
        names = [path.relative_to(self.paths.root).as_posix() for path in kept]
        return sorted(name for name in names if not name.startswith("opt/"))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_dry_run_says_what_the_real_one_does_and_changes_nothing(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.install(dry=True)
    planned = capsys.readouterr().out
    assert (machine.listed(), machine.asked) == ([], [])
    machine.install()
    assert capsys.readouterr().out == planned
    assert [line.split()[0] for line in planned.splitlines()] == [
        *("copy", "link", "write", "write", "write", "write"),
        *("have", "enable", "start"),
    ]
    assert machine.asked == ["daemon-reload", "enable", "restart"]
    assert machine.listed() == [
        "etc/dgx-telemetry/config.toml",
        "etc/systemd/system/dgx-telemetry-devices.service",
        "etc/systemd/system/dgx-telemetry-smart.service",
        SERVICE,
        "usr/local/bin/dgx-telemetry",
    ]


def test_what_was_installed_runs(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", None)  # of who runs the tests
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    machine.install()
    command = [machine.paths.home / "bin/dgx-telemetry"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert said.stdout == "hello\n"
    compiled = list(machine.paths.home.rglob("agent/__pycache__/__main__.*.pyc"))
    assert sorted(path.suffixes for path in compiled) == [
        [f".{sys.implementation.cache_tag}", ".opt-2", ".pyc"],
        [f".{sys.implementation.cache_tag}", ".pyc"],
    ]


def test_run_again_it_replaces_program_and_units_and_keeps_settings(machine: Machine) -> None:
    machine.install()
    settings = machine.paths.configuration / "config.toml"
    settings.write_text('listen = ":9935"\n')
    unit = machine.paths.root / SERVICE
    unit.write_text("[Service]\n")
    home = machine.paths.home
    home.rename(home.with_name(f"{home.name}.old"))  # as a run that was killed
    machine.files["agent/new.py"] = ""
    machine.install()
    assert settings.read_text() == 'listen = ":9935"\n'
    assert unit.read_text() == environment.shipped("dgx-telemetry.service")
    assert [*home.rglob("new.py")]
    assert [path.name for path in home.parent.iterdir()] == [home.name]


def test_a_dry_run_needs_no_systemd(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("agent.cli.install.InstallPaths", lambda: machine.paths)
    monkeypatch.setattr(environment, "HIDDEN_FOLDERS", ())
    assert install_command(Namespace(command="install", dry_run=True)) == 0
    *steps, last = capsys.readouterr().out.splitlines()
    assert steps[-1] == "start dgx-telemetry.service"
    assert last == NO_SYSTEMD
    assert machine.listed() == []


def test_uninstall_leaves_settings_and_purge_leaves_nothing(machine: Machine) -> None:
    machine.install()
    drop_in = machine.paths.root / f"{SERVICE}.d/override.conf"
    drop_in.parent.mkdir()
    drop_in.write_text("[Service]\n")
    machine.asked.clear()
    assert machine.uninstall(purge=False)
    assert machine.asked == ["stop", *["reset-failed"] * 3, "disable", "daemon-reload"]
    assert not machine.paths.home.exists()
    assert machine.listed() == ["etc/dgx-telemetry/config.toml", f"{SERVICE}.d/override.conf"]
    assert machine.uninstall(purge=True)
    assert machine.listed() == []
    assert machine.uninstall(purge=True) == 0


def test_where_a_package_brought_the_unit_only_enabling_and_starting_is_left(
    machine: Machine,
) -> None:
    unit = machine.paths.root / "usr/lib/systemd/system/dgx-telemetry.service"
    unit.parent.mkdir(parents=True)
    unit.touch()
    machine.install()
    assert machine.asked == ["enable", "restart"]
    assert machine.listed() == ["usr/lib/systemd/system/dgx-telemetry.service"]


def test_a_folder_and_a_command_of_somebody_else_s_are_not_replaced(machine: Machine) -> None:
    command = machine.paths.command
    command.parent.mkdir(parents=True)
    command.write_text("mine")
    machine.install()
    assert command.read_text() == "mine"
    (machine.paths.home / environment.MARK).unlink()
    with pytest.raises(BadInput, match="was not made by this command: move it away"):
        machine.install()


def test_what_cannot_be_written_is_one_sentence(machine: Machine) -> None:
    (machine.paths.root / "etc").touch()
    with pytest.raises(BadInput, match=r"^/.*/config.toml: cannot be written: Not a directory$"):
        machine.install()


def test_the_program_is_whole() -> None:
    """Our packages, the files that they read, and every distribution that they need."""
    files = running_program()
    wanted = {
        *("agent/__main__.py", "agent/specs/dgx-h100.toml", "alerts/build.py"),
        "agent/faults/pages/DgxGpuHot.md",
        "agent/faults/subjects/gpus.toml",
        *("aiohttp/__init__.py", "psutil/__init__.py", "pynvml.py", "yaml/__init__.py"),
        *(f"agent/service/deploy/{name}" for name in environment.NAMES),
    }
    assert wanted <= files.keys()
    assert [name for name in files if "__pycache__" in name or ".." in name] == []
    assert [name for name in files if name.endswith("direct_url.json")] == []
    assert {"dgx-telemetry", "aiohttp", "multidict", "msgspec"} <= needed("dgx-telemetry")
    assert "pytest" not in needed("dgx-telemetry")


def test_what_a_reload_starts_comes_with_the_package() -> None:
    assert "ExecReload=/bin/kill -HUP $MAINPID\n" in environment.shipped("dgx-telemetry.service")
    depends = re.search(
        "^Depends: (.*)$", (ROOT / "deploy/debian/control").read_text(), re.MULTILINE
    )
    assert depends
    assert "procps" in depends[1].split(", ")


def test_a_python_that_a_service_may_not_see_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "base_prefix", "/home/ada/python")
    with pytest.raises(BadInput, match=r"a service cannot run /home/ada/python/bin/python3\.\d+"):
        environment.check_python()


@pytest.mark.parametrize("line", ["install", "uninstall", "uninstall --purge"])
def test_without_systemd_it_is_refused(line: str) -> None:
    if InstallPaths().booted:
        pytest.skip("systemd runs this machine")
    command = [sys.executable, "-W", "error", "-m", "agent", *line.split()]
    ended = run_to_end(command)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert f"{line.split(maxsplit=1)[0]} needs systemd" in ended.stderr
