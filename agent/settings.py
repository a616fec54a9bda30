"""The configuration in force, and what follows from it alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from agent.backends.device import Identity
from agent.config import Config
from agent.specs import Specs, SystemSpec
from agent.specs import load as load_specs

SystemOf = Callable[[Sequence[Identity]], SystemSpec | None]
"""Which system these GPUs make of this machine."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One configuration, checked, with the spec sheets that it names; never changed."""

    config: Config
    specs: Specs
    system_of: SystemOf
    limits: Mapping[tuple[str, str, str], float]  # bytes/s by path, device and direction

    @classmethod
    def of(cls, config: Config, product: str) -> "Settings":
        """Settings for the machine of this product name; reads files. Raises SpecError where the
        configured system or spec directory is wrong."""
        sheets = load_specs(Path(config.specs) if config.specs else None)
        specs = sheets.overruled(config.saturation.configured)
        specs.recognise((), product, config.system)  # a system that does not exist is told at once
        limits = {(c.path, c.device, c.direction): c.bytes_per_second for c in config.limit}
        return cls(config, specs, _recogniser(config, product, specs), limits)


@dataclass(slots=True, eq=False)
class Current:
    """The settings in force. Whoever depends on one asks here each time and keeps no copy, from any
    thread; a reload replaces them whole."""

    settings: Settings


def _recogniser(config: Config, product: str, specs: Specs) -> SystemOf:
    """Asked each tick, and the GPUs seldom change."""

    @cache
    def system_with(models: tuple[str, ...]) -> SystemSpec | None:
        return specs.recognise(models, product, config.system)

    return lambda identities: system_with(tuple(i.model for i in identities))
