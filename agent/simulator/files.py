"""Files of the simulated host, each written when it is read."""

import errno
import os
from collections.abc import Callable, Mapping
from functools import partial

from agent.hardware.files import FileTree
from agent.simulator import cgroup_files, process_files, procfs, sysfs
from agent.simulator.machine import Machine

Content = Callable[[], str]


class SimulatedFiles(FileTree):
    """/proc and /sys. What stays is listed once; processes come and go."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._files: dict[str, Content] = {
            **_written(sysfs.tree(machine)),
            **procfs.tree(machine),
            **cgroup_files.tree(machine),
        }
        self._unlisted = _written(sysfs.unlisted(machine))
        self._links: Mapping[str, str] = sysfs.links(machine)
        self._folders = _folders([*self._files, *self._links])

    def read(self, path: str) -> str:
        with self._machine.lock:
            self._machine.advance()
            own = self._files.get(path) or self._unlisted.get(path)
            content = own or process_files.content_of(self._machine, path)
            if content is None:
                raise _missing(errno.EISDIR if self._is_folder(path) else errno.ENOENT, path)
            return content()

    def names(self, path: str) -> list[str]:
        with self._machine.lock:
            self._machine.advance()
            path = path.rstrip("/") or "/"
            listed = self._folders.get(path, set()) | process_files.names(self._machine, path)
        if not listed:
            raise _missing(errno.ENOTDIR if path in self._files else errno.ENOENT, path)
        return sorted(listed)

    def link(self, path: str) -> str:
        if path in self._links:
            return self._links[path]
        known = path in self._files or self._is_folder(path)
        raise _missing(errno.EINVAL if known else errno.ENOENT, path)

    def _is_folder(self, path: str) -> bool:
        return path in self._folders or bool(process_files.names(self._machine, path))


def _written(files: sysfs.Tree) -> dict[str, Content]:
    """Files of one line, each with its end."""

    def text(content: sysfs.Content) -> str:
        return f"{content() if callable(content) else content}\n"

    return {path: partial(text, content) for path, content in files.items()}


def _folders(paths: list[str]) -> dict[str, set[str]]:
    """Every folder above these paths, with the names in it."""
    folders: dict[str, set[str]] = {}
    for path in paths:
        folder, name = _split(path)
        while name:
            folders.setdefault(folder, set()).add(name)
            folder, name = _split(folder)
    return folders


def _split(path: str) -> tuple[str, str]:
    above, _, name = path.rpartition("/")
    return above or "/", name


def _missing(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
