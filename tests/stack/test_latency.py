"""Time from a fault to its message, at one scrape a second: measured and printed, for a busy
machine takes as long as it takes. By hand at 15 s: see tests.stack.latency."""

from pathlib import Path

import pytest

from tests.stack.latency import CONDITIONS, measure, table

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]


def test_every_condition_is_delivered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = measure(1.0, tmp_path)
    with capsys.disabled():
        print("\n" + table(1.0, found))
    assert set(found) == set(CONDITIONS)
    assert all(seconds > 0 for seconds in found.values()), "no message comes before the fault"
