"""Paths of the service's files, below a root."""

from dataclasses import dataclass
from pathlib import Path

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
    def state(self) -> tuple[Path, Path]:
        """Folder where systemd keeps the state of the service: a link, and its target."""
        return self.at("/var/lib/dgx-telemetry"), self.at("/var/lib/private/dgx-telemetry")

    @property
    def kernel_log(self) -> Path:
        return self.at("/dev/kmsg")

    @property
    def command(self) -> Path:
        return self.at("/usr/local/bin/dgx-telemetry")

    @property
    def packaged(self) -> bool:
        """True if a package of the distribution brought the unit."""
        folders = ("/usr/lib/systemd/system", "/lib/systemd/system")
        return any(self.at(f"{folder}/dgx-telemetry.service").exists() for folder in folders)

    @property
    def booted(self) -> bool:
        """True if systemd runs this machine (the test of sd_booted(3))."""
        return self.at("/run/systemd/system").is_dir()
