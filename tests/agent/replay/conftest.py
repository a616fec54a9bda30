"""Fixtures for tests of tapes."""

from pathlib import Path

import pytest

from tests.support.taped_machine import record


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tape of four ticks; a GPU is lost at the third."""
    path = tmp_path_factory.mktemp("tape") / "good.tape"
    record(path, ticks=4, lose_at=2, secrets=True)
    return path
