"""Machines that are odd: GPUs without an answer or a name, many GPUs, none at all."""

from collections.abc import Callable
from typing import Any

import pynvml

from agent.simulator.driver import address_of
from tests.support.fake_gpus import OddNvml
from tests.support.machine_controls import lose
from tests.support.statuses import Shown, shown

ILL = 1
"""Index of the GPU that answers otherwise."""


def lost(*gpus: int) -> Shown:
    """A machine that loses these GPUs after some seconds."""
    machine = shown("dgx-h100:training", gpus=3).run(4)
    for number in gpus:
        lose(machine.bench.machine, number)
    return machine


def ill(name: str, answer: Callable[[], Any], system: str = "dgx-h100:training") -> Shown:
    """A machine of whose GPUs one answers this question otherwise."""
    machine = shown(system, gpus=2)
    library = machine.bench.machine.nvml = OddNvml(machine.bench.machine)

    def answered(right: Any, handle: Any, *_: Any) -> Any:
        return answer() if address_of(handle) == address_of(library.handle(ILL)) else right

    library.answers[name] = answered
    return machine


def refuse() -> Any:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)


def without_gpus(*, driver: bool) -> Shown:
    machine = shown("k40:idle")
    library = machine.bench.machine.nvml = OddNvml(machine.bench.machine)
    library.missing = not driver
    library.answers["Count"] = 0
    return machine


BAD_INPUT: dict[str, Callable[[], Shown]] = {
    "a GPU is lost": lambda: lost(2),
    "all GPUs are lost": lambda: lost(*range(3)),
    "a GPU has no name": lambda: ill("Name", lambda: ""),
    "a GPU refuses its name": lambda: ill("Name", refuse),
    "a GPU refuses its links": lambda: ill("NvLinkState", refuse),
    "a GPU refuses its processes": lambda: ill("ComputeRunningProcesses_v3", refuse),
    "a GPU refuses its utilization": lambda: ill("Samples", refuse, "dgx-a100:training"),
    "the driver counts no GPU": lambda: without_gpus(driver=True),
    "no driver is loaded": lambda: without_gpus(driver=False),
    "seventy-two GPUs": lambda: shown("rack-72:nvlink-saturated"),
}
