"""A fake host for the tests of its sources."""

from pathlib import Path

import pytest

from tests.support.fake_host import HostBench


@pytest.fixture
def bench(tmp_path: Path) -> HostBench:
    return HostBench(tmp_path)
