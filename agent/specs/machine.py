"""The spec sheets: loaded, chosen for this machine, and overruled as it is configured."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib.resources import files as resources
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from agent.config.configuration import ConfigError, in_time, read_toml
from agent.config.decoding import Mismatch, Share, decode, fields_of
from agent.config.settings import Section, Settings
from agent.model import GpuIdentity
from agent.specs.sheets import GpuSpec, SheetFile, SpecError, SystemSpec

MAKER = "nvidia "


@dataclass(frozen=True, slots=True)
class Specs:
    """All spec sheets, by name, and the thresholds of saturation by data path."""

    systems: Mapping[str, SystemSpec]
    gpus: Mapping[str, GpuSpec]
    thresholds: Mapping[str, float]  # share of its limit at or above which a path is saturated

    def gpu(self, model: str) -> GpuSpec | None:
        """The sheet of a GPU by its name in NVML, with or without the maker's name before it."""
        wanted = _plain(model)
        named = (
            spec
            for spec in reversed(tuple(self.gpus.values()))
            if any(_plain(name) == wanted for name in spec.models.names)
        )
        return next(named, None)

    def recognise(
        self, models: Sequence[str], product: str, configured: str = "", *, racked: bool = False
    ) -> SystemSpec | None:
        """The system of these GPUs (names in NVML) and this DMI product name; `racked` where a GPU
        reports the chassis that it sits in.

        `configured` overrules both; raises SpecError where no sheet has that name. GPUs may be
        missing, but none may be of another model; a box without NVIDIA's product name is no DGX.
        """
        if configured and configured not in self.systems:
            expected = f"expected one of {', '.join(self.systems)}"
            raise SpecError(f"system is {configured!r} in the configuration, {expected}.")
        if configured:
            return self.systems[configured]
        sheets = map(self.gpu, {*models} - {""})
        found = {sheet.name if sheet else "" for sheet in sheets}
        fitting = [
            system
            for system in self.systems.values()
            if found <= {system.gpu, *system.gpu_alternatives}
            and _fits(system, len(models), _plain(product), racked=racked)
        ]
        # With no GPU to decide between two systems of one product name, neither is known. A
        # user's own sheet stands after the shipped ones, and is preferred.
        ambiguous = not found and len(fitting) > 1
        return fitting[-1] if fitting and not ambiguous else None


def _fits(system: SystemSpec, gpus: int, product: str, *, racked: bool) -> bool:
    """Return whether product name and number of GPUs are those of the system."""
    if system.products is None:
        some_missing = system.rack and racked and gpus < system.gpus
        return (gpus == system.gpus or some_missing) and not product.startswith("dgx")
    patterns = map(_plain, system.products.names)
    return gpus <= system.gpus and any(fnmatchcase(product, pattern) for pattern in patterns)


def _plain(name: str) -> str:
    return " ".join(name.split()).casefold().removeprefix(MAKER)


SUFFIX = ".toml"
MOST_SHEETS = 256  # Files of a directory of the user's own


def load(extra: Path | None = None) -> Specs:
    """The shipped sheets, and over them those of the user's own directory `extra`.

    A user's sheet replaces a shipped one of its name, and a user's threshold the shipped one.
    Raises SpecError.
    """
    systems: dict[str, SystemSpec] = {}
    gpus: dict[str, GpuSpec] = {}
    shares: dict[str, float] = {}
    files: dict[str, str] = {}
    for name, file, sheet in (*_shipped(), *(_own(extra) if extra else ())):
        if sheet.system:
            systems.pop(name, None)  # a user's sheet stands last, also where it replaces one
            systems[name] = msgspec.structs.replace(sheet.system, name=name)
        if sheet.gpu:
            gpus.pop(name, None)
            gpus[name] = msgspec.structs.replace(sheet.gpu, name=name)
            if sheet.gpu.card:
                systems.pop(name, None)
                systems[name] = gpus[name].alone()
        if sheet.thresholds:
            shares |= {path: one.value for path, one in sheet.thresholds.values.items()}
        files[name] = file
    for name, system in systems.items():
        _check_gpus(system, files[name], gpus)
    return Specs(MappingProxyType(systems), MappingProxyType(gpus), MappingProxyType(shares))


Found = tuple[str, str, SheetFile]
"""The name of a sheet, its file for messages, and what stands in it."""


@lru_cache(maxsize=1)
def _shipped() -> tuple[Found, ...]:
    texts = {
        entry.name: entry.read_text(encoding="utf-8")
        for entry in resources("agent.specs").iterdir()
        if entry.name.endswith(SUFFIX)
    }
    return tuple(
        (name.removesuffix(SUFFIX), name, _sheet(name, tomllib.loads(text)))
        for name, text in sorted(texts.items())
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
    for name in (system.gpu, *system.gpu_alternatives):
        if name not in gpus:
            key = "gpu" if name == system.gpu else "gpu_alternatives"
            expected = f"expected one of {', '.join(gpus)}"
            raise SpecError(f"{file}: system.{key} is {name!r}, {expected}.")


class SpecConfig(Section, frozen=True):
    """The system, where it is not to be recognised, its GPUs where they are not to be counted, and
    a directory of the user's own sheets."""

    table = ""
    system: str = ""
    gpus: Annotated[int, Meta(ge=0, le=1024, description="a whole number from 0 to 1024")] = 0
    specs: str = ""


class SaturationConfig(Section, frozen=True):
    """The share of its limit from which a path is saturated; None for what the sheets say."""

    table = "saturation"
    nvlink: Share | None = None
    pcie: Share | None = None
    hbm: Share | None = None
    disk: Share | None = None
    network: Share | None = None
    infiniband: Share | None = None

    @property
    def configured(self) -> Mapping[str, float]:
        shares = msgspec.structs.asdict(self)
        return {path: share for path, share in shares.items() if share is not None}


NO_SPECS = Specs(MappingProxyType({}), MappingProxyType({}), MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class MachineSpecs:
    """Sheets, and which system this machine is by its product name and GPUs; part of Settings."""

    specs: Specs = NO_SPECS
    product: str = ""
    system: str = ""  # as configured
    _known: dict[tuple[tuple[str, ...], bool], SystemSpec | None] = field(
        default_factory=dict, compare=False
    )

    @classmethod
    def of(cls, settings: Settings, product: str) -> "MachineSpecs":
        """Return the specs for the machine of this product name; reads files. Raises SpecError
        where the configured system or spec directory is wrong."""
        config = settings[SpecConfig]
        sheets = load(Path(config.specs) if config.specs else None)
        own = settings[SaturationConfig].configured
        specs = replace(sheets, thresholds=MappingProxyType({**sheets.thresholds, **own}))
        specs.recognise((), product, config.system)  # a system that does not exist is shown at once
        return cls(specs, product, config.system)

    def system_of(self, gpus: Sequence[GpuIdentity]) -> SystemSpec | None:
        """Return the system that these GPUs make of this machine; cached, for they seldom
        change."""
        models, racked = tuple(gpu.model for gpu in gpus), any(gpu.racked for gpu in gpus)
        if (models, racked) not in self._known:
            found = self.specs.recognise(models, self.product, self.system, racked=racked)
            self._known[models, racked] = found
        return self._known[models, racked]
