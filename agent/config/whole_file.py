"""Files written whole or not at all: beside their place, then renamed."""

import os
import tempfile
from pathlib import Path

from agent.errors import BadInput


def check_target(path: Path) -> None:
    """Raise BadInput where a file at `path` could not, or must not, be replaced."""
    if not path.name:
        raise BadInput(f"'{path}' is no name of a file, expected one to write")
    if path.exists() and not path.is_file():
        raise BadInput(f"{path}: is a folder or a device, expected a file or a free name")
    if not path.parent.is_dir():
        raise BadInput(f"{path.parent}: is not a folder, expected where to write {path.name}")


def write_whole(path: Path, content: bytes) -> None:
    """Put `content` at `path`, through a link where it is one; on failure all stays as it was.

    Raises BadInput with one sentence.
    """
    place = path.resolve()
    check_target(place)
    beside = ""
    try:
        handle, beside = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(beside).replace(place)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        if beside:
            Path(beside).unlink(missing_ok=True)
