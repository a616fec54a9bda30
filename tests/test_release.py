"""A release by one command: what it refuses, and, by hand and at night, all its files."""

import hashlib
import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from agent import __version__
from tests.stack.running import run_to_end
from tests.support.nightly import NIGHTLY
from tests.support.repository import ROOT

BASE = f"docker.io/library/python:3.12-slim-bookworm@sha256:{'0' * 64}"
KINDS = {"_amd64.deb", "_arm64.deb", ".x86_64.rpm", ".aarch64.rpm", ".whl", ".tgz", ".cdx.json"}
WORKFLOWS = ROOT / ".github/workflows"


def release(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_to_end([ROOT / "deploy/release", *words], **environment)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--base", "python:3.12"), "'python:3.12' has no digest"),
        (("--sign", "me"), "'--sign' is unknown: expected --key GPG_KEY"),
    ],
)
def test_a_wrong_word_is_refused(words: tuple[str, ...], said: str) -> None:
    done = release(*words)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.needs("actionlint")
def test_actionlint_has_no_finding(tmp_path: Path) -> None:
    def found(*workflows: Path) -> str:
        return run_to_end(["actionlint", "-no-color", "-shellcheck=", *workflows]).stdout

    assert found(*WORKFLOWS.glob("*.yml")) == ""
    wrong = tmp_path / "wrong.yml"
    wrong.write_text((WORKFLOWS / "ci.yml").read_text().replace("runs-on:", "run-on:"))
    assert "run-on" in found(wrong)


def test_actions_are_pinned_and_have_no_more_rights_than_they_need() -> None:
    for path in WORKFLOWS.glob("*.yml"):
        assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
        for action in re.findall(r"uses: (.*)", path.read_text()):
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", action), action


def test_the_changelog_of_the_release_is_short_and_begins_with_the_upgrade() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    section = text.split(f"## [{__version__}]")[1].split("\n## [")[0]
    assert len(section.splitlines()) <= 60
    assert section.splitlines()[2].startswith("**After an upgrade from ")


@NIGHTLY
def test_all_files_are_there_signed_and_the_same_again(tmp_path: Path) -> None:
    home = tmp_path / "gnupg"
    home.mkdir(0o700)
    gpg = ["gpg", "--homedir", str(home), "--batch", "--quiet"]
    made = [*gpg, "--passphrase", "", "--quick-generate-key", "release@test", "ed25519", "sign"]
    subprocess.run(made, check=True)
    sums = []
    for _ in range(2):
        done = release("--key", "release@test", "--base", BASE, GNUPGHOME=str(home))
        assert done.returncode == 0, done.stderr
        sums.append((ROOT / "dist/SHA256SUMS").read_text())
    assert sums[0] == sums[1]
    listed = {line[66:]: line[:64] for line in sums[0].splitlines()}
    assert len(listed) == len(KINDS) + 1
    assert all(any(name.endswith(kind) for name in listed) for kind in KINDS)
    for name, digest in listed.items():
        assert hashlib.sha256((ROOT / "dist" / name).read_bytes()).hexdigest() == digest
    signature = [ROOT / "dist/SHA256SUMS.asc", ROOT / "dist/SHA256SUMS"]
    subprocess.run([*gpg, "--verify", *map(str, signature)], check=True)
    assert f"FROM {BASE}\n" in (ROOT / "dist/Dockerfile").read_text()
    bom = json.loads((ROOT / f"dist/dgx-telemetry-{__version__}.cdx.json").read_text())
    locked = re.findall(
        r"^([\w-]+)==([\w.]+)", (ROOT / "deploy/requirements/agent.txt").read_text(), re.MULTILINE
    )
    assert {(one["name"], one["version"]) for one in bom["components"]} == set(locked)
