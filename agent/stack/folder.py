"""The folder in which the stack keeps its data: locked while in use, removed if it is temporary."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agent.errors import BadInput

PREFIX = "dgx-telemetry-up-"
LOCK = "lock"
SETTLED = 10.0
"""Seconds after which a lock file that nobody holds is a leftover, not one about to be locked."""


@contextmanager
def data_folder(wanted: Path | None) -> Iterator[Path]:
    """The folder that was named, which stays; else a temporary one.

    Raises BadInput where it cannot be made, or another stack uses it.
    """
    if wanted is None:
        sweep(Path(tempfile.gettempdir()))
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    else:
        folder = _made(wanted.absolute())
    handle = _locked(folder)
    try:
        yield folder
    finally:
        if wanted is None:
            shutil.rmtree(folder)
        os.close(handle)


def sweep(place: Path) -> None:
    """Remove what stacks that were killed with signal 9 left of theirs: nobody holds its lock."""
    for lock in place.glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError), lock.open("r+") as file:  # of another user, in use, or gone
            if time.time() - lock.stat().st_mtime > SETTLED:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent)


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--data {folder}: cannot be made: {error.strerror}") from error
    return folder


def _locked(folder: Path) -> int:
    """The handle that holds the folder's lock until it is closed."""
    try:
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise BadInput(f"--data {folder}: another `up` uses this folder") from error
    except OSError as error:
        raise BadInput(f"--data {folder}: cannot be written: {error.strerror}") from error
    return handle
