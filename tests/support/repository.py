"""Paths in the repository."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
TAPES = TESTS / "tapes"
DEPLOY = ROOT / "deploy"
