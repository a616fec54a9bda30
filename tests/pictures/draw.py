"""From boards to PNG files: npm's packages in a cache folder, a page, headless Chromium."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.browser.chromium import NAMES as BROWSERS

HERE = Path(__file__).parent


class Missing(Exception):
    """A program that is needed is not there."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A board as it is to be seen: whose data, from when to when, how wide. Times in seconds."""

    file: str
    board: Any  # its JSON
    prometheus: str
    variables: dict[str, str]
    since: float
    until: float
    scrape: int  # seconds between two scrapes
    theme: str = "dark"  # or light
    width: int = 1600  # pixels
    scale: float = 1.0  # device pixels of a pixel
    opened: bool = False  # rows that are collapsed too


@dataclass(frozen=True, slots=True)
class Drawn:
    """A picture, and what the page said of it: titles of panels."""

    file: str
    undrawn: Sequence[str]  # no component is published for their kind
    empty: Sequence[str]
    failed: Sequence[str]  # with the reason


def draw(pictures: Sequence[Picture], folder: Path) -> Iterator[Drawn]:
    """All pictures, one after the other; `folder` is the workshop."""
    order = {
        "folder": str(folder),
        "browser": program(*BROWSERS),
        "pictures": [asdict(picture) for picture in pictures],
    }
    done = subprocess.run(
        [program("node"), "shoot.mjs"],
        cwd=folder,
        input=json.dumps(order),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    for line in done.stdout.splitlines():
        yield Drawn(**json.loads(line))


def workshop() -> Path:
    """A folder with our sources and npm's packages; installed again when package.json changes."""
    for names in (("node",), ("npm",), BROWSERS):
        program(*names)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "dgx-telemetry" / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    installed = folder / "installed.json"
    wanted = (HERE / "package.json").read_text()
    for name in ("package.json", "reads.json", "shoot.mjs", "page"):
        _copy(HERE / name, folder / name)
    if not installed.exists() or installed.read_text() != wanted:
        # No script of a package runs. Grafana's tables name an older React than they work with.
        command = [program("npm"), "install", "--ignore-scripts", "--legacy-peer-deps", "--silent"]
        subprocess.run([*command, "--no-audit", "--no-fund"], cwd=folder, check=True)
        installed.write_text(wanted)
    return folder


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy(source, target)


def program(*names: str) -> str:
    """The path of the first of these that is installed."""
    for name in names:
        found = shutil.which(name)
        if found:
            return found
    raise Missing(f"{names[0]} is not installed")
