"""How soon somebody knows, at one scrape a second; by hand at 15 s: see tests.stack.latency."""

from pathlib import Path

import pytest

from tests.stack.latency import CONDITIONS, measure, table

pytestmark = [pytest.mark.stack, pytest.mark.timeout(180)]

MOST = 60.0
"""Seconds: five times what it takes, for machines that do other things meanwhile."""


def test_every_condition_is_delivered_soon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = measure(1.0, tmp_path)
    with capsys.disabled():
        print("\n" + table(1.0, found))
    assert set(found) == set(CONDITIONS)
    assert all(0 < seconds < MOST for seconds in found.values())
