"""Under `tests/run --require-all-but-gpu` a test that is skipped has failed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PERMITTED, REQUIRED
from tests.support.repository import ROOT

SKIPPED = f"""
import pytest

@pytest.mark.skipif(True, reason="needs dpkg-deb")
def test_of_a_mark(): pass

def test_of_a_call(): pytest.skip("no such number")

def test_of_another_machine(): pytest.skip({PERMITTED[0]!r})

@pytest.mark.xfail(strict=True)
def test_of_a_known_fault(): raise AssertionError
"""


@pytest.mark.parametrize(
    ("required", "outcome"),
    [("", "3 skipped, 1 xfailed"), ("1", "1 failed, 1 skipped, 1 xfailed, 1 error")],
)
def test_a_skip_fails_where_all_are_required(required: str, outcome: str, tmp_path: Path) -> None:
    (tmp_path / "test_skipped.py").write_text(SKIPPED)
    command = [sys.executable, "-m", "pytest", "-q", "-ptests.conftest", "-pno:cacheprovider"]
    done = subprocess.run(
        [*command, f"--rootdir={tmp_path}", "test_skipped.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin", REQUIRED: required},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome in done.stdout, done.stdout
    assert ("needs dpkg-deb, and every test is required here" in done.stdout) is bool(required)


def test_the_test_command_requires_them() -> None:
    whole = (ROOT / "tests/run").read_text()
    assert f"export {REQUIRED}=1" in whole.partition("--require-all-but-gpu ]; then")[2][:80]
