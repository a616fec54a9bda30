"""One machine for all tests of the service; each file leaves it as it was."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.container import Container
from tests.service.service import Service
from tests.service.slurm import PACKAGES, Cluster
from tests.support import crashing_library
from tests.support.repository import ROOT

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def package() -> Path:
    """The package, built from this tree."""
    said = subprocess.run(
        [ROOT / "deploy/package", "deb"], capture_output=True, text=True, check=True
    )
    return ROOT / said.stdout.split()[-1]


def staged(package: Path, stage: Path) -> Path:
    """A folder with the package and the scripts that run beside it, for a machine to see."""
    shared = stage / "shared"
    (shared / "tests/service").mkdir(parents=True)
    for script in ("sandbox_report.py", "freeze.py", "used_gpus.py"):
        shutil.copy(HERE / script, shared / "tests/service")
    shutil.copy(package, shared / "dgx-telemetry.deb")
    for folder in (stage, *stage.parents):  # the service is another user
        if folder.stat().st_uid == os.getuid() and folder.is_relative_to(stage.parent):
            folder.chmod(0o755)
    return shared


@pytest.fixture(scope="session")
def container(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    stage = tmp_path_factory.mktemp("machine")
    shared = staged(package, stage)
    subprocess.run(["dpkg-deb", "-x", package, shared / "unpacked"], check=True)
    (shared / "crashing").mkdir()
    crashing_library.make(shared / "crashing")
    with Container(shared, stage / "boot.log") as container:
        yield container


@pytest.fixture(scope="module")
def cluster(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    stage = tmp_path_factory.mktemp("cluster")
    shared = staged(package, stage)
    with Container(shared, stage / "boot.log", PACKAGES, hierarchy="no") as container:
        yield Cluster(container)


@pytest.fixture(scope="session")
def untouched(container: Container) -> set[str]:
    """The files of the machine before anything was installed."""
    return container.files()


@pytest.fixture(scope="session")
def service(container: Container, untouched: set[str]) -> Service:
    """The service, once somebody has installed it; each file of tests does, and removes it."""
    assert untouched
    return Service(container)
