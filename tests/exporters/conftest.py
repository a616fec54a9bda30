"""Fixtures for tests of the HTTP server."""

import shutil
from pathlib import Path

import pytest

from tests.support.web_files import make_certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with certificates, made once."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def folder(certificates: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(certificates, tmp_path / "web"))
