"""Training on one GPU whose data lies there: healthy, or limited by the thread that launches."""

import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from tests.hardware import networks
from tests.hardware.device import DEVICE, synchronize
from tests.hardware.labelled_loads import tasks
from tests.hardware.labelled_loads.clock import ShareClock
from tests.hardware.labelled_loads.labels import BUSY, CPU, HOST_THREAD
from tests.hardware.labelled_loads.tasks import Trainer
from tests.hardware.labelled_loads.work import length_of


def train(seconds: float, *, task: str, **sizes: Any) -> None:
    """Healthy."""
    network, loss = getattr(tasks, task)(**sizes)
    trainer = Trainer(network, loss)
    for _ in range(5):
        trainer.step()
    clock = ShareClock(seconds)
    clock.begin()
    while clock.going():
        trainer.step()
        clock.mark(BUSY)
        clock.step()


def little(seconds: float, *, batch: int) -> None:
    """The paper's small network: kernels are shorter than their launches.

    The same step as a CUDA graph is what it would take if launching cost nothing.
    """
    network = networks.little_cnn().to(DEVICE)
    seen = torch.rand(batch, 3, 32, 32, device=DEVICE)
    labels = torch.zeros(batch, dtype=torch.long, device=DEVICE)
    optimiser = torch.optim.SGD(network.parameters(), lr=1e-4)

    def step() -> None:
        optimiser.zero_grad(set_to_none=False)
        functional.cross_entropy(network(seen), labels).backward()
        optimiser.step()

    kernels = length_of(recorded(step), at_once=100)
    length_of(step, at_once=100)
    clock = ShareClock(seconds)
    clock.begin([(HOST_THREAD, kernels, None)])
    while clock.going():
        step()
        clock.mark(BUSY)
        clock.step()


def recorded(step: Callable[[], Any]) -> Callable[[], Any]:
    """Replays the step as a CUDA graph, whose launches were recorded beforehand."""
    if DEVICE != "cuda":
        return step
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    replay: Callable[[], Any] = graph.replay
    return replay


def compile_first(seconds: float, *, layers: int, batch: int) -> None:
    """A network is compiled when its first step asks for it; the GPU holds it and rests."""
    network, loss = tasks.language(batch, layers)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="inductor-")  # an empty one
    trainer = Trainer(torch.compile(network), loss)
    clock = ShareClock(seconds)
    clock.begin()
    clock.open(CPU)
    trainer.step()
    synchronize()
    clock.mark(CPU)
    while clock.going():
        trainer.step()
        clock.mark(BUSY)
        clock.step()
