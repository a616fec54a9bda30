"""Files written whole or not at all: beside their place, then renamed.

The way to a place may lead through folders of other users, who can change it at any moment: links
of theirs are refused, and what is written goes into a folder that is held open.
"""

import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter
from pathlib import Path
from typing import NamedTuple

from agent.errors import BadInput

MAKE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
MOST_LINKS = 40
"""Links that the kernel follows at most."""

OPEN_FILE = re.compile(r"/proc/\d+/.+")
"""Links of /proc to what a process has open, as behind /dev/stdout: their text is no path."""


class FoundPlace(NamedTuple):
    """An open folder, the path of a file there, without links, and what has that name now, None
    where it is free."""

    folder: int
    path: Path
    found: os.stat_result | None


@contextmanager
def following(path: Path, *, make: bool = False) -> Iterator[FoundPlace]:
    """Return the place that `path` leads to; with `make`, create missing folders above it.

    Raises BadInput where it cannot be followed, or where another user may have chosen where it
    leads: by a link of theirs, or by one of root's in a folder that they can write to.
    """
    try:
        absolute = path if path.is_absolute() else Path.cwd() / path
    except FileNotFoundError as error:
        raise BadInput(f"{path}: the current folder is gone, expected a path from /") from error
    try:
        at = _resolved(absolute, path)
        for one in (above for above in reversed(at.parents) if not above.is_dir()):
            if one.exists() or not make:
                raise BadInput(f"{one}: is not a folder, expected one to write {path.name}")
        if make:
            at.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(at.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        what = "made" if make else "followed"
        raise BadInput(f"{path}: cannot be {what}: {error.strerror}") from error
    try:
        # A link that came after the look at it has led elsewhere.
        if Path(f"/proc/self/fd/{folder}").readlink() != at.parent:
            raise BadInput(f"{path}: its folders change meanwhile, expected none of another user")
        found = None
        with suppress(FileNotFoundError):
            found = os.stat(at.name, dir_fd=folder, follow_symlinks=False)
        yield FoundPlace(folder, at, found)
    finally:
        os.close(folder)


def _resolved(absolute: Path, path: Path) -> Path:
    left, at, links = [*reversed(absolute.parts[1:])], Path("/"), 0
    while left:
        name = left.pop()
        here = at.parent if name == ".." else at / name
        if not here.is_symlink():
            at = here
            continue
        links += 1
        _check_link(path, here, links)
        target = here.readlink()
        left += reversed(target.parts[target.is_absolute() :])
        at = Path("/") if target.is_absolute() else at
    return at


def _check_link(path: Path, link: Path, links: int) -> None:
    owner, of, own = link.lstat().st_uid, link.parent.stat(), (0, os.geteuid())
    # Others can change it, or where the folder is sticky as /tmp is, their own.
    shared = of.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not of.st_mode & stat.S_ISVTX
    if OPEN_FILE.fullmatch(str(link)):
        raise BadInput(f"{path}: is an open file of a process, expected the name of a file")
    if owner not in own or (owner == 0 and (shared or of.st_uid not in own)):
        at = f"{path}:" if link == path else f"{path}: {link}"
        raise BadInput(f"{at} is a link that another user may have made, expected none")
    if links > MOST_LINKS:
        raise BadInput(f"{path}: its links lead in a circle")


@contextmanager
def _beside(path: Path, *, make: bool = False) -> Iterator[tuple[FoundPlace, str, BufferedWriter]]:
    """Return a new file beside the one to write, which is gone at the end."""
    with following(path, make=make) as place:
        if place.path.name in ("", "-"):
            raise BadInput(f"'{path}' is not the name of a file, expected one to write")
        if place.found is not None and not stat.S_ISREG(place.found.st_mode):
            raise BadInput(f"{path}: is not a regular file, expected one or a free name")
        name = f".{place.path.name}.{secrets.token_hex(4)}"
        try:
            with open(os.open(name, MAKE, 0o600, dir_fd=place.folder), "wb") as file:
                yield place, name, file
        except OSError as error:
            why = error.strerror or error
            raise BadInput(f"{path}: cannot be written: {why}") from error
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=place.folder)


def check_target(path: Path) -> os.stat_result | None:
    """The file that one written to `path` would replace, None where the name is free; raises
    BadInput where it could not, or must not, be replaced."""
    with _beside(path) as (place, _, _):
        return place.found


def atomic_write(path: Path, content: bytes, mode: int = 0o600, *, make: bool = False) -> None:
    """Put `content` at `path`, through a link where it is one, into folders that are made with
    `make`; on failure all stays as it was.

    Raises BadInput with one sentence.
    """
    with _beside(path, make=make) as (place, beside, file):
        file.write(content)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())
        folder = place.folder
        os.replace(beside, place.path.name, src_dir_fd=folder, dst_dir_fd=folder)
