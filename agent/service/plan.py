"""The parts of the service on this machine, in the order in which they are put there."""

from collections.abc import Sequence
from pathlib import Path

from agent.service import shipped
from agent.service.environment import COMMAND, CurrentEnvironment, OwnEnvironment, current
from agent.service.part import InstalledFile, InstalledLink, InstallPart, UserSettings
from agent.service.places import HOME, InstallPaths
from agent.service.units import SERVICE, WANTED, Enabled, Running, Systemctl

Environment = OwnEnvironment | CurrentEnvironment


def parts(
    places: InstallPaths, systemctl: Systemctl, environment: Environment | None = None
) -> Sequence[InstallPart]:
    """Everything that makes the service. Where a package brought its files, only enabled and
    running is left."""
    made = [] if places.packaged else files(places, systemctl, environment or chosen(places))
    essential = [part for part in made if not isinstance(part, InstalledLink | UserSettings)]

    def renewed() -> bool:
        return not all(part.right() for part in essential)

    return [*made, Enabled(systemctl), Running(systemctl, renewed)]


def files(
    places: InstallPaths, systemctl: Systemctl, environment: Environment
) -> list[InstallPart]:
    """What lies on the disk."""
    configuration = InstalledFile(places.configuration / "config.toml", shipped.text("config.toml"))

    def unit(name: str, text: str) -> InstalledFile:
        return InstalledFile(places.units / name, text, lambda: systemctl("daemon-reload"))

    kernel_log = unit(f"{SERVICE}.d/10-kernel-log.conf", shipped.text(shipped.KERNEL_LOG))
    drop_ins = tuple(places.units / f"{unit}.d" for unit in (SERVICE, *WANTED))
    return [
        environment,
        InstalledLink(places.command, environment.home / COMMAND, (HOME / COMMAND,)),
        UserSettings(configuration, (*drop_ins, *places.state)),
        *(unit(name, unit_text(name, environment.home)) for name in (*WANTED, SERVICE)),
        *([kernel_log] if places.kernel_log.is_char_device() else []),
    ]


def chosen(places: InstallPaths) -> Environment:
    """The environment that runs this, where a service may use it; else one of its own."""
    own, running = OwnEnvironment(places.home), current()
    if running is None or (running == own.home and own.there()):
        return own
    return CurrentEnvironment(running)


def unit_text(unit: str, home: Path) -> str:
    """A unit that starts the program of the environment `home`."""
    return shipped.text(unit).replace(f"={HOME}/bin/", f"={home}/bin/")


def missing(parts: Sequence[InstallPart]) -> list[tuple[str, InstallPart]]:
    """What is not as it should be, with what will be done about it, in order."""
    return [(part.putting(), part) for part in parts if not part.right()]


def removable(parts: Sequence[InstallPart], *, purge: bool) -> list[tuple[str, InstallPart]]:
    """What is there, with how it goes, last things first; settings only to purge."""
    return [
        (part.removing(), part)
        for part in reversed(parts)
        if part.there() and (purge or not isinstance(part, UserSettings))
    ]


def removable_parts(places: InstallPaths, systemctl: Systemctl) -> Sequence[InstallPart]:
    """Everything that any installation has put there: one from another environment than the one
    that runs this had made its own."""
    found = parts(places, systemctl)
    own = OwnEnvironment(places.home)
    return found if own in found else [own, *found]
