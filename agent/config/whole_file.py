"""Files written whole or not at all: beside their place, then renamed."""

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.errors import BadInput

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class NoRoom(BadInput):
    """The disk is full, or a quota is used up."""


def check_target(path: Path) -> None:
    """Raise BadInput where a file at `path` could not, or must not, be replaced."""
    if path.name in ("", "-"):
        raise BadInput(f"'{path}' is no name of a file, expected one to write")
    if path.exists() and not path.is_file():
        raise BadInput(f"{path}: is a folder or a device, expected a file or a free name")
    if not path.parent.is_dir():
        raise BadInput(f"{path.parent}: is not a folder, expected where to write {path.name}")


MOST_LINKS = 40
"""As the kernel follows."""


def placed(path: Path) -> Path:
    """Where `path` leads to; raises BadInput where that cannot be followed, or where somebody else
    leads there: by a link of another user in a folder that all may write to, which the kernel's
    fs.protected_symlinks refuses."""
    try:
        left = [*reversed((path if path.is_absolute() else Path.cwd() / path).parts)]
    except FileNotFoundError as error:
        raise BadInput(f"{path}: the current folder is gone, expected a path from /") from error
    at, links = Path(left.pop()), 0
    try:
        while left:
            part = left.pop()
            here = at.parent if part == ".." else at / part
            if not here.is_symlink():
                at = here
                continue
            if _is_anothers(here):
                raise BadInput(f"{path}: {here} is a link of another user, expected none")
            links += 1
            if links > MOST_LINKS:
                raise BadInput(f"{path}: its links lead in a circle")
            target = here.readlink()
            left += reversed(target.parts)
            if target.is_absolute():
                at = Path(left.pop())
    except OSError as error:
        raise BadInput(f"{path}: cannot be followed: {error.strerror}") from error
    return at


def _is_anothers(link: Path) -> bool:
    """Whether a link in a sticky folder that all may write to is neither ours nor its owner's."""
    folder, owner = link.parent.stat(), link.lstat().st_uid
    shared = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
    return bool(shared) and owner not in (os.geteuid(), folder.st_uid)


class ReplacingFile:
    """An empty file beside `path`, made at once, that takes its place with its content.

    `path` may be a link; until `replace`, and on failure, all stays as it was, and the end of the
    `with` leaves nothing else behind. Raises BadInput with one sentence.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = placed(path)
        check_target(self._place)
        with self._as_bad_input():
            name, folder = self._place.name, self._place.parent
            self._handle, self._beside = tempfile.mkstemp(prefix=f".{name}.", dir=folder)

    def __enter__(self) -> "ReplacingFile":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)
        Path(self._beside).unlink(missing_ok=True)

    def reserve(self, size: int) -> None:
        """Take so many bytes of the disk; raises NoRoom where it has less."""
        with self._as_bad_input():
            os.posix_fallocate(self._handle, 0, size)

    @property
    def written(self) -> int:
        """How many bytes there was room for."""
        return os.lseek(self._handle, 0, os.SEEK_CUR)

    def replace(self, content: bytes, mode: int = 0o600) -> None:
        """Put the content at `path`; after NoRoom, less may be tried."""
        with self._as_bad_input():
            os.lseek(self._handle, 0, os.SEEK_SET)
            left = memoryview(content)
            while left:
                left = left[os.write(self._handle, left) :]
            os.ftruncate(self._handle, len(content))
            os.fchmod(self._handle, mode)
            os.fsync(self._handle)
            Path(self._beside).replace(self._place)

    @contextmanager
    def _as_bad_input(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            refusal = NoRoom if error.errno in FULL else BadInput
            why = error.strerror or error
            raise refusal(f"{self._path}: cannot be written: {why}") from error


def write_whole(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Put `content` at `path`, through a link where it is one; on failure all stays as it was.

    Raises BadInput with one sentence.
    """
    with ReplacingFile(path) as file:
        file.replace(content, mode)
