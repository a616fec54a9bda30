"""The keys of the configuration with what is written for them."""

import re
from typing import Annotated, Any, Literal, get_args, get_origin

from agent.cli.options import SECTIONS
from agent.config.configuration import keys_of
from agent.config.settings import Settings


def written(kind: Any) -> type:
    """The type of a key's value in the file."""
    if type(None) in get_args(kind):
        return written(get_args(kind)[0])
    if get_origin(kind) is Annotated:
        return written(get_args(kind)[0])
    if get_origin(kind) in (Literal, re.Pattern):
        return str
    assert isinstance(kind, type)
    return kind


TYPES = {key: field.type for key, (_, field) in keys_of(SECTIONS).items()}
LISTS = {key for key, kind in TYPES.items() if get_origin(kind) in (tuple, dict)}
"""Every key that holds several values, which only a file can give."""
KEYS = {key: written(kind) for key, kind in TYPES.items() if key not in LISTS}
"""Every key that holds one value."""


def value_of(settings: Settings, key: str) -> Any:
    """Return the value of a key; of an expression its text."""
    section, field = keys_of(SECTIONS)[key]
    value = getattr(settings[section], field.name)
    return value.pattern if isinstance(value, re.Pattern) else value
