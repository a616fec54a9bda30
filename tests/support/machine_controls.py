"""Actions of tests on a simulated machine that no scenario has: resets, MIG, processes of
others."""

from collections.abc import Callable
from typing import Any

from agent.simulator import SimulatedSystem
from agent.simulator.driver import numbers
from agent.simulator.gpu import SimulatedGpu, SimulatedGpuProcess
from agent.simulator.machine import Machine

GIB = 1 << 30


def change_answer(library: Any, name: str, change: Callable[..., Any]) -> None:
    """Let a function return what `change` makes of its right answer and its arguments."""
    right = getattr(library, name)
    setattr(library, name, lambda *asked: change(right(*asked), *asked))


def lose(machine: Machine, index: int) -> None:
    """The GPU falls off the bus, with XID 79; links to it go down."""
    with machine.lock:
        machine.advance()
        machine.lose(index)
        machine.apply()


def restore(machine: Machine, index: int) -> None:
    """The GPU is back."""
    with machine.lock:
        machine.advance()
        machine.gpus[index].lost = False
        for gpu in machine.gpus:
            gpu.cut_peers.discard(index)
        machine.apply()


def cut_link(machine: Machine, index: int, number: int) -> None:
    """One link goes down, at both ends where both are GPUs."""
    with machine.lock:
        machine.advance()
        machine.cut_link(index, number)
        machine.apply()


def upgrade_driver(machine: SimulatedSystem, version: str) -> None:
    """Unload the driver, which must not be in use, and load another version."""
    held = machine.nvml.held()
    assert not any(held), f"in use: {held} connections, event sets and GPM samples"
    machine.driver.version, machine.driver.numbers = version, numbers(version)
    reload_driver(machine)


def reload_driver(machine: Machine) -> None:
    """Unload and load the driver: counters are 0, and NVML must be initialised again."""
    with machine.lock:
        machine.advance()
        machine.driver.users = 0
        for gpu in machine.gpus:
            _reset(machine, gpu)


def reset_gpu(machine: Machine, index: int) -> None:
    """Reset one GPU: its counters are 0."""
    with machine.lock:
        machine.advance()
        _reset(machine, machine.gpus[index])


def _reset(machine: Machine, gpu: SimulatedGpu) -> None:
    last = gpu.meter._spans[-1]
    gpu.meter._spans.clear()
    gpu.meter.flow(machine.now, last.steady, last.steps, last.origin)
    gpu.buffers.begin = machine.now


def set_mig(machine: Machine, index: int, *, on: bool) -> None:
    """Switch MIG; models without it stay as they are."""
    machine.gpus[index].mig = on and machine.gpus[index].model.divides


def start_process(machine: Machine, index: int, memory: int = GIB) -> int:
    """A process takes so many bytes of a GPU's memory; its pid."""
    with machine.lock:
        machine.advance()
        pid = machine.jobs.start(machine.now, 1, "python3", ("python3", "notebook.py")).pid
        machine.gpus[index].processes.append(SimulatedGpuProcess(pid, memory))
        machine.gpus[index].apply(machine.now)
        return pid


def stop_process(machine: Machine, index: int, pid: int | None = None) -> None:
    """End one process of a GPU, or all of them."""
    with machine.lock:
        machine.advance()
        gpu = machine.gpus[index]
        ended = {p.pid for p in gpu.processes if pid is None or p.pid == pid}
        gpu.processes = [p for p in gpu.processes if p.pid not in ended]
        gpu.apply(machine.now)
        for gone in ended:
            machine.jobs.end(gone)
