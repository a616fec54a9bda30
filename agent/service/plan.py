"""The parts of the service on this machine, in the order in which they are put there."""

from collections.abc import Sequence

from agent.service import shipped
from agent.service.environment import COMMAND, OwnEnvironment
from agent.service.part import InstalledFile, InstalledLink, InstallPart, UserSettings
from agent.service.places import InstallPaths
from agent.service.units import SERVICE, WANTED, Enabled, Running, Systemctl


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
    configuration = InstalledFile(places.configuration / "config.toml", shipped.text("config.toml"))

    def unit(name: str, text: str) -> InstalledFile:
        return InstalledFile(places.units / name, text, lambda: systemctl("daemon-reload"))

    kernel_log = unit(f"{SERVICE}.d/10-kernel-log.conf", shipped.text(shipped.KERNEL_LOG))
    drop_ins = tuple(places.units / f"{unit}.d" for unit in (SERVICE, *WANTED))
    return [
        environment,
        InstalledLink(places.command, environment.home / COMMAND),
        UserSettings(configuration, (*drop_ins, *places.state)),
        *(unit(name, shipped.text(name)) for name in (*WANTED, SERVICE)),
        *([kernel_log] if places.kernel_log.is_char_device() else []),
    ]


def missing(parts: Sequence[InstallPart]) -> list[tuple[str, InstallPart]]:
    """Return the parts that are missing or wrong, with what `put` will do, in order."""
    return [(part.putting(), part) for part in parts if not part.right()]


def removable(parts: Sequence[InstallPart], *, purge: bool) -> list[tuple[str, InstallPart]]:
    """Return the parts that are present, with what `remove` will do, last parts first; settings
    only to purge."""
    return [
        (part.removing(), part)
        for part in reversed(parts)
        if part.there() and (purge or not isinstance(part, UserSettings))
    ]
