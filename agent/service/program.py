"""Copies this program and all packages that it requires to another environment. Usage: `python -m
agent.service.program FOLDER`."""

import re
import shutil
import sys
from importlib import metadata
from pathlib import Path

import agent

DISTRIBUTION = "dgx-telemetry"
SOURCE = Path(agent.__file__).parents[1]
SHIPPED = Path(__file__).parent / "deploy"
"""Directory of FILES in an installed wheel. In a source tree, it is the directory `deploy`."""

DEVICES, SMART, SERVICE = (f"dgx-telemetry{part}.service" for part in ("-devices", "-smart", ""))
UNITS = (DEVICES, SMART, SERVICE)
KERNEL_LOG = "dgx-telemetry-kernel-log.conf"
"""The systemd drop-in file that gives the service access to /dev/kmsg."""

MAKE_ENVIRONMENT = "make-environment"
FILES = (*UNITS, KERNEL_LOG, "config.toml", "keep-state", MAKE_ENVIRONMENT)


def shipped(name: str) -> Path:
    """Return the path of the file `name`, one of FILES."""
    return SHIPPED / name if SHIPPED.exists() else SOURCE / "deploy" / name


def distributions() -> dict[str, metadata.Distribution]:
    """Return the distributions of this program and of all its installed requirements, by name. The
    requirements of this program's extras are included."""
    found: dict[str, metadata.Distribution] = {}
    queue = [DISTRIBUTION]
    while queue:
        name = re.sub(r"[-_.]+", "-", queue.pop()).lower()
        if name in found or not any(metadata.Distribution.discover(name=name)):
            continue
        found[name] = metadata.distribution(name)
        for requirement in found[name].requires or ():
            required, marker = requirement.partition(";")[::2]
            if "extra" not in marker or name == DISTRIBUTION:
                queue.append(re.split(r"[^\w.-]", required.strip(), maxsplit=1)[0])
    return found


def copy_to(folder: Path) -> None:
    """Copy this program and its requirements to the site-packages directory `folder`."""
    for name, distribution in distributions().items():
        for file in distribution.files or ():
            # The packages of this program are copied below, so only its metadata is copied here.
            own = name != DISTRIBUTION or file.parts[0].endswith(".dist-info")
            if own and not {"..", "__pycache__"}.intersection(file.parts):
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(str(distribution.locate_file(file)), folder / file)
    for package in ("agent", "alerts", "dashboards", "exporters"):
        ignored = shutil.ignore_patterns("__pycache__", "pictures")
        shutil.copytree(SOURCE / package, folder / package, ignore=ignored)
    target = folder / SHIPPED.relative_to(SOURCE)
    target.mkdir(exist_ok=True)
    for name in FILES:
        shutil.copyfile(shipped(name), target / name)


if __name__ == "__main__":
    copy_to(Path(sys.argv[1]))
