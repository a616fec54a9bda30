"""Loads the configuration from a TOML file, environment variables, and flags.

Unknown keys are errors. Packages declare sections. `deploy/config.toml` is a commented example.
"""

import errno
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_origin

import msgspec

from agent.config.decoding import Mismatch, decode, fields_of, shown, unknown
from agent.config.settings import Section, Settings
from agent.errors import BadInput, LogEvent, log
from agent.threads import in_time

ENVIRONMENT_PREFIX = "DGX_TELEMETRY_"
DEFAULT_PATH = Path("/etc/dgx-telemetry/config.toml")
MOST_BYTES = 2**24
ANY_NAME = "NAME"
"""Placeholder in a key for a table name that the user chooses, as in `alerts.NAME`."""

Sections = Sequence[type[Section]]
Entry = tuple[str, Any, str]
"""A key, its value, and its origin: a file, an environment variable, or a flag."""


class ConfigError(BadInput):
    """A configuration error. The message contains the origin, the key, and the expected value."""


def load(
    sections: Sections,
    path: Path | None,
    environment: Mapping[str, str] = os.environ,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """Return the settings from a file (if any), environment variables, and flags. Flags override
    variables, and variables override the file. A flag that is None is not set. Raise ConfigError if
    a setting is invalid."""
    keys = keys_of(sections)
    retired = {".".join(filter(None, (s.table, key))) for s in sections for key in s.retired}
    values: dict[type[Section], dict[str, Any]] = {section: {} for section in sections}
    places: dict[type[Section], str] = {}
    for key, value, where in (
        *(_in_file(read_toml(path), keys, retired, str(path)) if path else ()),
        *_in_environment(environment, keys, retired),
        *((key, value, f"--{key}") for key, value in (flags or {}).items() if value is not None),
    ):
        if key in retired:
            log.warning(LogEvent("retired_setting", where=where, key=key))
            continue
        section, field = keys[key]
        text = where.startswith(ENVIRONMENT_PREFIX)
        try:
            values[section][field.name] = decode(
                value, field.type, key.removesuffix(f".{ANY_NAME}"), strict=not text
            )
        except Mismatch as wrong:
            named = "--" if where == f"--{key}" else f"{where}: "  # the name of a flag is the key
            raise ConfigError(f"{named}{wrong}") from wrong
        places[section] = where
    made = []
    for section, given in values.items():
        try:
            made.append(section(**given))
        except Mismatch as wrong:  # about several keys, with the origin of the last key
            table = f"{section.table}." if section.table else ""
            raise ConfigError(f"{places[section]}: {table}{wrong}") from wrong
    return Settings(*made)


def keys_of(sections: Sections) -> dict[str, tuple[type[Section], msgspec.structs.FieldInfo]]:
    """Return the section and field of each key. Keys include the table, as in `alerts.NAME`."""
    found: dict[str, tuple[type[Section], msgspec.structs.FieldInfo]] = {}
    for section in sections:
        for field in fields_of(section).values():
            name = ANY_NAME if field.name == section.subtables else field.name
            found[f"{section.table}.{name}".removeprefix(".")] = section, field
    return found


def _in_file(
    content: Mapping[str, Any], keys: Mapping[str, Any], retired: set[str], path: str
) -> Iterator[Entry]:
    tables = {key.partition(".")[0] for key in keys if "." in key}
    named: dict[str, dict[str, Any]] = {}
    for table, value in content.items():
        if table in tables - keys.keys() and not isinstance(value, dict):
            expected = ", ".join(_similar(table, keys))
            raise ConfigError(f"{path}: {table} must be a table of {expected}, not {shown(value)}")
        inside = value if table in tables else {"": value}
        for name, part in inside.items():
            key, others = f"{table}.{name}".removesuffix("."), f"{table}.{ANY_NAME}"
            if key in retired or (key in keys and key != others):
                yield key, part, path
            elif name and others in keys and isinstance(part, dict):
                named.setdefault(others, {})[name] = part
            else:
                raise ConfigError(f"{path}: {unknown(key, _similar(key, keys))}")
    yield from ((key, parts, path) for key, parts in named.items())


def _similar(key: str, keys: Iterable[str]) -> list[str]:
    """Return suggestions for an unknown key: the same name in other sections. If there are none,
    return the keys of its section, or keys with a similar name, or all sections and other keys."""
    from difflib import get_close_matches

    table, _, name = key.rpartition(".")
    same = [one for one in keys if one.rpartition(".")[2] == name]
    top = [f"{one} (before the first section)" for one in same if "." not in one]
    inside = [one for one in keys if one.startswith(f"{table or name}.")]
    return (
        [*top, *(one for one in same if "." in one)]
        or inside
        or get_close_matches(key, keys)
        or [*dict.fromkeys(f"[{one.split('.')[0]}]" if "." in one else one for one in keys)]
    )


def _in_environment(
    environment: Mapping[str, str], keys: Mapping[str, Any], retired: set[str]
) -> Iterator[Entry]:
    for key in (*sorted(retired), *keys):
        name = ENVIRONMENT_PREFIX + key.replace(".", "_").upper()
        if name in environment and not key.endswith(f".{ANY_NAME}"):  # tables are for files only
            if key in keys and get_origin(keys[key][1].type) is tuple:
                raise ConfigError(f"{name}: {key} is a list, which only a file can give")
            yield key, environment[name], name


def file_content(path: Path | str) -> bytes:
    """Return the contents of a file, or of a pipe such as `<(...)`. Raise OSError for a pipe with
    no contents, whose writer is missing or has failed, and if there is no end, as in /dev/zero."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        os.set_blocking(file.fileno(), True)
        content = file.read(MOST_BYTES)
    if len(content) == MOST_BYTES or (not content and Path(path).is_fifo()):
        why = "it is too long" if content else "it is a pipe that nothing was written to"
        raise OSError(errno.EINVAL, why)
    return content


def read_toml(path: Path) -> dict[str, Any]:
    """Return the contents of a TOML file. Raise ConfigError if it cannot be read or parsed."""
    try:
        text = in_time(partial(file_content, path)).decode("utf-8-sig")
        content = tomllib.loads(text)
    except OSError as error:
        message = f"{path}: cannot be read: {error.strerror}, expected a TOML file"
        raise ConfigError(message) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text, expected a TOML file") from error
    except (ValueError, RecursionError) as error:  # TOML errors, or limits of Python
        why = " ".join(str(error).split())
        raise ConfigError(f"{path}: is not valid TOML: {why}, expected a TOML file") from error
    if not text.strip():
        log.warning(LogEvent("empty_file", file=str(path), expected="keys of the configuration"))
    return content
