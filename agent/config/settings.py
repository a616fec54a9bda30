"""The settings in force. Who depends on one asks `configuration.current` each time and keeps no
copy, from any thread; a reload replaces them whole.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar, cast

import msgspec

T = TypeVar("T")


class Section(msgspec.Struct, frozen=True):
    """Settings of a package: a field is a key, its type what is expected, its default the default.

    `table` is the TOML table that the keys stand in, empty for the top of the file; sections may
    share one. `at_start` names the keys of which another value needs a restart, `older` values that
    a key had in earlier versions (as text, true and false in small letters) with those of now,
    `retired` keys that earlier versions had and that do nothing any more, `subtables` the field
    that takes every table of another name below `table`.
    """

    table: ClassVar[str]
    at_start: ClassVar[tuple[str, ...]] = ()
    older: ClassVar[Mapping[str, Mapping[str, str]]] = MappingProxyType({})
    retired: ClassVar[tuple[str, ...]] = ()
    subtables: ClassVar[str] = ""


class Settings:
    """One configuration, never changed: `settings[DiskConfig].ignore`.

    A section that it was not given has its defaults. What follows from the sections alone, and is
    costly to make (spec sheets), can be given too, and is found by its type in the same way.
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
        """The keys that another value needs a restart for: name, value before and value here."""
        for kind in {**before.sections, **self.sections}:
            for name in kind.at_start:
                old, new = getattr(before[kind], name), getattr(self[kind], name)
                if old != new:
                    yield f"{kind.table}.{name}" if kind.table else name, old, new

    @property
    def sections(self) -> dict[type[Section], Section]:
        """The sections that are not their defaults."""
        given = {k: v for k, v in list(self._values.items()) if issubclass(k, Section)}
        return {kind: section for kind, section in given.items() if section != kind()}


@dataclass(slots=True, eq=False)
class Configuration:
    """Holds the settings in force."""

    current: Settings = field(default_factory=Settings)
