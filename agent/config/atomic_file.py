"""Writes files atomically: it writes a temporary file in the same directory, and renames it."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedWriter
from pathlib import Path
from stat import S_ISREG

from agent.errors import BadInput


@contextmanager
def _beside(
    path: Path, *, make: bool = False
) -> Iterator[tuple[os.stat_result | None, Path, BufferedWriter]]:
    """Yield the stat of the existing file (or None), and the path and the writer of a temporary
    file in the same directory, which is removed at the end."""
    if str(path) == "-":
        raise BadInput("- stands for no file here, expected the name of a file")
    try:
        if make:
            path.parent.mkdir(parents=True, exist_ok=True)
        found = path.lstat() if os.path.lexists(path) else None
        if found is not None and not S_ISREG(found.st_mode):
            raise BadInput(f"{path}: is not a regular file, expected one or a free name")
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with open(handle, "wb") as file:
                yield found, Path(name), file
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror or error}") from error


def check_target(path: Path) -> os.stat_result | None:
    """Return the stat of the file at `path`, or None. Raise BadInput if it is not writable."""
    with _beside(path) as (found, _, _):
        return found


def atomic_write(path: Path, content: bytes, mode: int = 0o600, *, make: bool = False) -> None:
    """Write `content` to `path`, and create parent directories if `make` is true. Never write to
    the target of a symbolic link. If writing fails, raise BadInput and leave the file unchanged."""
    with _beside(path, make=make) as (_, beside, file):
        file.write(content)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())
        beside.replace(path)
