"""The virtual environment of the service: a copy of the running program, which is its own packages
and every distribution that it needs."""

import compileall
import re
import shutil
import sys
import venv
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path, PurePosixPath

import agent
from agent.errors import BadInput

SOURCE_FOLDER = Path(__file__).parents[2] / "deploy"
SHIPPED = Path(__file__).parent / "deploy"
"""A wheel carries these files here; a source tree has them in their own place."""

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
    """The text of a file of NAMES."""
    return next(f for f in (SHIPPED / name, SOURCE_FOLDER / name) if f.exists()).read_text("utf-8")


DISTRIBUTION = "dgx-telemetry"
OWN_PACKAGES = ("agent", "alerts", "dashboards", "exporters")
CACHE = "__pycache__"

Content = Path | str
"""A file to copy, or its text."""


def running_program() -> dict[str, Content]:
    """Return the files of the program that runs this, wheel or source tree, by their path below
    site-packages. Raises BadInput if a distribution does not report its files."""
    files: dict[str, Content] = {}
    for name in sorted(needed(DISTRIBUTION)):
        files.update(recorded(name))
    source = Path(agent.__file__).parents[1]
    for path in (path for package in OWN_PACKAGES for path in (source / package).rglob("*")):
        if path.is_file() and CACHE not in path.parts:
            files[path.relative_to(source).as_posix()] = path
    for name in NAMES:
        files[f"agent/service/deploy/{name}"] = shipped(name)
    return files


def needed(name: str) -> set[str]:
    """A distribution and its requirements, as far as they are installed; of ours the extras too."""
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
    """The files that were recorded when this distribution was installed; of our own only its
    metadata, for the rest may lie in a source tree."""
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
"""The file that marks an environment as ours to replace and to remove."""

HIDDEN_FOLDERS = tuple(map(Path, ("/home", "/root", "/run/user", "/tmp", "/var/tmp")))  # noqa: S108
"""Folders that the unit does not show to the service."""

OPTIMISATIONS = (0, 2)
"""Bytecode for the command line, and for the service, which starts itself with `-OO`: it may write
no bytecode, and without it takes twice the time to start and 6 MiB more memory."""

VERSION = "{}.{}".format(*sys.version_info)

PACKAGES = Path("lib") / f"python{VERSION}" / "site-packages"

COMMAND = Path("bin/dgx-telemetry")

SCRIPT = """#!{python}
import sys
from agent.__main__ import main
sys.exit(main())
"""


def check_python() -> None:
    """Raise BadInput if a service could not run the Python below this environment."""
    python = (Path(sys.base_prefix) / "bin" / f"python{VERSION}").resolve()
    if any(python.is_relative_to(folder) for folder in HIDDEN_FOLDERS):
        raise BadInput(
            f"a service cannot run {python}, because it may not see that folder: install with a "
            "Python of the system, such as /usr/bin/python3"
        )


def put(home: Path, files: Mapping[str, Content]) -> None:
    """Make a virtual environment at `home` with these files, without a network and without pip;
    beside its place first, so that a service that runs meanwhile finds all files or none."""
    if home.exists() and not (home / MARK).exists():
        raise BadInput(f"{home} is there, and was not made by this command: move it away")
    new, old = home.with_name(f"{home.name}.new"), home.with_name(f"{home.name}.old")
    remove(new, old)
    new.parent.mkdir(parents=True, exist_ok=True)
    _build(new, home, files)
    if home.exists():
        home.rename(old)
    new.rename(home)
    remove(old)


def remove(*folders: Path) -> None:
    for folder in folders:
        if folder.is_symlink():
            folder.unlink()
        elif folder.exists():
            shutil.rmtree(folder)


def _build(new: Path, home: Path, files: Mapping[str, Content]) -> None:
    venv.EnvBuilder(symlinks=True, with_pip=False).create(new)
    for script in (new / "bin").glob("*ctivate*"):
        script.unlink()  # they hold the path of `new`
    for name, content in files.items():
        path = new / PACKAGES / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content.read_bytes())
    # As Path, the 3.11.0rc1 of Ubuntu 22.04 stumbles; errors will say that it lies in `home`.
    here, final = str(new / PACKAGES), str(home / PACKAGES)
    for level in OPTIMISATIONS:
        compileall.compile_dir(here, 20, optimize=level, quiet=2, stripdir=here, prependdir=final)
    command = new / COMMAND
    command.write_text(SCRIPT.format(python=home / "bin" / "python"), encoding="utf-8")
    command.chmod(0o755)
    (new / MARK).touch()
