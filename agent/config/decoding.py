"""Uses msgspec to decode values from users. An error message contains the key and describes the
expected value. The description comes from a `Meta(description=...)`, a `TextCheck`, the values of a
Literal, or the keys of a Struct."""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin

import msgspec

T = TypeVar("T")

Share = Annotated[float, msgspec.Meta(gt=0, le=1, description="a number above 0 and at most 1")]

LETTERS = 60
"""Maximum number of characters of a value or key in an error message."""


class Mismatch(ValueError):
    """Raised for an invalid value of a key, such as `a.b`. The message describes the error."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key}: {why}" if key else why)


@dataclass(frozen=True, slots=True)
class TextCheck:
    """A condition on a string, which is part of the type of a key: `Annotated[str,
    TextCheck(is_url, "a URL")]`.

    If a string is invalid, the function `holds` returns False or raises ValueError.
    """

    holds: Callable[[str], bool]
    description: str

    def check(self, text: str, key: str) -> None:
        """Raise Mismatch if the string is invalid."""
        with suppress(ValueError):
            if self.holds(text):
                return
        raise Mismatch(key, f"{shown(text)} is not {self.description}")


def decode(value: Any, kind: type[T], key: str = "", *, strict: bool = True) -> T:
    """Convert `value` from TOML or YAML to the type `kind`. If `strict` is false, convert strings
    as well. Raise Mismatch for the first invalid value. `key` is the key of `value`."""
    if get_origin(kind) is dict and isinstance(value, dict):  # msgspec omits the keys of mappings
        inner = get_args(kind)[1]
        parts = {name: decode(part, inner, f"{key}.{name}") for name, part in value.items()}
        return cast("T", parts)
    try:
        decoded = msgspec.convert(value, kind, strict=strict, dec_hook=_pattern)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        place = place.removesuffix("`")
        words = "" if isinstance(error.__cause__, Mismatch) else _expected(kind, place)
        why = " ".join(message.split())
        why = f"{why[:1].lower()}{why[1:]}{f' ({words})' if words else ''}"
        if " matching regex " in message:
            why = f"expected {words}"
        raise Mismatch(f"{key}{place}".removeprefix("."), why) from error
    for note in (note for note in get_args(kind) if isinstance(note, TextCheck)):
        note.check(value, key)
    return decoded


def _pattern(_: Any, value: Any) -> re.Pattern[str]:
    """Compile a regular expression, a type that msgspec does not support."""
    if not isinstance(value, str):
        raise TypeError(f"expected `str`, got `{type(value).__name__}`")
    try:
        return re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"it is no regular expression: {error}") from error


def _expected(kind: Any, place: str) -> str:
    """Return what `kind` expects at a path such as `.bolts[0].size`, as a description."""
    for name in re.findall(r"\.(\w+)|\[", place):
        kind = _bare(kind)
        kind = fields_of(kind)[name].type if name else get_args(kind)[get_origin(kind) is dict]
    notes = [n for one in (kind, *get_args(kind)) for n in getattr(one, "__metadata__", ())]
    words = [n.description for n in notes if isinstance(n, msgspec.Meta | TextCheck)]
    kind = _bare(kind)
    if get_origin(kind) is Literal and not words:
        words = [f"one of {', '.join(map(str, get_args(kind)))}"]
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        words = [f"a table of {', '.join(fields_of(kind))}"]
    return next(filter(None, words), "")


def _bare(kind: Any) -> Any:
    """Return a type without its annotations and without None."""
    while get_origin(kind) is Annotated or type(None) in get_args(kind):
        kind = get_args(kind)[0]
    return kind


@cache
def fields_of(kind: Any) -> Mapping[str, msgspec.structs.FieldInfo]:
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def unknown(key: Any, known: Any) -> Mismatch:
    name = f"{key}" if isinstance(key, str) and key.isprintable() else f"{key!r}"
    return Mismatch("", f"{name:.{LETTERS}} is not a known key, expected one of {', '.join(known)}")


def shown(value: Any) -> str:
    """Return a value as a short string on a single line, for error messages."""
    text = repr(value)
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 3]}..."
