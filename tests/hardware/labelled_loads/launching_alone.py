"""One-GPU loads whose kernels are launched one by one, written after the rule that counts launches
was frozen: of kernels from a microsecond to a tenth of a millisecond."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.hardware.labelled_loads.fourth_alone import against_its_graph
from tests.hardware.labelled_loads.models import LanguageModel
from tests.hardware.labelled_loads.work import sized
from tests.hardware.training import DEVICE


def _learning(network: Any, loss: Callable[[], Any]) -> Callable[[], None]:
    optimiser = torch.optim.SGD(network.parameters(), lr=1e-5, foreach=False)

    def step() -> None:
        optimiser.zero_grad(set_to_none=False)
        loss().backward()
        optimiser.step()

    return step


def message_passing(seconds: float, *, nodes: int, edges: int, width: int, layers: int) -> None:
    """A small graph: messages are gathered along edges and added up, layer by layer."""
    nodes, edges = sized((nodes, edges), (8, 16))
    with torch.device(DEVICE):
        network = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        known = torch.randn(nodes, width)
        begin, end = torch.randint(0, nodes, (2, edges)).unbind()

    def loss() -> Any:
        told = known
        for layer in network:
            messages = torch.relu(layer(torch.cat((told[begin], told[end]), 1)))
            told = told + torch.zeros_like(told).index_add(0, end, messages)
        return told.square().mean()

    against_its_graph(seconds, _learning(network, loss))


def unrolled_cell(seconds: float, *, batch: int, width: int, times: int) -> None:
    """A recurrent cell, written as a loop."""
    batch, times = sized((batch, times), (2, 3))
    with torch.device(DEVICE):
        network = nn.GRUCell(width, width)
        seen = torch.randn(times, batch, width)

    def loss() -> Any:
        told = torch.zeros_like(seen[0])
        for one in seen:
            told = network(one, told)
        return told.square().mean()

    against_its_graph(seconds, _learning(network, loss))


def small_images(seconds: float, *, batch: int, width: int, layers: int) -> None:
    """A convolutional network with normalisation, few images at a time."""
    batch = sized(batch, 2)
    with torch.device(DEVICE):
        blocks = [
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
            for _ in range(layers)
        ]
        network = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *blocks)
        images = torch.rand(batch, 3, 32, 32)
    against_its_graph(seconds, _learning(network, lambda: network(images).square().mean()))


def short_prompts(seconds: float, *, batch: int, layers: int, width: int, length: int) -> None:
    """A language model reads short prompts, in bf16."""
    batch, length = sized((batch, length), (1, 8))
    with torch.device(DEVICE):
        network = LanguageModel(layers, width).to(torch.bfloat16)
        tokens = torch.randint(0, 500, (batch, length))

    def step() -> None:
        network(tokens)

    with torch.no_grad():
        against_its_graph(seconds, step)


def integrator(seconds: float, *, rows: int, width: int, steps: int) -> None:
    """Fourth-order Runge-Kutta through a network that gives the slope."""
    rows, steps = sized((rows, steps), (4, 2))
    with torch.device(DEVICE):
        slope = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))
        place = torch.randn(rows, width)
    far = 0.01

    def step() -> None:
        now = place
        for _ in range(steps):
            first = slope(now)
            second = slope(now + far / 2 * first)
            third = slope(now + far / 2 * second)
            last = slope(now + far * third)
            now = now + far / 6 * (first + 2 * second + 2 * third + last)
        place.copy_(functional.normalize(now))

    with torch.no_grad():
        against_its_graph(seconds, step)
