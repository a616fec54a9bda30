"""Checked access to one TOML table: a complaint names file, key, what was found and expected."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agent.specs.sheets import SpecError

LARGE = 1e15
"""No figure of a spec sheet comes near; infinity, NaN and endless integers stay outside."""

_KINDS = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list"}


@dataclass(frozen=True, slots=True)
class Table:
    """One TOML table of `file` at `key` (dotted; empty for the whole file)."""

    file: str
    key: str
    content: Mapping[str, Any]

    def at(self, key: str) -> str:
        return f"{self.key}.{key}" if self.key else key

    def wrong(self, key: str, found: str, expected: str) -> SpecError:
        return SpecError(f"{self.file}: {self.at(key)} is {found}, expected {expected}.")

    def only(self, known: Iterable[str]) -> None:
        """Raise SpecError for a key that is not `known`."""
        known = tuple(known)
        for key in self.content:
            if key not in known:
                raise self.wrong(key, "not a known key", f"one of {', '.join(known)}")

    def has(self, key: str) -> bool:
        return key in self.content

    def _typed(self, key: str, kinds: tuple[type, ...], expected: str) -> Any:
        if key not in self.content:
            raise self.wrong(key, "missing", expected)
        value = self.content[key]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self.wrong(key, shown(value), expected)
        return value

    def text(self, key: str, expected: str = "text that is not empty") -> str:
        value: str = self._typed(key, (str,), expected)
        if not value.strip():
            raise self.wrong(key, "empty", expected)
        return value

    def optional_text(self, key: str) -> str:
        return self.text(key) if self.has(key) else ""

    def choice(self, key: str, options: Iterable[str]) -> str:
        options = tuple(options)
        expected = options[0] if len(options) == 1 else f"one of {', '.join(options)}"
        value = self.text(key, expected)
        if value not in options:
            raise self.wrong(key, shown(value), expected)
        return value

    def number(self, key: str, expected: str = "a finite number") -> float:
        value: float = self._typed(key, (int, float), expected)
        if not -LARGE < value < LARGE:
            raise self.wrong(key, shown(value), expected)
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        expected = "a list of text that is not empty"
        values: list[Any] = self._typed(key, (list,), expected)
        if not values or not all(isinstance(value, str) and value.strip() for value in values):
            raise self.wrong(key, shown(values), expected)
        return tuple(values)

    def rows(self, key: str, expected: str) -> list[Any]:
        value: list[Any] = self._typed(key, (list,), expected)
        return value

    def table(self, key: str) -> "Table":
        expected = "a table"
        return Table(self.file, self.at(key), self._typed(key, (dict,), expected))

    def tables(self, key: str) -> list["Table"]:
        """The tables of an array of tables; none where the key is not there."""
        if not self.has(key):
            return []
        expected = "an array of tables"
        rows = self.rows(key, expected)
        if not all(isinstance(row, dict) for row in rows):
            raise self.wrong(key, shown(rows), expected)
        return [Table(self.file, f"{self.at(key)}[{i}]", row) for i, row in enumerate(rows)]


def shown(value: Any) -> str:
    """A found value as a short text on one line."""
    if isinstance(value, dict):
        return "a table"
    text = repr(value)
    return text if len(text) <= 60 else _KINDS.get(type(value), "something else")
