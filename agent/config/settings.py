"""The current settings. Code on any thread reads `configuration.current` each time it needs a
setting. It keeps no copy, because a reload replaces all settings."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, cast

import msgspec

T = TypeVar("T")


class Section(msgspec.Struct, frozen=True):
    """A section of the configuration. Each field is a key with its type and default value.

    `table` is the TOML table of the keys, or empty for the top level. Several sections may share a
    table. `at_start` contains keys that take effect only after a restart, and `retired` contains
    keys that no longer have an effect. `subtables` is the name of the field that contains the
    tables whose names the user chooses.
    """

    table: ClassVar[str]
    at_start: ClassVar[tuple[str, ...]] = ()
    retired: ClassVar[tuple[str, ...]] = ()
    subtables: ClassVar[str] = ""


class Settings:
    """Immutable settings by section, as in `settings[DiskConfig].ignore`.

    A section that was not given has default values. Settings may also contain objects that are
    expensive to compute from sections, such as the spec sheet of the system.
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
        """Return a copy in which `values` replace the sections of the same types."""
        return Settings(*self._values.values(), *values)

    def needing_restart(self, before: "Settings") -> Iterator[tuple[str, Any, Any]]:
        """Yield the keys that changed and require a restart, with their old and new values."""
        for kind in {**before.sections, **self.sections}:
            for name in kind.at_start:
                old, new = getattr(before[kind], name), getattr(self[kind], name)
                if old != new:
                    yield f"{kind.table}.{name}" if kind.table else name, old, new

    @property
    def sections(self) -> dict[type[Section], Section]:
        given = {k: v for k, v in list(self._values.items()) if issubclass(k, Section)}
        return {kind: section for kind, section in given.items() if section != kind()}


@dataclass(slots=True, eq=False)
class Configuration:
    """Holds the current settings, which a reload replaces."""

    current: Settings = field(default_factory=Settings)
