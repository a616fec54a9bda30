"""The spec sheets that hold for this machine, as it is configured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import msgspec
from msgspec import Meta

from agent.config.decoding import Share
from agent.config.settings import Section, Settings
from agent.model import GpuIdentity
from agent.specs import load
from agent.specs.recognition import Specs
from agent.specs.sheets import SystemSpec


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
        specs = sheets.overruled(settings[SaturationConfig].configured)
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
