"""The image of deploy/Dockerfile, built by podman where no registry is.

The image that it begins with is made of the machine's own files, Debian's Python 3.11 in place of
Docker's 3.12; what pip would fetch lies beside.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service import podman
from tests.service.container import Container
from tests.stack.running import eventually
from tests.support.nightly import NIGHTLY
from tests.support.patience import PATIENCE
from tests.support.repository import ROOT

pytestmark = [pytest.mark.systemd, NIGHTLY]

BASE = "docker.io/library/python:3.12-slim-bookworm"
REST = "--one-file-system --exclude=./var/lib/containers --exclude=./var/cache"
BUILD = (
    "podman build -q --isolation=chroot --layers=false --format=docker --pull=never "
    "-v /mnt/wheels:/found:ro -v /mnt/pip.conf:/etc/pip.conf:ro "
    "-f /mnt/source/deploy/Dockerfile -t agent /mnt/source"
)
RUN = "podman run --network=none --read-only --cap-drop=all"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    """A machine with podman, the tree of this repository, and wheels."""
    stage = tmp_path_factory.mktemp("image")
    shared = stage / "shared"
    caches = shutil.ignore_patterns("__pycache__")
    for name in ("agent", "alerts", "dashboards", "deploy", "exporters"):
        shutil.copytree(ROOT / name, shared / "source" / name, ignore=caches)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, shared / "source")
    for name in ("source", "agent"):
        fetch(ROOT / f"deploy/requirements/{name}.txt", shared / "wheels")
    (shared / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /found\n")
    packages = ("python3-venv", "python-is-python3")
    with Container(shared, stage / "boot.log", packages, hierarchy="no") as container:
        podman.prepare(container)
        yield container


def fetch(requirements: Path, folder: Path) -> None:
    """Download the pinned packages."""
    words = ["-q", "--no-deps", "--require-hashes", "--only-binary=:all:", f"--dest={folder}"]
    platform = ["--implementation=cp", "--python-version=3.11"]
    command = [sys.executable, "-m", "pip", "download", *words, *platform, "-r", str(requirements)]
    subprocess.run(command, check=True, timeout=PATIENCE)


def test_it_is_built_and_serves_without_rights(machine: Container) -> None:
    machine.run(f"tar {REST} -C / -c . 2>/dev/null | podman import -q - {BASE}")
    machine.run(BUILD)
    assert machine.run("podman inspect --format '{{.Config.User}}' agent") == "dgx-telemetry"
    assert "8 of 8 GPUs" in machine.run(f"{RUN} --rm agent once --simulate dgx-h100")
    machine.run(f"{RUN} -d --name=serving agent run --simulate dgx-h100")
    check = "podman healthcheck run serving"
    eventually(lambda: machine.status(check)[0] == 0, "healthy by the check of the image")
    machine.run("podman rm -f -t 10 serving")
