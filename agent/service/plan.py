"""The parts of the service on this machine, in the order in which they are put there."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.config.atomic_file import atomic_write
from agent.diagnosis.hours import STATE
from agent.errors import BadInput
from agent.service.environment import COMMAND, KERNEL_LOG, OwnEnvironment, shipped


@dataclass(frozen=True, slots=True)
class InstalledFile:
    """A file of ours, readable for everyone; systemd is notified when a unit changes."""

    path: Path
    text: str
    reload: Callable[[], object] | None = None

    def right(self) -> bool:
        return self.there() and self.path.read_text(encoding="utf-8") == self.text

    def there(self) -> bool:
        return self.path.exists()

    def putting(self) -> str:
        return f"write {self.path}{' and have systemd read it' if self.reload else ''}"

    def put(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for left in self.path.parent.glob(f".{self.path.name}.????????"):
            left.unlink()  # of a run that was killed
        atomic_write(self.path, self.text.encode(), 0o644)
        if self.reload:
            self.reload()

    def removing(self) -> str:
        return f"remove {self.path}{' and have systemd forget it' if self.reload else ''}"

    def remove(self) -> None:
        self.path.unlink()
        if self.reload:
            self.reload()


@dataclass(frozen=True, slots=True)
class UserSettings:
    """A folder of settings: begun with one file, which is never written again, and the user's."""

    begun: InstalledFile
    also: tuple[Path, ...] = ()  # folders of the service elsewhere: drop-ins, what it remembers

    def right(self) -> bool:
        return self.begun.there()

    def there(self) -> bool:
        return any(folder.exists() for folder in self._folders())

    def putting(self) -> str:
        return f"write {self.begun.path}, every setting as a comment"

    def put(self) -> None:
        self.begun.put()

    def removing(self) -> str:
        names = " and ".join(str(folder) for folder in self._folders() if folder.exists())
        return f"remove {names} with everything in there"

    def remove(self) -> None:
        for folder in self._folders():
            if folder.is_symlink():
                folder.unlink()
            elif folder.exists():
                shutil.rmtree(folder)

    def _folders(self) -> tuple[Path, ...]:
        return (self.begun.path.parent, *self.also)


@dataclass(frozen=True, slots=True)
class InstalledLink:
    """The command where a shell finds it. What somebody else has put there stays: only a link to
    `target` is ours."""

    path: Path
    target: Path

    def right(self) -> bool:
        return self.there() or self.path.exists()

    def there(self) -> bool:
        return self.path.is_symlink() and self.path.readlink() == self.target

    def putting(self) -> str:
        return f"link {self.path} to {self.target}"

    def put(self) -> None:
        self.path.unlink(missing_ok=True)  # a link to what is gone
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.symlink_to(self.target)

    def removing(self) -> str:
        return f"remove {self.path}"

    def remove(self) -> None:
        self.path.unlink()


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


def check_unmasked(systemctl: Systemctl) -> None:
    """Raise BadInput where an administrator has forbidden a unit that the agent needs."""
    for unit in (SERVICE, DEVICES):
        if property_of(systemctl, unit, "UnitFileState").startswith("masked"):
            raise BadInput(f"{unit} is masked: `systemctl unmask {unit}` permits it again")


@dataclass(frozen=True, slots=True)
class Enabled:
    """The service starts with the machine."""

    systemctl: Systemctl

    def right(self) -> bool:
        return property_of(self.systemctl, SERVICE, "UnitFileState") == "enabled"

    def there(self) -> bool:
        return self.right()

    def putting(self) -> str:
        return f"enable {SERVICE}: it starts with the machine"

    def put(self) -> None:
        self.systemctl("enable", "--quiet", SERVICE)

    def removing(self) -> str:
        return f"disable {SERVICE}"

    def remove(self) -> None:
        self.systemctl("disable", "--quiet", SERVICE)


RESTING = ("", "inactive", "failed")


@dataclass(frozen=True, slots=True)
class Running:
    """The service runs, and what it is made of is what it was started with."""

    systemctl: Systemctl
    renewed: Callable[[], bool]  # whether another part changes under it

    def right(self) -> bool:
        return self._state() == "active" and not self.renewed()

    def there(self) -> bool:
        return any(self._state(unit) not in ("", "inactive") for unit in (SERVICE, *WANTED))

    def putting(self) -> str:
        return f"{'start' if self._state() in RESTING else 'restart'} {SERVICE}"

    def put(self) -> None:
        self.systemctl("restart", SERVICE)

    def removing(self) -> str:
        return f"stop {SERVICE}"

    def remove(self) -> None:
        self.systemctl("stop", SERVICE, *WANTED)
        for unit in (SERVICE, *WANTED):
            if self._state(unit) == "failed":  # or systemd remembers a unit that is no more
                self.systemctl("reset-failed", unit)

    def _state(self, unit: str = SERVICE) -> str:
        return property_of(self.systemctl, unit, "ActiveState")


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


InstallPart = OwnEnvironment | InstalledFile | InstalledLink | UserSettings | Enabled | Running
"""Something that the service needs on this machine: `right` if it is present and correct, `there`
if anything of it is present; `putting` and `removing` say in a sentence what `put` and `remove` do,
which raise OSError or BadInput."""


def parts(
    places: InstallPaths, systemctl: Systemctl, environment: OwnEnvironment | None = None
) -> Sequence[InstallPart]:
    """Everything that makes the service. Where a package brought its files, only enabled and
    running is left."""
    own = environment or OwnEnvironment(places.home)
    made = [] if places.packaged else files(places, systemctl, own)
    essential = [part for part in made if not isinstance(part, InstalledLink | UserSettings)]

    def renewed() -> bool:
        return not all(part.right() for part in essential)

    return [*made, Enabled(systemctl), Running(systemctl, renewed)]


def files(
    places: InstallPaths, systemctl: Systemctl, environment: OwnEnvironment
) -> list[InstallPart]:
    """Return the parts of the service on disk."""
    configuration = InstalledFile(places.configuration / "config.toml", shipped("config.toml"))

    def unit(name: str, text: str) -> InstalledFile:
        return InstalledFile(places.units / name, text, lambda: systemctl("daemon-reload"))

    kernel_log = unit(f"{SERVICE}.d/10-kernel-log.conf", shipped(KERNEL_LOG))
    state = places.at(STATE), places.at(STATE.parent / "private" / STATE.name)  # a link, its target
    drop_ins = tuple(places.units / f"{unit}.d" for unit in (SERVICE, *WANTED))
    return [
        environment,
        InstalledLink(places.at("/usr/local/bin/dgx-telemetry"), environment.home / COMMAND),
        UserSettings(configuration, (*drop_ins, *state)),
        *(unit(name, shipped(name)) for name in (*WANTED, SERVICE)),
        *([kernel_log] if places.at("/dev/kmsg").is_char_device() else []),
    ]
