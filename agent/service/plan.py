"""The parts of the service on this machine, in the order in which they are put there."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from agent.config.atomic_file import atomic_write
from agent.diagnosis.hours import STATE
from agent.service.environment import COMMAND, KERNEL_LOG, OwnEnvironment, shipped


class InstallPart(NamedTuple):
    """Something that the service needs on this machine: `right` if it is present and correct,
    `there` if anything of it is present; `putting` and `removing` say in a sentence what `put` and
    `remove` do, which raise OSError or BadInput."""

    right: Callable[[], bool]
    there: Callable[[], bool]
    putting: Callable[[], str]
    put: Callable[[], object]
    removing: Callable[[], str]
    remove: Callable[[], object]
    of_user: bool = False  # it stays unless the settings are purged


def written(path: Path, text: str, reload: Callable[[], object] | None = None) -> InstallPart:
    """A file of ours, readable for everyone; systemd is notified when a unit changes."""

    def right() -> bool:
        return path.exists() and path.read_bytes() == text.encode()

    def put() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in path.parent.glob(f".{path.name}.????????"):
            left.unlink()  # of a run that was killed
        atomic_write(path, text.encode(), 0o644)
        if reload:
            reload()

    def remove() -> None:
        path.unlink()
        if reload:
            reload()

    read, forget = (f" and have systemd {what} it" * bool(reload) for what in ("read", "forget"))
    putting, removing = f"write {path}{read}", f"remove {path}{forget}"
    return InstallPart(right, path.exists, lambda: putting, put, lambda: removing, remove)


def user_settings(begun: Path, text: str, also: Sequence[Path] = ()) -> InstallPart:
    """The folder of settings, which is the user's, begun with one file that is never written again;
    and folders of the service elsewhere: drop-ins, what it remembers."""
    folders = (begun.parent, *also)

    def removing() -> str:
        names = " and ".join(str(folder) for folder in folders if folder.exists())
        return f"remove {names} with everything in there"

    def remove() -> None:
        for folder in folders:
            if folder.is_symlink():
                folder.unlink()
            elif folder.exists():
                shutil.rmtree(folder)

    return InstallPart(
        begun.exists,
        lambda: any(folder.exists() for folder in folders),
        lambda: f"write {begun}, every setting as a comment",
        written(begun, text).put,
        removing,
        remove,
        of_user=True,
    )


def linked(path: Path, target: Path) -> InstallPart:
    """The command where a shell finds it. What somebody else has put there stays: only a link to
    `target` is ours."""

    def there() -> bool:
        return path.is_symlink() and path.readlink() == target

    def put() -> None:
        path.unlink(missing_ok=True)  # a link to what is gone
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    return InstallPart(
        lambda: there() or path.exists(),
        there,
        lambda: f"link {path} to {target}",
        put,
        lambda: f"remove {path}",
        path.unlink,
    )


Systemctl = Callable[..., str]
"""Runs systemctl with these words and returns what it says; raises BadInput where it fails."""

SERVICE = "dgx-telemetry.service"
DEVICES = "dgx-telemetry-devices.service"
SMART = "dgx-telemetry-smart.service"
WANTED = (DEVICES, SMART)
"""Units that start with the service."""


def property_of(systemctl: Systemctl, unit: str, name: str) -> str:
    """One property of a unit, empty where the unit is not there."""
    return systemctl("show", "--property", name, "--value", unit).strip()


def enabled(systemctl: Systemctl) -> InstallPart:
    """The service starts with the machine."""

    def right() -> bool:
        return property_of(systemctl, SERVICE, "UnitFileState") == "enabled"

    return InstallPart(
        right,
        right,
        lambda: f"enable {SERVICE}: it starts with the machine",
        lambda: systemctl("enable", "--quiet", SERVICE),
        lambda: f"disable {SERVICE}",
        lambda: systemctl("disable", "--quiet", SERVICE),
    )


RESTING = ("", "inactive", "failed")


def running(systemctl: Systemctl, essential: Sequence[InstallPart]) -> InstallPart:
    """The service runs, and what it is made of is what it was started with."""

    def state(unit: str = SERVICE) -> str:
        return property_of(systemctl, unit, "ActiveState")

    def remove() -> None:
        systemctl("stop", SERVICE, *WANTED)
        for unit in (SERVICE, *WANTED):
            if state(unit) == "failed":  # or systemd remembers a unit that is no more
                systemctl("reset-failed", unit)

    return InstallPart(
        lambda: state() == "active" and all(part.right() for part in essential),
        lambda: any(state(unit) not in ("", "inactive") for unit in (SERVICE, *WANTED)),
        lambda: f"{'start' if state() in RESTING else 'restart'} {SERVICE}",
        lambda: systemctl("restart", SERVICE),
        lambda: f"stop {SERVICE}",
        remove,
    )


HOME = Path("/opt/dgx-telemetry")
"""The virtual environment that the units name, and that installing makes."""


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
    def units(self) -> Path:
        return self.at("/etc/systemd/system")

    @property
    def configuration(self) -> Path:
        return self.at("/etc/dgx-telemetry")

    @property
    def packaged(self) -> bool:
        """True if a package of the distribution brought the unit."""
        folders = ("/usr/lib/systemd/system", "/lib/systemd/system")
        return any(self.at(f"{folder}/dgx-telemetry.service").exists() for folder in folders)

    @property
    def booted(self) -> bool:
        """True if systemd runs this machine (the test of sd_booted(3))."""
        return self.at("/run/systemd/system").is_dir()


def parts(
    places: InstallPaths, systemctl: Systemctl, environment: OwnEnvironment | None = None
) -> list[InstallPart]:
    """Everything that makes the service, in order. Where a package brought its files, only enabled
    and running is left."""
    if places.packaged:
        return [enabled(systemctl), running(systemctl, ())]
    home = environment or OwnEnvironment(places.home)
    own = InstallPart(home.right, home.there, home.putting, home.put, home.removing, home.remove)

    def unit(name: str, text: str) -> InstallPart:
        return written(places.units / name, text, lambda: systemctl("daemon-reload"))

    units = [unit(name, shipped(name)) for name in (*WANTED, SERVICE)]
    if places.at("/dev/kmsg").is_char_device():
        units.append(unit(f"{SERVICE}.d/10-kernel-log.conf", shipped(KERNEL_LOG)))
    state = places.at(STATE), places.at(STATE.parent / "private" / STATE.name)  # a link, its target
    drop_ins = tuple(places.units / f"{unit}.d" for unit in (SERVICE, *WANTED))
    begun = places.configuration / "config.toml"
    return [
        own,
        linked(places.at("/usr/local/bin/dgx-telemetry"), home.home / COMMAND),
        user_settings(begun, shipped("config.toml"), (*drop_ins, *state)),
        *units,
        enabled(systemctl),
        running(systemctl, [own, *units]),
    ]
