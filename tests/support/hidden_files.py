"""Files of a machine, of which some cannot be read, as behind hidepid or in a container."""

from os import strerror
from re import search
from typing import Any

from agent.hardware.files import FileTree

CHILD = r"^/proc/99999\b"
"""A child that each process has then."""


class HiddenFiles:
    """The files, but those whose path has `hidden`: they raise this error."""

    def __init__(self, files: FileTree, hidden: str, error: int) -> None:
        self._files, self.hidden, self._error = files, hidden, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def _checked(self, path: str) -> str:
        if search(self.hidden, path):
            raise OSError(self._error, strerror(self._error), path)
        return path

    def read(self, path: str) -> str:
        text = self._files.read(self._checked(path))
        return f"{text} 99999" if self.hidden == CHILD and path.endswith("/children") else text

    def reread(self, path: str) -> str:
        return self._files.reread(self._checked(path))

    def names(self, path: str) -> list[str]:
        return self._files.names(self._checked(path))

    def link(self, path: str) -> str:
        return self._files.link(self._checked(path))
