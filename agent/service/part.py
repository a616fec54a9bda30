"""Protocol of a part of the service, and the simplest parts: files, links, folders of the
user's."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agent.config.atomic_file import atomic_write


class InstallPart(Protocol):
    """Something that the service needs on this machine. Sentences begin with a verb."""

    def right(self) -> bool:
        """Return whether the part is present and correct."""

    def there(self) -> bool:
        """Return whether anything of the part is present."""

    def putting(self) -> str:
        """Return a sentence on what `put` does."""

    def put(self) -> None:
        """Bring it there. Raises OSError or BadInput."""

    def removing(self) -> str:
        """Return a sentence on what `remove` does."""

    def remove(self) -> None:
        """Leave nothing of it. Raises OSError or BadInput."""


@dataclass(frozen=True, slots=True)
class InstalledFile:
    """A file of ours, readable for everyone; systemd is notified when a unit changes."""

    path: Path
    text: str
    reload: Callable[[], object] | None = None

    def right(self) -> bool:
        return self.there() and self.path.read_text(encoding="utf-8") == self.text

    def there(self) -> bool:
        return self.path.exists()

    def putting(self) -> str:
        return f"write {self.path}{' and have systemd read it' if self.reload else ''}"

    def put(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for left in self.path.parent.glob(f".{self.path.name}.????????"):
            left.unlink()  # of a run that was killed
        atomic_write(self.path, self.text.encode(), 0o644)
        if self.reload:
            self.reload()

    def removing(self) -> str:
        return f"remove {self.path}{' and have systemd forget it' if self.reload else ''}"

    def remove(self) -> None:
        self.path.unlink()
        if self.reload:
            self.reload()


@dataclass(frozen=True, slots=True)
class UserSettings:
    """A folder of settings: begun with one file, which is never written again, and the user's."""

    begun: InstalledFile
    also: tuple[Path, ...] = ()  # folders of the service elsewhere: drop-ins, what it remembers

    def right(self) -> bool:
        return self.begun.there()

    def there(self) -> bool:
        return any(folder.exists() for folder in self._folders())

    def putting(self) -> str:
        return f"write {self.begun.path}, every setting as a comment"

    def put(self) -> None:
        self.begun.put()

    def removing(self) -> str:
        names = " and ".join(str(folder) for folder in self._folders() if folder.exists())
        return f"remove {names} with everything in there"

    def remove(self) -> None:
        for folder in self._folders():
            if folder.is_symlink():
                folder.unlink()
            elif folder.exists():
                shutil.rmtree(folder)

    def _folders(self) -> tuple[Path, ...]:
        return (self.begun.path.parent, *self.also)


@dataclass(frozen=True, slots=True)
class InstalledLink:
    """The command where a shell finds it. What somebody else has put there stays: only a link to
    `target` is ours."""

    path: Path
    target: Path

    def right(self) -> bool:
        return self.there() or self.path.exists()

    def there(self) -> bool:
        return self.path.is_symlink() and self.path.readlink() == self.target

    def putting(self) -> str:
        return f"link {self.path} to {self.target}"

    def put(self) -> None:
        self.path.unlink(missing_ok=True)  # a link to what is gone
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.symlink_to(self.target)

    def removing(self) -> str:
        return f"remove {self.path}"

    def remove(self) -> None:
        self.path.unlink()
