"""This program as files: its own packages, and every distribution that it needs."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path, PurePosixPath

import agent
from agent.errors import BadInput
from agent.service import shipped

DISTRIBUTION = "dgx-telemetry"
PACKAGES = ("agent", "alerts", "dashboards", "exporters")
CACHE = "__pycache__"

Content = Path | str
"""A file to copy, or its text."""


@dataclass(frozen=True, slots=True)
class ProgramFiles:
    """All files by their path below site-packages."""

    version: str
    files: dict[str, Content]

    def digest(self) -> str:
        """The same for the same files."""
        total = sha256()
        for name, content in sorted(self.files.items()):
            data = content.encode() if isinstance(content, str) else content.read_bytes()
            total.update(f"{name}\0{len(data)}\0".encode() + data)
        return total.hexdigest()

    def copy_to(self, folder: Path) -> None:
        """Write every file below `folder`; raises OSError."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, str):
                path.write_text(content, encoding="utf-8")
            else:
                path.write_bytes(content.read_bytes())


@cache
def running_program() -> ProgramFiles:
    """The program that runs this, wheel or source tree. Raises BadInput where a distribution does
    not report its files."""
    files: dict[str, Content] = {}
    for name in sorted(needed(DISTRIBUTION)):
        files.update(recorded(name))
    files.update(own_files(Path(agent.__file__).parents[1]))
    for name in shipped.NAMES:
        files[f"agent/service/deploy/{name}"] = shipped.text(name)
    return ProgramFiles(agent.__version__, files)


def needed(name: str) -> set[str]:
    """A distribution and what it needs, as far as it is installed; of ours the extras too."""
    found: set[str] = set()
    queue = [name]
    while queue:
        wanted = canonical(queue.pop())
        if wanted in found:
            continue
        try:
            requirements = metadata.distribution(wanted).requires or ()
        except metadata.PackageNotFoundError:
            continue
        found.add(wanted)
        for requirement in requirements:
            required, marker = requirement.partition(";")[::2]
            if "extra" not in marker or wanted == DISTRIBUTION:
                queue.append(re.split(r"[^\w.-]", required.strip(), maxsplit=1)[0])
    return found


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def recorded(name: str) -> Iterator[tuple[str, Content]]:
    """The files that were recorded when this distribution was installed; of our own only what
    describes it, for the rest may lie in a source tree."""
    distribution = metadata.distribution(name)
    if distribution.files is None:
        raise BadInput(f"{name} was not installed by pip: nothing says which files are its own")
    for file in distribution.files:
        parts = PurePosixPath(file).parts
        outside = parts[0] == ".." or file.is_absolute()
        describes = parts[0].endswith(".dist-info")
        path = Path(str(distribution.locate_file(file)))
        if outside or CACHE in parts or parts[-1] == "direct_url.json" or not path.exists():
            continue
        if describes or name != DISTRIBUTION:
            yield file.as_posix(), path


def own_files(source: Path) -> Iterator[tuple[str, Content]]:
    """Our packages below `source`."""
    for package in PACKAGES:
        for path in (source / package).rglob("*"):
            if path.is_file() and CACHE not in path.parts:
                yield path.relative_to(source).as_posix(), path
