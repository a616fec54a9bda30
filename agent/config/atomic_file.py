"""Files written whole or not at all: beside their place, then renamed.

The way to a place may lead through folders of other users, who can change it at any moment: it is
walked folder by folder, each held open, and what is written goes into the folder that was found.
"""

import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from agent.errors import BadInput

LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
MAKE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

MOST_LINKS = 40
"""Links that the kernel follows at most."""

OPEN_FILE = re.compile(r"/proc/\d+/.+")
"""Links of /proc to what a process has open, as behind /dev/stdout: their text is no path."""


class FoundPlace(NamedTuple):
    """A name in an open folder, and what has that name now, None where it is free; `path` is where
    both were found."""

    folder: int
    name: str
    path: Path
    found: os.stat_result | None

    @property
    def is_safe(self) -> bool:
        """Return whether only root and this user can write to the folder, or, where it is sticky as
        /tmp is, take away what is theirs."""
        of = os.fstat(self.folder)
        shared = of.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not of.st_mode & stat.S_ISVTX
        return not shared and of.st_uid in (0, os.geteuid())


@contextmanager
def following(path: Path, *, make: bool = False) -> Iterator[FoundPlace]:
    """Return the places that `path` leads to; with `make`, create missing folders above it.

    Raises BadInput where it cannot be followed, or where another user may have chosen where it
    leads: by a link of theirs, or by one of root's in a folder that they can write to.
    """
    try:
        parts = (path if path.is_absolute() else Path.cwd() / path).parts
    except FileNotFoundError as error:
        raise BadInput(f"{path}: the current folder is gone, expected a path from /") from error
    with ExitStack() as held:
        try:
            place = _followed(held, path, [*reversed(parts)], make=make)
        except OSError as error:
            what = "made" if make else "followed"
            raise BadInput(f"{path}: cannot be {what}: {error.strerror}") from error
        yield place


def _followed(held: ExitStack, path: Path, left: list[str], *, make: bool) -> FoundPlace:
    def entered(name: str, folder: int | None) -> int:
        entry = os.open(name, LOOK, dir_fd=folder)
        held.callback(os.close, entry)
        return entry

    at, links = Path(left.pop()), 0
    top = folder = entered("/", None)
    place = FoundPlace(folder, "", at, os.fstat(folder))
    while left:
        name = left.pop()
        here = at.parent if name == ".." else at / name
        try:
            with suppress(FileExistsError):
                if make and left:
                    os.mkdir(name, 0o755, dir_fd=folder)
            entry = entered(name, folder)
        except (FileNotFoundError, NotADirectoryError) as error:
            if isinstance(error, FileNotFoundError) and not left:
                return FoundPlace(folder, name, here, None)
            missing = here if isinstance(error, FileNotFoundError) else at
            why = f"{missing}: is not a folder, expected one to write {path.name}"
            raise BadInput(why) from error
        found = os.fstat(entry)
        place = FoundPlace(folder, name, here, found)
        if stat.S_ISLNK(found.st_mode):
            links += 1
            _check_link(path, place, found.st_uid, links)
            target = Path(os.readlink("", dir_fd=entry))
            left += reversed(target.parts)
            if target.is_absolute():
                at, folder = Path(left.pop()), top
        else:
            at, folder = here, entry
    return place


def _check_link(path: Path, link: FoundPlace, owner: int, links: int) -> None:
    at = f"{path}:" if link.path == path else f"{path}: {link.path}"
    if OPEN_FILE.fullmatch(str(link.path)):
        raise BadInput(f"{path}: is an open file of a process, expected the name of a file")
    if owner not in (0, os.geteuid()):
        raise BadInput(f"{at} is a link of another user, expected none")
    if owner == 0 and not link.is_safe:
        raise BadInput(f"{at} is a link in a folder that another user can write to, expected none")
    if links > MOST_LINKS:
        raise BadInput(f"{path}: its links lead in a circle")


def _replaced(path: Path, place: FoundPlace) -> os.stat_result | None:
    if place.name in ("", "-"):
        raise BadInput(f"'{path}' is not the name of a file, expected one to write")
    if place.found is not None and not stat.S_ISREG(place.found.st_mode):
        raise BadInput(f"{path}: is not a regular file, expected one or a free name")
    return place.found


def check_target(path: Path) -> os.stat_result | None:
    """The file that one written to `path` would replace, None where the name is free; raises
    BadInput where it could not, or must not, be replaced."""
    with following(path) as place:
        return _replaced(path, place)


class ReplacingFile:
    """An empty file beside `path`, made at once, that takes its place with its content; with `make`
    the folders above it are made as well.

    `path` may be a link; until `replace`, and on failure, all stays as it was, and the end of the
    `with` leaves nothing else behind. Raises BadInput with one sentence.
    """

    def __init__(self, path: Path, *, make: bool = False) -> None:
        self._path = path
        with ExitStack() as held:
            self._place = held.enter_context(following(path, make=make))
            _replaced(path, self._place)
            self._beside = f".{self._place.name}.{secrets.token_hex(4)}"
            with self._as_bad_input():
                self._handle = os.open(self._beside, MAKE, 0o600, dir_fd=self._place.folder)
            self._held = held.pop_all()

    def __enter__(self) -> "ReplacingFile":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)
        with self._held, suppress(FileNotFoundError):
            os.unlink(self._beside, dir_fd=self._place.folder)

    def replace(self, content: bytes, mode: int = 0o600) -> None:
        """Put the content at `path`."""
        with self._as_bad_input():
            left = memoryview(content)
            while left:
                left = left[os.write(self._handle, left) :]
            os.fchmod(self._handle, mode)
            os.fsync(self._handle)
            folder, name = self._place.folder, self._place.name
            os.replace(self._beside, name, src_dir_fd=folder, dst_dir_fd=folder)

    @contextmanager
    def _as_bad_input(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = error.strerror or error
            raise BadInput(f"{self._path}: cannot be written: {why}") from error


def atomic_write(path: Path, content: bytes, mode: int = 0o600, *, make: bool = False) -> None:
    """Put `content` at `path`, through a link where it is one, into folders that are made with
    `make`; on failure all stays as it was.

    Raises BadInput with one sentence.
    """
    with ReplacingFile(path, make=make) as file:
        file.replace(content, mode)
