"""The driver given back for an upgrade: who asks for it, and what this process still holds."""

import time
from contextlib import suppress
from pathlib import Path

from agent.config.settings import Section

IN_FORCE = 3600.0
"""Seconds from the last `touch` of the file until the driver is taken again though it is still
there: a file that was forgotten leaves no machine unwatched."""

NODES = "/dev/nvidia"


class DriverConfig(Section, frozen=True):
    """The file that asks for the driver; empty for none."""

    table = "driver"
    release_file: str = "/run/dgx-telemetry-release-driver"


def asked_by(config: DriverConfig) -> str:
    """Why the driver is to be left alone, in words; empty while it may be used."""
    try:
        age = time.time() - Path(config.release_file).stat().st_mtime
    except (OSError, ValueError):
        return ""
    left_alone = config.release_file and age < IN_FORCE
    return f"the driver is released by {config.release_file}" if left_alone else ""


def device_nodes() -> set[str]:
    """NVIDIA's device nodes that this process has open or mapped."""
    opened = set()
    for number in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            opened.add(str(number.readlink()))
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    return {path for path in opened | mapped if path.startswith(NODES)}


def module_version() -> str:
    """The version of the kernel module that is loaded; empty where none is."""
    try:
        return Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        return ""
