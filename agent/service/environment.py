"""The virtual environment of the service: a copy of the program that runs this, which is its own
packages and every distribution that it needs."""

import compileall
import os
import re
import shutil
import sys
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path, PurePosixPath

import agent
from agent.errors import BadInput

SOURCE = Path(__file__).parents[2] / "deploy"
SHIPPED = Path(__file__).parent / "deploy"
"""A wheel carries them here; a source tree has them in their own place."""

KERNEL_LOG = "dgx-telemetry-kernel-log.conf"
"""The drop-in that hands /dev/kmsg to the service."""

NAMES = (
    "config.toml",
    "dgx-telemetry.service",
    "dgx-telemetry-devices.service",
    "dgx-telemetry-smart.service",
    KERNEL_LOG,
)
"""Files of `deploy/` that travel with the program: the commented configuration, and the units."""


def shipped(name: str) -> str:
    """The text of one of NAMES."""
    return next(f for f in (SHIPPED / name, SOURCE / name) if f.exists()).read_text("utf-8")


DISTRIBUTION = "dgx-telemetry"
OWN_PACKAGES = ("agent", "alerts", "dashboards", "exporters")
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


@cache
def running_program() -> ProgramFiles:
    """The program that runs this, wheel or source tree. Raises BadInput where a distribution does
    not report its files."""
    files: dict[str, Content] = {}
    for name in sorted(needed(DISTRIBUTION)):
        files.update(recorded(name))
    source = Path(agent.__file__).parents[1]
    for path in (path for package in OWN_PACKAGES for path in (source / package).rglob("*")):
        if path.is_file() and CACHE not in path.parts:
            files[path.relative_to(source).as_posix()] = path
    for name in NAMES:
        files[f"agent/service/deploy/{name}"] = shipped(name)
    return ProgramFiles(agent.__version__, files)


def needed(name: str) -> set[str]:
    """A distribution and what it needs, as far as it is installed; of ours the extras too."""
    found: set[str] = set()
    queue = [name]
    while queue:
        wanted = re.sub(r"[-_.]+", "-", queue.pop()).lower()
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


MARK = "installed-by-dgx-telemetry"
"""The file that says that an environment is ours to replace and to remove, and what is in it."""

HIDDEN = tuple(map(Path, ("/home", "/root", "/run/user", "/tmp", "/var/tmp")))  # noqa: S108
"""Folders that the unit does not show to the service."""

OPTIMISATIONS = (0, 2)
"""Bytecode for the command line, and for the service, whose PYTHONOPTIMIZE is 2: it may write none
itself, and without any it takes twice the time to start and 6 MiB more memory."""

VERSION = "{}.{}".format(*sys.version_info)

PACKAGES = Path("lib") / f"python{VERSION}" / "site-packages"

COMMAND = Path("bin/dgx-telemetry")

SCRIPT = """#!{python}
import sys
from agent.__main__ import main
sys.exit(main())
"""


def interpreter() -> Path:
    """The Python below this environment; raises BadInput where a service could not run it."""
    python = (Path(sys.base_prefix) / "bin" / f"python{VERSION}").resolve()
    if any(python.is_relative_to(folder) for folder in HIDDEN):
        raise BadInput(
            f"a service cannot run {python}, because it may not see that folder: install with a "
            "Python of the system, such as /usr/bin/python3"
        )
    return python


@dataclass(frozen=True, slots=True)
class OwnEnvironment:
    """A virtual environment of the service's own, with a copy of the program that runs this: as it
    is here, without a network and without pip."""

    home: Path
    program: Callable[[], ProgramFiles] = running_program
    python: Callable[[], Path] = interpreter

    def right(self) -> bool:
        mark = self.home / MARK
        newest = mark.exists() and mark.read_bytes() == self._content().encode()
        needed = (self.home / PACKAGES / name for name in self.program().files)
        whole = all(path.exists() for path in needed)
        runs = os.access(self.home / "bin" / "python", os.X_OK)
        return newest and whole and runs and not any(map(Path.exists, self._aside()))

    def there(self) -> bool:
        return (self.home / MARK).exists() or any(map(Path.exists, self._aside()))

    def putting(self) -> str:
        verb = "replace" if self.home.exists() else "make"
        what = f"dgx-telemetry {self.program().version} for Python {VERSION}"
        return f"{verb} the virtual environment {self.home} with {what}"

    def put(self) -> None:
        """Beside its place first, so that a service that runs meanwhile finds all or nothing."""
        if self.home.exists() and not (self.home / MARK).exists():
            raise BadInput(f"{self.home} is there, and was not made by this command: move it away")
        new, old = self._clear()
        new.parent.mkdir(parents=True, exist_ok=True)
        self._build(new)
        if self.home.exists():
            self.home.rename(old)
        new.rename(self.home)
        shutil.rmtree(old, ignore_errors=True)

    def removing(self) -> str:
        return f"remove the virtual environment {self.home}"

    def remove(self) -> None:
        """Out of its place first: what is left of an interrupted removal is known as ours."""
        _, old = self._clear()
        if (self.home / MARK).exists():
            self.home.rename(old)
        self._clear()

    def _script(self) -> str:
        return SCRIPT.format(python=self.home / "bin" / "python")

    def _aside(self) -> tuple[Path, Path]:
        """Return the paths of a new environment while it is built, and of the old one while it is
        replaced."""
        name = self.home.name
        return self.home.with_name(f"{name}.new"), self.home.with_name(f"{name}.old")

    def _clear(self) -> tuple[Path, Path]:
        for left in self._aside():
            if left.exists():
                shutil.rmtree(left)
        return self._aside()

    def _build(self, new: Path) -> None:
        builder = venv.EnvBuilder(symlinks=True, with_pip=False)
        builder.create(new)
        for script in (new / "bin").glob("*ctivate*"):
            script.unlink()  # they hold the path of `new`
        for name, content in self.program().files.items():
            path = new / PACKAGES / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content.read_bytes())
        # As Path, the 3.11.0rc1 of Ubuntu 22.04 stumbles; errors will say that it lies in `home`.
        here, final = str(new / PACKAGES), str(self.home / PACKAGES)
        for level in OPTIMISATIONS:
            compileall.compile_dir(
                here, 20, optimize=level, quiet=2, stripdir=here, prependdir=final
            )
        command = new / COMMAND
        command.write_text(self._script(), encoding="utf-8")
        command.chmod(0o755)
        (new / MARK).write_text(self._content())

    def _content(self) -> str:
        return f"{self.python()} {self.program().digest()}\n"
