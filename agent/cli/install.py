"""`dgx-telemetry install` and `uninstall`: the agent as a systemd service."""

import argparse
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agent import __version__
from agent.config.atomic_file import atomic_write
from agent.diagnosis.hours import STATE
from agent.errors import BadInput
from agent.service import environment
from agent.service.environment import COMMAND, KERNEL_LOG, MARK, shipped

SYSTEMCTL_SECONDS = 120.0
"""Seconds that systemctl may take: the start waits until every read has run once."""

HOME = Path("/opt/dgx-telemetry")
"""The virtual environment that the units name, and that `install` makes."""

SERVICE = "dgx-telemetry.service"
UNITS = ("dgx-telemetry-devices.service", "dgx-telemetry-smart.service", SERVICE)

Step = tuple[str, Callable[[], object]]
"""A sentence, and the function that carries it out: it raises OSError or BadInput."""

Systemctl = Callable[..., str]
"""Runs systemctl with these words and returns its output; raises BadInput if it fails."""


def systemctl(*words: str) -> str:
    """Run systemctl and return its output; raises BadInput with its last words."""
    try:
        ended = subprocess.run(  # noqa: S603 (words of ours)
            [shutil.which("systemctl") or "systemctl", *words],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SYSTEMCTL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadInput(f"systemctl {words[0]} did not answer: {error}") from error
    if ended.returncode:
        why = " ".join(ended.stderr.split()) or f"exit status {ended.returncode}"
        raise BadInput(f"systemctl {' '.join(words)} failed: {why}")
    return ended.stdout


@dataclass(frozen=True, slots=True)
class InstallPaths:
    """Paths on the machine whose file system begins at `root`."""

    root: Path = Path("/")

    def at(self, path: str | Path) -> Path:
        return self.root / str(path).lstrip("/")

    @property
    def home(self) -> Path:
        return self.at(HOME)

    @property
    def command(self) -> Path:
        return self.at("/usr/local/bin/dgx-telemetry")

    @property
    def configuration(self) -> Path:
        return self.at("/etc/dgx-telemetry")

    @property
    def units(self) -> dict[Path, str]:
        """The units by their paths, with their text; the drop-in with the kernel's log if there is
        one."""
        folder = self.at("/etc/systemd/system")
        units = {folder / name: shipped(name) for name in UNITS}
        if self.at("/dev/kmsg").is_char_device():
            units[folder / f"{SERVICE}.d/10-kernel-log.conf"] = shipped(KERNEL_LOG)
        return units

    @property
    def packaged(self) -> bool:
        """True if a package of the distribution brought the unit."""
        folders = ("/usr/lib/systemd/system", "/lib/systemd/system")
        return any(self.at(f"{folder}/{SERVICE}").exists() for folder in folders)

    @property
    def booted(self) -> bool:
        """True if systemd runs this machine (the test of sd_booted(3))."""
        return self.at("/run/systemd/system").is_dir()


NO_SYSTEMD = "this machine was not started by systemd: without --dry-run, install would refuse"
DONE = "dgx-telemetry.service is active; its log: journalctl -u dgx-telemetry"
NOTHING = "nothing to do: dgx-telemetry.service is not installed"


def run(arguments: argparse.Namespace) -> int:
    """Install or remove the service, and report each step."""
    paths, command = InstallPaths(), arguments.command
    dry = command == "install" and arguments.dry_run
    if not dry and not paths.booted:
        raise BadInput(f"{command} needs systemd, and this machine was not started by it")
    if not dry and os.geteuid() != 0:
        raise BadInput(f"{command} needs root: sudo, or --dry-run to see what it would do")
    os.umask(0o022)  # the service is another user, and reads the files that root writes here
    if command == "install":
        if not paths.packaged:
            environment.check_python()
        carry_out(installing(paths, systemctl), dry=dry)
        if not dry:
            print(DONE)
        elif not paths.booted:
            print(NO_SYSTEMD)
        return 0
    if paths.packaged:
        verb = "purge" if arguments.purge else "remove"
        raise BadInput(f"dgx-telemetry came as a package: apt {verb} dgx-telemetry")
    if not carry_out(uninstalling(paths, systemctl, purge=arguments.purge)):
        print(NOTHING)
    if not arguments.purge and paths.configuration.exists():
        print(f"{paths.configuration} stays: --purge removes it too")
    return 0


def installing(
    paths: InstallPaths,
    systemctl: Systemctl,
    program: Callable[[], Mapping[str, environment.Content]] = environment.running_program,
) -> Iterator[Step]:
    """Copy the program, write the units, enable and start; a package has done all steps but the
    last two. A repeated run replaces program and units, and keeps the settings."""
    if not paths.packaged:
        home, command = paths.home, paths.command
        what = f"dgx-telemetry {__version__} for Python {environment.VERSION}"
        yield f"copy {what} into {home}", lambda: environment.put(home, program())
        if command.is_symlink() or not command.exists():
            yield f"link {command} to {home / COMMAND}", lambda: _link(command, home / COMMAND)
        settings = paths.configuration / "config.toml"
        files = {**({} if settings.exists() else {settings: shipped("config.toml")}), **paths.units}
        for path, text in files.items():
            yield f"write {path}", partial(atomic_write, path, text.encode(), 0o644, make=True)
        yield "have systemd read the units", partial(systemctl, "daemon-reload")
    yield f"enable {SERVICE}", partial(systemctl, "enable", "--quiet", SERVICE)
    yield f"start {SERVICE}", partial(systemctl, "restart", SERVICE)


def _link(path: Path, target: Path) -> None:
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def uninstalling(paths: InstallPaths, systemctl: Systemctl, *, purge: bool) -> Iterator[Step]:
    """Stop, disable, and remove the files; with `purge` settings, drop-ins and state too."""
    home = paths.home
    units = [path for path in paths.units if path.exists()]
    names = [path.name for path in units if path.name in UNITS]
    if names:
        yield f"stop and disable {SERVICE}", lambda: _stop(systemctl, names)
    for path in units:
        yield f"remove {path}", path.unlink
    if names:
        yield "have systemd forget the units", partial(systemctl, "daemon-reload")
    if paths.command.is_symlink() and paths.command.readlink() == home / COMMAND:
        yield f"remove {paths.command}", paths.command.unlink
    folders = [home.with_name(f"{home.name}.{end}") for end in ("new", "old")]
    folders += [home] if (home / MARK).exists() else []
    if purge:
        folders += [paths.configuration, paths.at(STATE)]
        folders += [paths.at(STATE.parent / "private" / STATE.name)]
        folders += [paths.at(f"/etc/systemd/system/{name}.d") for name in UNITS]
    for folder in folders:
        if folder.exists() or folder.is_symlink():
            yield f"remove {folder} with everything in there", partial(environment.remove, folder)


def _stop(systemctl: Systemctl, names: Iterable[str]) -> None:
    systemctl("stop", *names)
    for unit in names:
        state = systemctl("show", "--property", "ActiveState", "--value", unit).strip()
        if state == "failed":  # or systemd remembers a unit that is no more
            systemctl("reset-failed", unit)
    systemctl("disable", "--quiet", *names)


def carry_out(steps: Iterable[Step], *, dry: bool = False) -> int:
    """Report each step and do it, and return their number; raises BadInput if a step fails."""
    number = 0
    for sentence, act in steps:
        number += 1
        print(sentence, flush=True)
        if not dry:
            try:
                act()
            except OSError as error:
                raise BadInput(f"cannot {sentence}: {error.strerror or error}") from error
    return number
