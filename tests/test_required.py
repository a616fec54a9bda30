"""Which tests run: plain `pytest` the pure ones, `tests/run` all; under `--require-all-but-gpu` a
test that is skipped has failed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import NOT_PURE, PERMITTED, REQUIRED
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


def tried(folder: Path, *words: str, required: str = "") -> subprocess.CompletedProcess[str]:
    """The tests of a folder, by the rules of this repository."""
    command = [sys.executable, "-m", "pytest", "-q", "-ptests.conftest", "-pno:cacheprovider"]
    return subprocess.run(
        [*command, f"--rootdir={folder}", *words],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin", REQUIRED: required},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("required", "outcome"),
    [("", "3 skipped, 1 xfailed"), ("1", "1 failed, 1 skipped, 1 xfailed, 1 error")],
)
def test_a_skip_fails_where_all_are_required(required: str, outcome: str, tmp_path: Path) -> None:
    (tmp_path / "test_skipped.py").write_text(SKIPPED)
    done = tried(tmp_path, "test_skipped.py", required=required)
    assert outcome in done.stdout, done.stdout
    assert ("needs dpkg-deb, and every test is required here" in done.stdout) is bool(required)


def test_the_test_command_requires_them() -> None:
    whole = (ROOT / "tests/run").read_text()
    assert f"export {REQUIRED}=1" in whole.partition("--require-all-but-gpu ]; then")[2][:80]


@pytest.mark.parametrize(
    ("words", "found"),
    [(["-n2"], "1 passed"), (["-m", "not stack"], "2 passed"), (["."], "2 passed")],
    ids=str,
)
def test_pytest_alone_runs_the_pure_tests(words: list[str], found: str, tmp_path: Path) -> None:
    (tmp_path / "test_pure.py").write_text("def test_this(): pass")
    (tmp_path / "test_whole.py").write_text("import subprocess\ndef test_this(): pass")
    done = tried(tmp_path, *words)
    assert found in done.stdout, done.stdout + done.stderr
    assert ("tests/run runs all" in done.stdout) == ("-n2" in words)


def test_the_pure_tests_and_the_others_are_all_that_the_test_command_runs() -> None:
    """Each of its calls of pytest names marks, and one of the two takes each test."""
    files = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    assert 40 < sum(not NOT_PURE.search(text) for text in files) < len(files) - 60
    script = (ROOT / "tests/run").read_text()
    chosen = re.findall(r'--pure|tests -m "((?:not )?\(\$waiting\))', script)
    assert sorted(chosen) == ["($waiting)", "not ($waiting)"]


def test_what_is_said_to_show_a_fault_exists() -> None:
    text = (ROOT / "tests/FAULTS.md").read_text()
    shown = set(re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", text))
    assert len(shown) > 50
    assert [
        (path, name)
        for path, name in sorted(shown)
        if not (ROOT / "tests" / path).is_file()
        or f"def {name}" not in (ROOT / "tests" / path).read_text()
    ] == []
