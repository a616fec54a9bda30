"""One machine for all tests of the service; each file leaves it as it was."""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.container import CACHE, Container
from tests.service.service import Service
from tests.service.slurm import Cluster
from tests.support import crashing_library
from tests.support.repository import ROOT

HERE = Path(__file__).parent


def built(into: Path, kind: str, **changed: str) -> None:
    """Build the .deb and the .rpm of this tree, or one of them, into a folder."""
    command = [str(ROOT / "deploy/package"), kind]
    environment = {**os.environ, **changed}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    for name in re.findall(r"^dist/\S+$", said.stdout, re.MULTILINE):
        shutil.move(ROOT / name, into / f"dgx-telemetry{Path(name).suffix}")


def _wheels() -> Path:
    """The folder with the wheels of these requirements, kept like the roots of machines."""
    wanted = b"".join(
        (ROOT / f"deploy/requirements/{n}.txt").read_bytes() for n in ("agent", "pip")
    )
    return CACHE / f"wheels-{hashlib.sha256(wanted).hexdigest()[:12]}"


def kept_wheels() -> dict[str, str]:
    """Settings of pip with which it takes the kept wheels, by their digests: asking the registry
    for each Python takes it six seconds."""
    if not _wheels().exists():
        return {}
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(_wheels())}


def _keep_wheels(package: Path) -> None:
    if not _wheels().exists():
        with tempfile.TemporaryDirectory(dir=CACHE) as unpacked:
            subprocess.run(["dpkg-deb", "-x", package, unpacked], check=True)
            Path(unpacked, "usr/lib/dgx-telemetry/wheels").rename(_wheels())


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the packages, which one worker builds for all."""
    folder = tmp_path_factory.getbasetemp() / "packages"
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parents[1] / "packages"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            part = Path(tempfile.mkdtemp(dir=folder.parent))
            built(part, "all" if shutil.which("rpmbuild") else "deb", **kept_wheels())
            _keep_wheels(part / "dgx-telemetry.deb")
            part.rename(folder)
    return folder


@pytest.fixture(scope="session")
def package(packages: Path) -> Path:
    """The .deb, built from this tree."""
    return packages / "dgx-telemetry.deb"


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
def container(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    stage, package = tmp_path_factory.mktemp("machine"), packages / "dgx-telemetry.deb"
    shared = staged(package, stage)
    for rpm in packages.glob("*.rpm"):
        shutil.copy(rpm, shared)
    subprocess.run(["dpkg-deb", "-x", package, shared / "unpacked"], check=True)
    (shared / "crashing").mkdir()
    crashing_library.make(shared / "crashing")
    with Container(shared, stage / "boot.log") as container:
        yield container


@pytest.fixture(scope="session")
def shared(container: Container) -> Path:
    """The folder that the machine has as /mnt."""
    return container.shared


@pytest.fixture(scope="module")
def cluster(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    stage = tmp_path_factory.mktemp("cluster")
    shared = staged(package, stage)
    with Container(shared, stage / "boot.log", hierarchy="no") as container:
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
