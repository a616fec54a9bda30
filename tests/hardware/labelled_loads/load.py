"""Facts of a labelled load that are known beforehand, and how it is run. No PyTorch here."""

import importlib
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

MODULES = "tests.hardware.labelled_loads"


@dataclass(frozen=True, slots=True)
class LabelledLoad:
    """A load and what is known of it beforehand."""

    name: str
    function: str  # module.function below this package; `rank` and `seconds` come first
    parameters: Mapping[str, Any]
    truth: str  # where the true shares come from
    gpus: int = 1  # or 2, which may be played `over` more
    healthy: bool = False  # nothing is lost beyond the price of launching
    pulse: bool = True  # its steps are regular
    seconds: float = 11.0  # of its steady phase that show what it is
    settles: float = 7.0  # s of it that do not count: power and means look back 6 s
    environment: Mapping[str, str] = field(default_factory=dict)
    libraries: tuple[str, ...] = ("torch._dynamo",)  # optimisers import it when first made

    def over(self, ranks: int) -> "LabelledLoad":
        """The same load on so many GPUs, where it is one of any number of ranks."""
        return self if self.gpus == 1 else replace(self, gpus=ranks)

    def import_libraries(self) -> None:
        """Import what takes seconds; no GPU is touched."""
        for name in (*self.libraries, f"{MODULES}.{self.function.rpartition('.')[0]}"):
            importlib.import_module(name)

    def run(self, seconds: float) -> None:
        """Run it here: ranks as processes of their own."""
        module, _, name = self.function.rpartition(".")
        function: Callable[..., None] = getattr(
            importlib.import_module(f"{MODULES}.{module}"), name
        )
        if self.gpus == 1:
            function(seconds, **self.parameters)
            return
        from tests.hardware import ranks

        ranks.everywhere(partial(_as_rank, function, self.parameters), seconds, self.gpus)


def _as_rank(
    function: Callable[..., None], parameters: Mapping[str, Any], rank: int, seconds: float
) -> None:
    try:
        function(rank, seconds, **parameters)
    except Exception:  # who waits for the ranks does not ask why one ended
        traceback.print_exc()
        raise


EVENTS = "events on the GPU's stream after each phase"
ALONE = "events; exposed communication: a step with gradients exchanged against one without"
ARRIVAL = "events on the GPU's stream when a batch has arrived and when its step is done"
