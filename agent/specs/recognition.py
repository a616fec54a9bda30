"""Selection of the spec sheets for this machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from types import MappingProxyType

from agent.specs.sheets import GpuSpec, SpecError, SpecValue, SystemSpec

MAKER = "nvidia "


@dataclass(frozen=True, slots=True)
class Specs:
    """All spec sheets, by name, and the thresholds of saturation by data path."""

    systems: Mapping[str, SystemSpec]
    gpus: Mapping[str, GpuSpec]
    thresholds: Mapping[str, SpecValue]

    def threshold(self, path: str) -> float:
        """The share of its limit at or above which `path` is saturated."""
        return self.thresholds[path].value

    def overruled(self, shares: Mapping[str, float]) -> "Specs":
        """The same sheets with these thresholds of saturation in place of theirs."""
        own = {
            path: SpecValue(share, "ratio", "the configuration") for path, share in shares.items()
        }
        return replace(self, thresholds=MappingProxyType({**self.thresholds, **own}))

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
        if configured:
            return self._configured(configured)
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

    def _configured(self, name: str) -> SystemSpec:
        if name not in self.systems:
            known = ", ".join(self.systems)
            raise SpecError(f"system is {name!r} in the configuration, expected one of {known}.")
        return self.systems[name]


def _fits(system: SystemSpec, gpus: int, product: str, *, racked: bool) -> bool:
    """Return whether product name and number of GPUs are those of the system."""
    if system.products is None:
        some_missing = system.rack and racked and gpus < system.gpus
        return (gpus == system.gpus or some_missing) and not product.startswith("dgx")
    patterns = map(_plain, system.products.names)
    return gpus <= system.gpus and any(fnmatchcase(product, pattern) for pattern in patterns)


def _plain(name: str) -> str:
    """A name without what drivers of different age write differently: maker, case and spaces."""
    return " ".join(name.split()).casefold().removeprefix(MAKER)
