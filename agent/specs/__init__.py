"""Spec sheets: what systems and GPUs can do by their makers' figures, each with its source.

One TOML file a system or GPU; its name is the file's. A source that begins with [P] is a public
data sheet or transcript, one with [U] was not verified; the others are the papers on these systems,
by title.
"""

import tomllib
from collections.abc import Iterator
from functools import lru_cache
from importlib.resources import files as resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec.structs import asdict

from agent.config.configuration import ConfigError, read_toml
from agent.config.decoding import Mismatch, decode, fields_of
from agent.config.regular_file import in_time
from agent.specs.recognition import Specs
from agent.specs.sheets import (
    GpuSpec,
    LinkGraph,
    Names,
    SheetFile,
    SpecBandwidth,
    SpecError,
    SpecValue,
    SystemSpec,
)

__all__ = [
    "GpuSpec",
    "LinkGraph",
    "Names",
    "SpecBandwidth",
    "SpecError",
    "SpecValue",
    "Specs",
    "SystemSpec",
    "load",
]

SUFFIX = ".toml"
MOST_SHEETS = 256  # Files of a directory of the user's own


def load(extra: Path | None = None) -> Specs:
    """The shipped sheets, and over them those of the user's own directory `extra`.

    A user's sheet replaces a shipped one of its name, and a user's threshold the shipped one.
    Raises SpecError.
    """
    systems: dict[str, SystemSpec] = {}
    gpus: dict[str, GpuSpec] = {}
    shares: dict[str, SpecValue] = {}
    files: dict[str, str] = {}
    for name, file, sheet in (*_shipped(), *(_own(extra) if extra else ())):
        if sheet.system:
            systems.pop(name, None)  # a user's sheet stands last, also where it replaces one
            systems[name] = SystemSpec(name=name, **asdict(sheet.system))
        if sheet.gpu:
            gpus.pop(name, None)
            gpus[name] = GpuSpec(name=name, **asdict(sheet.gpu))
            if sheet.gpu.card:
                systems.pop(name, None)
                systems[name] = gpus[name].alone()
        if sheet.thresholds:
            shares |= sheet.thresholds.values
        files[name] = file
    for name, system in systems.items():
        _check_gpus(system, files[name], gpus)
    return Specs(MappingProxyType(systems), MappingProxyType(gpus), MappingProxyType(shares))


Found = tuple[str, str, SheetFile]
"""The name of a sheet, its file for messages, and what stands in it."""


@lru_cache(maxsize=1)
def _shipped() -> tuple[Found, ...]:
    sheets = [entry for entry in resources(__name__).iterdir() if entry.name.endswith(SUFFIX)]
    return tuple(
        (
            entry.name.removesuffix(SUFFIX),
            entry.name,
            _sheet(entry.name, tomllib.loads(entry.read_text(encoding="utf-8"))),
        )
        for entry in sorted(sheets, key=lambda entry: entry.name)
    )


def _own(directory: Path) -> Iterator[Found]:
    try:
        entries = sorted(in_time(lambda: list(directory.iterdir())))
    except (OSError, ValueError) as error:  # ValueError: no folder can have this name
        why = getattr(error, "strerror", None) or error
        name = str(directory) if str(directory).isprintable() else repr(str(directory))
        message = f"{name}: cannot be listed ({why}), expected a directory of TOML files."
        raise SpecError(message) from error
    sheets = [p for p in entries if p.suffix == SUFFIX and not p.name.startswith(".")]
    if not 0 < len(sheets) <= MOST_SHEETS:
        expected = f"expected spec sheets, {MOST_SHEETS} at most"
        raise SpecError(f"{directory}: holds {len(sheets) or 'no'} *{SUFFIX}, {expected}.")
    for path in sheets:
        try:
            content = read_toml(path)
        except ConfigError as wrong:
            raise SpecError(f"{wrong}.") from wrong
        yield path.stem, str(path), _sheet(str(path), content)


def _sheet(file: str, content: dict[str, Any]) -> SheetFile:
    """Return the content of one file; `file` is its name in messages."""
    if not content:
        raise SpecError(f"{file}: is empty, expected a table of {', '.join(fields_of(SheetFile))}.")
    for table in content.values():
        _give_source(table)
    try:
        return decode(content, SheetFile)
    except Mismatch as wrong:
        raise SpecError(f"{file}: {wrong}.") from wrong


def _give_source(table: object) -> None:
    """Give the source of a table to each of its figures without one."""
    if not isinstance(table, dict) or "source" not in table:
        return
    for value in table.values():
        for figure in value if isinstance(value, list) else (value,):
            if isinstance(figure, dict):
                figure.setdefault("source", table["source"])


def _check_gpus(system: SystemSpec, file: str, gpus: dict[str, GpuSpec]) -> None:
    for key, name in (
        ("gpu", system.gpu),
        *(("gpu_alternatives", alternative) for alternative in system.gpu_alternatives),
    ):
        if name not in gpus:
            known = ", ".join(gpus)
            message = f"{file}: system.{key} is {name!r}, expected one of {known}."
            raise SpecError(message)
