"""Installing the service below a folder, with a systemctl that only keeps count."""

import os
import re
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from agent.cli.install import NO_SYSTEMD, NOTHING, install, uninstall
from agent.cli.install import run as install_command
from agent.errors import BadInput
from agent.service import environment
from agent.service.environment import OwnEnvironment, ProgramFiles, needed, running_program
from agent.service.plan import InstallPart, InstallPaths, linked, parts
from tests.stack.running import run_to_end
from tests.support.nightly import NIGHTLY
from tests.support.patience import PATIENCE
from tests.support.repository import ROOT

HELLO = {"agent/__init__.py": "", "agent/__main__.py": "def main() -> int:\n    print('hello')\n"}
Tracer = Callable[[FrameType, str, Any], Any]
SERVICE = "etc/systemd/system/dgx-telemetry.service"


class FakeSystemd:
    """Stand-in for systemctl's view of the service."""

    def __init__(self) -> None:
        self.state = {"UnitFileState": "disabled", "ActiveState": "inactive"}
        self.asked: list[str] = []

    def __call__(self, *words: str) -> str:
        verb, unit = words[0], words[-1]
        if verb == "show":
            mine = unit == "dgx-telemetry.service"
            return self.state[words[2]] + "\n" if mine else "inactive\n"
        self.asked.append(verb)
        for verbs, key, value in (
            ({"enable"}, "UnitFileState", "enabled"),
            ({"disable"}, "UnitFileState", "disabled"),
            ({"restart"}, "ActiveState", "active"),
            ({"stop"}, "ActiveState", "inactive"),
        ):
            if verb in verbs:
                self.state[key] = value
        return ""


class Machine:
    """A file system that begins at a folder, on which a small program is installed."""

    def __init__(self, root: Path) -> None:
        self.places = InstallPaths(root)
        self.systemd = FakeSystemd()
        self.files: dict[str, Path | str] = {**HELLO}

    @property
    def parts(self) -> list[InstallPart]:
        own = OwnEnvironment(
            self.places.home, lambda: ProgramFiles("1.0", self.files), lambda: Path(sys.executable)
        )
        return parts(self.places, self.systemd, own)

    def listed(self) -> list[str]:
        """The files that matter."""
        kept = (path for path in self.places.root.rglob("*") if not path.is_dir())
        names = [path.relative_to(self.places.root).as_posix() for path in kept]
        return sorted(name for name in names if not name.startswith("opt/"))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_dry_run_says_what_the_real_one_does_and_changes_nothing(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    install(machine.parts, dry=True)
    planned = capsys.readouterr().out.splitlines()
    assert (machine.listed(), machine.systemd.asked) == ([], [])
    assert not machine.places.home.exists()
    install(machine.parts, dry=False)
    *done, last = capsys.readouterr().out.splitlines()
    assert done == planned
    assert [line.split()[0] for line in done] == [
        *("make", "link", "write", "write", "write", "write"),
        *("enable", "start"),
    ]
    assert "is active" in last
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
    install(machine.parts, dry=False)
    command = [machine.places.home / "bin/dgx-telemetry"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert said.stdout == "hello\n"
    compiled = list(machine.places.home.rglob("agent/__pycache__/__main__.*.pyc"))
    assert sorted(path.suffixes for path in compiled) == [
        [f".{sys.implementation.cache_tag}", ".opt-2", ".pyc"],
        [f".{sys.implementation.cache_tag}", ".pyc"],
    ]


def test_run_twice_it_changes_nothing(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    install(machine.parts, dry=False)
    asked = [*machine.systemd.asked]
    capsys.readouterr()
    install(machine.parts, dry=False)
    assert capsys.readouterr().out.splitlines() == [NOTHING]
    assert machine.systemd.asked == asked


def test_a_new_program_replaces_the_old_one_and_is_started(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    install(machine.parts, dry=False)
    machine.files["agent/__main__.py"] = "def main():\n    print('hello again')\n"
    capsys.readouterr()
    install(machine.parts, dry=False)
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said[:-1]] == ["replace", "restart"]
    left = [path.name for path in machine.places.home.parent.iterdir()]
    assert left == [machine.places.home.name]


def test_a_changed_unit_is_mended_and_settings_are_left_alone(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    install(machine.parts, dry=False)
    settings = machine.places.configuration / "config.toml"
    settings.write_text('listen = ":9935"\n')
    (machine.places.root / SERVICE).write_text("[Service]\n")
    capsys.readouterr()
    install(machine.parts, dry=False)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[:-1]] == [
        "write",
        "restart",
    ]
    assert settings.read_text() == 'listen = ":9935"\n'


def test_a_stopped_or_disabled_service_is_started_and_enabled_again(machine: Machine) -> None:
    install(machine.parts, dry=False)
    machine.systemd.state = {"UnitFileState": "disabled", "ActiveState": "failed"}
    machine.systemd.asked.clear()
    install(machine.parts, dry=False)
    assert machine.systemd.asked == ["enable", "restart"]


def test_a_program_that_lost_its_libraries_is_replaced(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    install(machine.parts, dry=False)
    next(machine.places.home.rglob("agent/__main__.py")).unlink()
    capsys.readouterr()
    install(machine.parts, dry=False)
    said = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert said == ["replace", "restart", "dgx-telemetry.service"]


def test_a_dry_run_needs_no_systemd(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("agent.cli.install.InstallPaths", lambda: machine.places)
    assert install_command(Namespace(command="install", dry_run=True)) == 0
    *steps, last = capsys.readouterr().out.splitlines()
    assert steps[-1] == "start dgx-telemetry.service"
    assert last == NO_SYSTEMD
    assert machine.listed() == []


def lines_of(work: Callable[[], object], last: int | None = None) -> int:
    """Lines of Python that it runs; a process that runs the last of them is gone at once."""
    count = 0

    def note(_frame: FrameType, event: str, _arg: object) -> Tracer:
        nonlocal count
        count += event == "line"
        if count == last:
            os._exit(9)
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def killed(work: Callable[[], object], last: int) -> bool:
    """Run it in a process that is killed at this line; False where it ended before."""
    child = os.fork()
    if not child:
        try:
            lines_of(work, last)
        finally:  # whatever was raised: a second copy of the test run must not go on
            os._exit(0)
    return os.waitpid(child, 0)[1] != 0


@pytest.mark.parametrize("moments", [20, pytest.param(200, marks=NIGHTLY)])
def test_what_was_killed_is_finished_by_the_next_run(moments: int, tmp_path: Path) -> None:
    whole = Machine(tmp_path / "whole")
    lines = lines_of(lambda: install(whole.parts, dry=False))
    files = below(whole)
    gone = lines_of(lambda: uninstall(whole.parts, purge=True))
    bare = below(whole)
    kills = 0
    for moment in range(1, moments + 1):
        machine = Machine(tmp_path / str(moment))
        put, remove = partial(install, machine.parts, dry=False), partial(uninstall, machine.parts)
        kills += killed(put, lines * moment // (moments + 1))
        put()
        assert below(machine) == files
        kills += killed(partial(remove, purge=True), gone * moment // (moments + 1))
        remove(purge=True)
        assert below(machine) == bare
    assert kills > moments


def below(machine: Machine) -> list[str]:
    """Every file and folder of the machine."""
    root = machine.places.root
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_uninstall_leaves_settings_and_purge_leaves_nothing(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    install(machine.parts, dry=False)
    drop_in = machine.places.units / "dgx-telemetry.service.d/override.conf"
    drop_in.parent.mkdir()
    drop_in.write_text("[Service]\n")
    capsys.readouterr()
    uninstall(machine.parts, purge=False)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        *("stop", "disable", "remove", "remove", "remove", "remove", "remove")
    ]
    assert machine.systemd.asked[-5:] == ["stop", "disable", *["daemon-reload"] * 3]
    assert not machine.places.home.exists()
    assert machine.listed() == [
        "etc/dgx-telemetry/config.toml",
        "etc/systemd/system/dgx-telemetry.service.d/override.conf",
    ]
    uninstall(machine.parts, purge=True)
    assert machine.listed() == []
    capsys.readouterr()
    uninstall(machine.parts, purge=True)
    assert "nothing to do" in capsys.readouterr().out


def test_where_a_package_brought_the_unit_only_enabling_and_starting_is_left(
    machine: Machine,
) -> None:
    unit = machine.places.root / "usr/lib/systemd/system/dgx-telemetry.service"
    unit.parent.mkdir(parents=True)
    unit.touch()
    install(machine.parts, dry=False)
    assert machine.systemd.asked == ["enable", "restart"]
    assert not machine.places.units.exists()


def test_a_folder_of_somebody_else_s_is_not_replaced(machine: Machine) -> None:
    machine.places.home.mkdir(parents=True)
    with pytest.raises(BadInput, match="was not made by this command: move it away"):
        install(machine.parts, dry=False)
    assert machine.listed() == []


def test_what_cannot_be_written_is_one_sentence(machine: Machine) -> None:
    (machine.places.root / "etc").touch()
    with pytest.raises(
        BadInput, match=r"^cannot write .*/config.toml, every setting as a comment:"
    ):
        install(machine.parts, dry=False)


def test_a_command_of_somebody_else_s_stays(tmp_path: Path) -> None:
    path, other = tmp_path / "bin/dgx-telemetry", tmp_path / "other"
    path.parent.mkdir()
    other.touch()
    path.symlink_to(other)
    link = linked(path, tmp_path / "mine")
    assert (link.right(), link.there()) == (True, False)
    other.unlink()  # a link to nothing helps no one
    assert not link.right()
    link.put()
    assert path.readlink() == tmp_path / "mine"


def test_the_program_is_whole() -> None:
    """Our packages, the files that they read, and every distribution that they need."""
    files = running_program().files
    wanted = {
        *("agent/__main__.py", "agent/specs/dgx-h100.toml", "alerts/build.py"),
        "agent/faults/pages/DgxGpuHot.md",
        *("aiohttp/__init__.py", "psutil/__init__.py", "pynvml.py", "yaml/__init__.py"),
        *(f"agent/service/deploy/{name}" for name in environment.NAMES),
    }
    assert wanted <= files.keys()
    assert [name for name in files if "__pycache__" in name or ".." in name] == []
    assert [name for name in files if name.endswith("direct_url.json")] == []
    assert running_program().digest() == running_program().digest()
    assert {"dgx-telemetry", "aiohttp", "multidict", "prometheus-client"} <= needed("dgx-telemetry")
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
        environment.interpreter()


@pytest.mark.parametrize("line", ["install", "uninstall", "uninstall --purge"])
def test_without_systemd_it_is_refused(line: str) -> None:
    if InstallPaths().booted:
        pytest.skip("systemd runs this machine")
    command = [sys.executable, "-W", "error", "-m", "agent", *line.split()]
    ended = run_to_end(command)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert f"{line.split(maxsplit=1)[0]} needs systemd" in ended.stderr
