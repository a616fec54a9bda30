"""The settings in force. A user of a setting asks `configuration.current` each time and keeps no
copy, from any thread; a reload replaces the settings whole.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, cast

import msgspec

from agent.errors import BadInput

T = TypeVar("T")


class Section(msgspec.Struct, frozen=True):
    """Settings of a package: a field is a key, its type the expected type, its default the default.

    `table` is the TOML table of the keys, empty for the top of the file; sections may share a
    table. `at_start` names the keys of which another value needs a restart, `guards` the keys that
    stay in force if a reload no longer has them, `retired` keys that have no effect any more,
    `subtables` the field that takes every table of another name below `table`.
    """

    table: ClassVar[str]
    at_start: ClassVar[tuple[str, ...]] = ()
    guards: ClassVar[tuple[str, ...]] = ()
    retired: ClassVar[tuple[str, ...]] = ()
    subtables: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class FileKeys:
    """The keys that the file of the configuration has."""

    names: frozenset[str] = frozenset()


class Settings:
    """A configuration, never changed: `settings[DiskConfig].ignore`.

    A section that it did not get has its defaults. It may also hold an object that follows from the
    sections alone and is costly to make (the system), found by its type in the same way.
    """

    __slots__ = ("_values",)

    def __init__(self, *values: object) -> None:
        self._values: dict[type, Any] = {type(value): value for value in values}

    def __getitem__(self, kind: type[T]) -> T:
        value = self._values.get(kind)
        if value is None:
            value = self._values[kind] = kind()
        return cast("T", value)

    def including(self, *values: object) -> "Settings":
        """The same settings with these values in place of those of their types."""
        return Settings(*self._values.values(), *values)

    def needing_restart(self, before: "Settings") -> Iterator[tuple[str, Any, Any]]:
        """The keys whose new value needs a restart: name, value before and value here."""
        for kind in {**before.sections, **self.sections}:
            for name in kind.at_start:
                old, new = getattr(before[kind], name), getattr(self[kind], name)
                if old != new:
                    yield f"{kind.table}.{name}" if kind.table else name, old, new

    def check_guards(self, before: "Settings") -> None:
        """Raise BadInput if the file no longer has a guard of `before`, not even empty, or any key:
        its writer may have been interrupted."""
        here = self[FileKeys].names
        if before[FileKeys].names and not here:
            raise BadInput("the configuration has no key any more; a restart takes the defaults")
        for kind in before.sections:
            for name in (name for name in kind.guards if name not in here):
                if getattr(before[kind], name) and not getattr(self[kind], name):
                    raise BadInput(f"{name} is gone from the configuration, expected it, or empty")

    @property
    def sections(self) -> dict[type[Section], Section]:
        given = {k: v for k, v in list(self._values.items()) if issubclass(k, Section)}
        return {kind: section for kind, section in given.items() if section != kind()}


@dataclass(slots=True, eq=False)
class Configuration:
    """Holds the settings in force."""

    current: Settings = field(default_factory=Settings)
