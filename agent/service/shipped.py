"""Files of `deploy/` that travel with the program: the units, and the commented configuration."""

from pathlib import Path

SOURCE = Path(__file__).parents[2] / "deploy"
SHIPPED = Path(__file__).parent / "deploy"
"""A wheel carries them here; a source tree has them in their own place."""

CONFIGURATION = "config.toml"
KERNEL_LOG = "dgx-telemetry-kernel-log.conf"
"""The drop-in that hands /dev/kmsg to the service."""

NAMES = (
    CONFIGURATION,
    "dgx-telemetry.service",
    "dgx-telemetry-devices.service",
    "dgx-telemetry-smart.service",
    KERNEL_LOG,
)


def text(name: str) -> str:
    """The text of one of NAMES."""
    return next(f for f in (SHIPPED / name, SOURCE / name) if f.exists()).read_text("utf-8")
