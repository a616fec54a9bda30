"""`deploy/start` and the package's scripts, killed at any command: the next run finishes the work.

Python, pip and apt are stood in for by scripts that work in steps, so that thirty moments take
seconds; `python -m tests.bare.faults` and `tests/service` do the same with the real ones.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.nightly import NIGHTLY
from tests.support.repository import ROOT

REPLACED = ("python3", "prometheus", "promtool", "amtool", "alertmanager", "sudo", "apt-get")
"""Programs of this machine that begin so are hidden."""

STAND_INS = Path(__file__).with_name("stand_ins")
KILLER = (STAND_INS / "killer.sh").read_text()
"""Read by each bash that starts: counts its commands, and at one of them kills all. What runs
beside, to say how far a step is, is not counted."""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all programs of this machine but those that are replaced, and a package."""
    folder = tmp_path_factory.mktemp("stand-ins")
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    for path in Path("/usr/bin").iterdir():
        if not path.name.startswith(REPLACED):
            (bin_folder / path.name).symlink_to(path)
    write(bin_folder / "python3", (STAND_INS / "python3.sh").read_text())
    write(bin_folder / "apt-get", (STAND_INS / "apt-get.sh").read_text())
    for name in ("prometheus", "prometheus-alertmanager", "promtool", "amtool"):
        write(folder / "package/usr/bin" / name, f"#!/bin/sh\necho {name}\n")
    (folder / "package/usr/share/prometheus").mkdir(parents=True)
    control = "Package: prometheus\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.c>\n"
    write(folder / "package/DEBIAN/control", f"{control}Description: none\n")
    command = ["dpkg-deb", "--build", str(folder / "package"), str(folder / "prometheus.deb")]
    subprocess.run(command, check=True, capture_output=True)
    write(folder / "killer", KILLER)
    return folder


class Clone:
    """Clone, as far as `deploy/start` needs it."""

    def __init__(self, folder: Path, stand_ins: Path) -> None:
        self.folder = folder
        self.stand_ins = stand_ins
        self.count = folder.with_name(f"{folder.name}.count")
        shutil.copytree(ROOT / "deploy", folder / "deploy")
        (folder / "agent").mkdir()
        for name in ("pyproject.toml", "agent/__init__.py"):
            shutil.copy(ROOT / name, folder / name)

    def start(self, killed_at: int = -1) -> tuple[str, int]:
        """Return the output, and the number of commands that it had run."""
        self.count.write_text("0\n")
        done = subprocess.run(
            ["deploy/start"],
            cwd=self.folder,
            env={
                "PATH": f"{self.stand_ins}/bin",
                "HOME": str(self.folder),
                "BASH_ENV": str(self.stand_ins / "killer"),
                "COUNT": str(self.count),
                "KILLED_AT": str(killed_at),
                "PACKAGE": str(self.stand_ins / "prometheus.deb"),
            },
            start_new_session=True,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return done.stdout + done.stderr, int(self.count.read_text())

    def files(self) -> set[str]:
        """Everything that was made, but for the log, which a run without a step leaves out."""
        made = self.folder / ".venv"
        return {str(path.relative_to(made)) for path in made.rglob("*")} - {"log", "log.before"}


@pytest.mark.needs("dpkg-deb")
@pytest.mark.parametrize("moments", [5, pytest.param(30, marks=NIGHTLY)])
def test_what_was_killed_is_finished_by_the_next_run(
    moments: int, stand_ins: Path, tmp_path: Path
) -> None:
    whole = Clone(tmp_path / "whole", stand_ins)
    said, commands = whole.start()
    assert "up: prometheus\n" in said
    for moment in range(1, moments + 1):
        clone = Clone(tmp_path / str(moment), stand_ins)
        said, _ = clone.start(commands * moment // (moments + 1))
        assert "up: " not in said
        said, _ = clone.start()
        assert "up: prometheus\n" in said, (moment, said)
        assert clone.files() == whole.files()


def test_a_repository_that_was_moved_sets_itself_up_again(stand_ins: Path, tmp_path: Path) -> None:
    clone = Clone(tmp_path / "here", stand_ins)
    clone.start()
    assert "up: prometheus\n" in clone.start()[0]
    clone.folder = clone.folder.rename(tmp_path / "there")
    said, _ = clone.start()
    assert "a virtual environment" in said
    assert "up: prometheus\n" in said
    assert "a virtual environment" not in clone.start()[0]


INSTALLED, REMOVED = ("preinst install", "postinst configure"), ("prerm remove", "postrm remove")


class Packaged:
    """A machine below a folder, and the package's scripts as they would be on it."""

    def __init__(self, root: Path, stand_ins: Path) -> None:
        self.root = root
        self.count = root.with_name(f"{root.name}.count")
        self.killer = stand_ins / "killer"
        for name in ("preinst", "postinst", "prerm", "postrm"):
            self.write_script(name, f"debian/{name}")
        self.write_script("usr/lib/dgx-telemetry/make-environment", "make-environment")
        write(root / "usr/bin/python3.13", (STAND_INS / "packaged-python.sh").read_text())
        for name in ("dgx-telemetry-kernel-log.conf", "config.toml", "keep-state"):
            write(root / "usr/lib/dgx-telemetry" / name, "")
        for name in ("systemctl", "deb-systemd-helper", "deb-systemd-invoke"):
            write(root / "bin" / name, "#!/bin/sh\n")
        folders = "run/systemd/system", "etc/systemd/system", "opt", "usr/lib/dgx-telemetry/wheels"
        for folder in folders:
            (root / folder).mkdir(parents=True)
        self.before = self.files()

    def write_script(self, to: str, name: str) -> None:
        text = (
            (ROOT / "deploy" / name)
            .read_text()
            .replace("/usr/lib/dgx-telemetry/make", "bash /usr/lib/dgx-telemetry/make")
        )
        write(self.root / to, re.sub(r"(?<![\w.}])/(?=(opt|usr|etc|run)/)", f"{self.root}/", text))

    def run(self, steps: tuple[str, ...], killed_at: int = -1) -> tuple[bool, int]:
        """Run them one after the other as dpkg does, which ends at one that fails: whether all
        have, and how many commands that took."""
        self.count.write_text("0\n")
        environment = {"PATH": f"{self.root}/bin:/usr/bin:/bin", "COUNT": str(self.count)}
        environment |= {"BASH_ENV": str(self.killer), "KILLED_AT": str(killed_at)}
        done = subprocess.run(
            ["bash", "-c", " && ".join(f"bash {self.root}/{step}" for step in steps)],
            env=environment,
            start_new_session=True,
            capture_output=True,
            check=False,
            timeout=60,
        )
        return done.returncode == 0, int(self.count.read_text())

    def files(self) -> set[str]:
        """Everything that is there."""
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*")}


@pytest.mark.parametrize("moments", [5, pytest.param(30, marks=NIGHTLY)])
def test_a_package_s_script_that_was_killed_is_finished_by_the_next_run(
    moments: int, stand_ins: Path, tmp_path: Path
) -> None:
    whole = Packaged(tmp_path / "whole", stand_ins)
    done, put = whole.run(INSTALLED)
    assert done
    assert {"opt/dgx-telemetry/lib/package", "opt/dgx-telemetry/lib/bytecode"} <= whole.files()
    files = whole.files()
    done, gone = whole.run(REMOVED)
    assert done
    for moment in range(1, moments + 1):
        machine = Packaged(tmp_path / str(moment), stand_ins)
        assert not machine.run(INSTALLED, put * moment // (moments + 1))[0]
        assert machine.run(INSTALLED)[0]
        assert machine.files() == files
        assert not machine.run(REMOVED, gone * moment // (moments + 1))[0]
        assert machine.run(REMOVED)[0]
        left = machine.files() - machine.before
        assert left == {"etc/dgx-telemetry", "etc/dgx-telemetry/config.toml"}, moment
