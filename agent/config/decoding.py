"""Values that people write into files, decoded by msgspec; what it refuses is named with its place.

Types say what is expected: a `Meta(description=...)` or `TextCheck`, the names of a Literal, the
fields of a Struct; a key that is none of them is refused. What a type cannot say, a Struct checks
in its `__post_init__`, which raises Mismatch.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec

T = TypeVar("T")

Share = Annotated[float, msgspec.Meta(gt=0, le=1, description="a number above 0 and at most 1")]

LONGEST = 60
"""Letters of a found value, or of a key, that a message shows."""


class Mismatch(ValueError):
    """Mistake in one key (dotted), in words: the value found and the value expected."""

    def __init__(self, key: str, found: str, expected: str, *, of_key: bool = False) -> None:
        super().__init__(key, found, expected)
        self.key, self.found, self.expected = key, found, expected
        self.of_key = of_key  # missing or unknown: nothing is wrong with its value

    def __str__(self) -> str:
        return f"{self.key} is {self.found}, expected {self.expected}"

    @property
    def demand(self) -> str:
        """The same for a key that may be left out: `listen must be HOST:PORT, not 'here'`."""
        return str(self) if self.of_key else f"{self.key} must be {self.expected}, not {self.found}"

    def within(self, key: str) -> "Mismatch":
        """The same, reported of a value that stands in `key`."""
        inner = f"{key}.{self.key}" if key and self.key else key or self.key
        return Mismatch(inner, self.found, self.expected, of_key=self.of_key)


@dataclass(frozen=True, slots=True)
class TextCheck:
    """Condition for a text, as a note in its type: `Annotated[str, TextCheck(is_url, "a URL")]`.

    `holds` may raise ValueError where it does not.
    """

    holds: Callable[[str], bool]
    description: str

    def admits(self, text: str) -> bool:
        try:
            return self.holds(text)
        except ValueError:
            return False


def decode(value: Any, kind: type[T], key: str = "", *, strict: bool = True) -> T:
    """`value`, as a parser of TOML or YAML gives it, as a `kind`; without `strict` also from text.

    Raises Mismatch for the innermost value that is wrong; `key` is the name of this one.
    """
    try:
        decoded = msgspec.convert(value, kind, strict=strict, dec_hook=_pattern)
    except msgspec.ValidationError as error:
        raise _blamed(value, kind, key, error.__cause__, strict) from error
    _check_texts(value, kind, key)
    return decoded


def _pattern(_: Any, value: Any) -> re.Pattern[str]:
    """The one type here that msgspec does not know."""
    if not isinstance(value, str):
        raise TypeError
    try:
        return re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _check_texts(value: Any, kind: Any, key: str) -> None:
    _, _, check = _taken_apart(kind)
    if check and isinstance(value, str) and not check.admits(value):
        raise Mismatch(key, shown(value), check.description)
    for part, inner, name in _parts(value, kind, key):
        _check_texts(part, inner, name)


def _blamed(value: Any, kind: Any, key: str, cause: BaseException | None, strict: bool) -> Mismatch:
    _, described, _ = _taken_apart(kind)
    if described is None:
        try:
            for part, inner, name in _parts(value, kind, key):
                decode(part, inner, name, strict=strict)
        except Mismatch as wrong:
            return wrong
    if isinstance(cause, Mismatch):
        return cause.within(key)
    return Mismatch(key, shown(value), expectation(kind, key))


def _parts(value: Any, kind: Any, key: str) -> list[tuple[Any, Any, str]]:
    """The parts of a table or list with their types and names; raises Mismatch for a wrong key."""
    kind, _, _ = _taken_apart(kind)
    place = f"{key}." if key else ""
    if isinstance(value, list) and get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        return [(part, inner, f"{key}[{index}]") for index, part in enumerate(value)]
    if isinstance(value, dict) and get_origin(kind) is dict:
        return [(part, get_args(kind)[1], f"{place}{name}") for name, part in value.items()]
    if not isinstance(value, dict) or not _is_table(kind):
        return []
    fields = fields_of(kind)
    for name in value:
        if name not in fields:
            raise unknown(name, fields).within(key)
    for name, field in fields.items():
        if field.required and name not in value:
            wanted = expectation(field.type, place + name)
            raise Mismatch(place + name, "missing", wanted, of_key=True)
    return [(part, fields[name].type, place + name) for name, part in value.items()]


@cache
def fields_of(kind: Any) -> Mapping[str, msgspec.structs.FieldInfo]:
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def unknown(key: Any, known: Any) -> Mismatch:
    name = f"{key}" if isinstance(key, str) and key.isprintable() else f"{key!r}"
    expected = f"one of {', '.join(known)}"
    return Mismatch(f"{name:.{LONGEST}}", "not a known key", expected, of_key=True)


def expectation(kind: Any, key: str) -> str:
    """Return the expected value of a type, in words."""
    kind, described, _ = _taken_apart(kind)
    origin = get_origin(kind)
    if described is not None:
        return described
    if origin is Literal:
        names = [str(name) for name in get_args(kind)]
        return names[0] if len(names) == 1 else f"one of {', '.join(names)}"
    if _is_table(kind):
        required = [name for name, field in fields_of(kind).items() if field.required]
        return f"a table with {', '.join(required)}" if required else "a table"
    if origin is tuple:
        tables = _is_table(get_args(kind)[0])
        return f"an array of tables, written as [[{key}]]" if tables else "a list"
    return WORDS[origin or kind]


WORDS = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    re.Pattern: "a regular expression",
    dict: "a table",
}


def _is_table(kind: Any) -> bool:
    kind = get_origin(kind) or kind
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _taken_apart(kind: Any) -> tuple[Any, str | None, TextCheck | None]:
    """A type without None and notes, the words that it brings along, and its check."""
    bare, *notes = get_args(kind) or (kind,)
    if notes == [type(None)]:
        return _taken_apart(bare)
    if get_origin(kind) is not Annotated:
        return kind, None, None
    words = (n.description for n in notes if isinstance(n, msgspec.Meta | TextCheck))
    check = next((note for note in notes if isinstance(note, TextCheck)), None)
    return bare, next(words, None), check


def shown(value: Any) -> str:
    """A found value as a short text on one line."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, str) and not value.strip():
        return "empty"
    try:
        text = repr(value)
    except ValueError:  # Python prints no integer of more than 4300 digits
        return "a number without end"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
