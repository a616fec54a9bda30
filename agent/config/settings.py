"""The settings in force. Users of a setting, on any thread, read `configuration.current` each time
and keep no copy, because a reload replaces the settings as a whole."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, cast

import msgspec

from agent.errors import BadInput

T = TypeVar("T")


class Section(msgspec.Struct, frozen=True):
    """Settings of a package: each field is a key with its expected type and default value.

    `table` is the TOML table of the keys, empty for the top level; sections may share a table.
    `at_start` lists keys whose changes require a restart, `guards` keys that stay in force if a
    reload no longer contains them, and `retired` keys that no longer have an effect. `subtables`
    names the field that receives all tables with other names below `table`.
    """

    table: ClassVar[str]
    at_start: ClassVar[tuple[str, ...]] = ()
    guards: ClassVar[tuple[str, ...]] = ()
    retired: ClassVar[tuple[str, ...]] = ()
    subtables: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class FileKeys:
    """The keys that the configuration file contains."""

    names: frozenset[str] = frozenset()


class Settings:
    """An immutable configuration: `settings[DiskConfig].ignore`.

    Sections that were not given have their defaults. A configuration may also hold an object that
    is derived from sections and costly to create (the system), looked up by its type.
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
        """Return a copy of the settings in which the values replace those of the same types."""
        return Settings(*self._values.values(), *values)

    def needing_restart(self, before: "Settings") -> Iterator[tuple[str, Any, Any]]:
        """Yield the keys whose changes require a restart: name, old value, and new value."""
        for kind in {**before.sections, **self.sections}:
            for name in kind.at_start:
                old, new = getattr(before[kind], name), getattr(self[kind], name)
                if old != new:
                    yield f"{kind.table}.{name}" if kind.table else name, old, new

    def check_guards(self, before: "Settings") -> None:
        """Raise BadInput if the file lost all keys, or a guard of `before` without an explicit
        empty value, because its writer may have been interrupted."""
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
