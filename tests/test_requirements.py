"""Packages that are installed are pinned: `deploy/lock` was run after the last change of
pyproject.toml."""

import re
import tomllib
from collections.abc import Mapping

import pytest
from packaging.requirements import Requirement

from tests.support.repository import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
AGENT = [*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"]["auth"]]
SOURCE = [
    *PROJECT["build-system"]["requires"],
    *PROJECT["project"]["optional-dependencies"]["dashboards"],
]
WANTED = {
    "agent": AGENT,
    "source": SOURCE,
    "dev": [*AGENT, *SOURCE, *PROJECT["dependency-groups"]["dev"]],
    "pip": ["pip"],
}
PIN = re.compile(r"^([\w.-]+)==(\S+)[^\n]*(?: \\\n +--hash=sha256:[0-9a-f]{64})+$", re.MULTILINE)


def pins(name: str) -> Mapping[str, str]:
    """Version by name."""
    text = (ROOT / f"deploy/requirements/{name}.txt").read_text()
    found = dict(PIN.findall(text))
    assert len(found) == len(re.findall(r"^[\w.-]+==", text, re.MULTILINE)), "some has no hash"
    return found


@pytest.mark.parametrize("name", WANTED)
def test_what_pyproject_asks_for_is_pinned(name: str) -> None:
    found = pins(name)
    for line in WANTED[name]:
        wanted = Requirement(line)
        assert found[wanted.name.lower()] in wanted.specifier, f"{line}: run deploy/lock"


def test_all_lists_agree() -> None:
    everything = pins("dev")
    for name in ("agent", "source"):
        found = pins(name)
        assert {package: everything[package] for package in found} == found
