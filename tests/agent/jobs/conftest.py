"""Fixtures for tests of processes."""

from pathlib import Path

import pytest

from tests.support.process_tree import ProcessTree


@pytest.fixture
def tree(tmp_path: Path) -> ProcessTree:
    """A launcher (100) with three children: loaders 101 and 102, and 103, which may only sleep."""
    found = ProcessTree(tmp_path)
    found.start(100)
    for pid in (101, 102, 103):
        found.start(pid, parent=100)
    return found
