"""The service enabled and running. systemd itself is asked through `systemctl`."""

from collections.abc import Callable
from dataclasses import dataclass

from agent.errors import BadInput

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
