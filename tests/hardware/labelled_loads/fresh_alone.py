"""One-GPU loads of the second blind trial whose data is there: no rule was made with them."""

import contextlib
import itertools
import multiprocessing
import os
import random
import select
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.nn import functional

from tests.hardware import networks
from tests.hardware.labelled_loads.alone import recorded
from tests.hardware.labelled_loads.blind_alone import Decoder
from tests.hardware.labelled_loads.blind_input import LoadedTokens, directory, language_model
from tests.hardware.labelled_loads.blind_pairs import share_memory
from tests.hardware.labelled_loads.clock import ShareClock
from tests.hardware.labelled_loads.labels import BUSY, CPU, DISK, HOST_THREAD, PCIE, UNKNOWN
from tests.hardware.labelled_loads.serving import POLL_EVERY
from tests.hardware.labelled_loads.tasks import Trainer
from tests.hardware.labelled_loads.work import length_of, sized
from tests.hardware.training import DEVICE, IMAGE, pinned, synchronize

WARM_UP = 3
"""Steps before the steady phase."""


def _unmarked(_label: str) -> None:
    """In the place of a clock's `mark` before the steady phase."""


def _repeat(seconds: float, step: Callable[[Callable[[str], None]], None]) -> None:
    """Warm up, then mark the phases of one step after the other."""
    for _ in range(WARM_UP):
        step(_unmarked)
    clock = ShareClock(seconds)
    clock.begin()
    while clock.going():
        step(clock.mark)
        clock.step()


def host_optimiser(seconds: float, *, batch: int, threads: int) -> None:
    """The optimiser's state and work lie on the host: gradients go down, parameters come back."""
    torch.set_num_threads(threads)
    tokens, network = LoadedTokens(batch), language_model()
    values, gradients = share_memory(list(network.parameters()))
    trainer = Trainer(network, tokens.loss)
    momentum = torch.zeros_like(values, device="cpu")
    told, kept = pinned(torch.zeros_like(momentum)), pinned(values.cpu())

    def step(mark: Callable[[str], None]) -> None:
        trainer.loss().backward()
        mark(BUSY)
        told.copy_(gradients, non_blocking=True)
        mark(PCIE)
        synchronize()
        momentum.mul_(0.9).add_(told)
        kept.add_(momentum, alpha=-1e-5)
        mark(CPU)
        values.copy_(kept, non_blocking=True)
        mark(PCIE)
        gradients.zero_()

    _repeat(seconds, step)


class OffloadingLayers(nn.Module):
    """Wide layers; what the backward pass needs of the first few waits in the host's memory."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)
        )
        self.offloaded = 0

    def forward(self, values: Any) -> Any:
        """Same shape as `values`: row, width."""
        for place, layer in enumerate(self.layers):
            away = place < self.offloaded
            kept = save_on_cpu(pin_memory=DEVICE == "cuda") if away else contextlib.nullcontext()
            with kept:
                values = layer(values)
        return values


def offloaded_activations(
    seconds: float, *, rows: int, width: int, layers: int, offloaded: int
) -> None:
    """Activations go to the host in the forward pass and come back; nothing runs beside that."""
    rows, width, layers, offloaded = sized((rows, width, layers, offloaded), (64, 64, 4, 2))
    with torch.device(DEVICE):
        network, seen = OffloadingLayers(layers, width), torch.rand(rows, width)
    trainer = Trainer(network, lambda network: network(seen).float().square().mean())
    alone = length_of(trainer.step, sized(1.5, 0.1), at_once=4)
    network.offloaded = offloaded
    for _ in range(WARM_UP):
        trainer.step()
    clock = ShareClock(seconds)
    clock.begin([(PCIE, alone, None)])
    while clock.going():
        trainer.step()
        clock.mark(BUSY)
        clock.step()


class Springs:
    """Environments of masses on springs, moved by actions, on one core."""

    SEEN = 512

    def __init__(self, environments: int) -> None:
        numbers = np.random.default_rng(0)
        self.places = numbers.standard_normal((environments, self.SEEN), np.float32)
        self._speeds = np.zeros_like(self.places)

    def advance(self, pushes: Any, cpu_seconds: float) -> None:
        """So many seconds of a core; `pushes`: environment, and any number."""
        end = time.thread_time() + cpu_seconds
        pushed = np.tanh(pushes.mean(axis=1, keepdims=True))
        while time.thread_time() < end:
            self._speeds += 1e-3 * (pushed - np.sin(self.places) - 0.1 * self._speeds)
            self.places += 1e-3 * self._speeds


def rollouts(
    seconds: float, *, environments: int, turns: int, cpu_seconds: float, learning: float
) -> None:
    """Reinforcement learning: environments on the host, turn by turn, then a burst of learning.

    `cpu_seconds` of a core a turn; a burst lasts about `learning` (s).
    """
    turns, width, rows = sized((turns, 4096, 65536), (4, 64, 64))
    world = Springs(environments)
    sides = (Springs.SEEN, width, width, width)
    with torch.device(DEVICE):
        hidden = [nn.Sequential(nn.Linear(a, b), nn.GELU()) for a, b in itertools.pairwise(sides)]
        policy = nn.Sequential(*hidden, nn.Linear(width, 64))
        remembered = torch.rand(rows, Springs.SEEN)
        seen, chosen = torch.zeros(environments, Springs.SEEN), torch.zeros(environments, 64)
    shown, told = pinned(torch.zeros_like(seen, device="cpu")), pinned(chosen.cpu())
    trainer = Trainer(policy, lambda network: network(remembered).float().square().mean())
    bursts = max(1, round(learning / length_of(trainer.step, sized(0.6, 0.05), at_once=4)))
    with torch.no_grad():
        act = recorded(lambda: chosen.copy_(policy(seen)))

    def step(mark: Callable[[str], None]) -> None:
        for _ in range(turns):
            seen.copy_(shown, non_blocking=True)
            with torch.no_grad():
                act()
            told.copy_(chosen, non_blocking=True)
            mark(BUSY)
            synchronize()
            world.advance(told.numpy(), cpu_seconds)
            shown.copy_(torch.from_numpy(world.places))
            mark(CPU)
        for _ in range(bursts):
            trainer.step()
        mark(BUSY)

    _repeat(seconds, step)


def generating(seconds: float, *, batch: int, positions: int, layers: int, width: int) -> None:
    """Token by token, each kernel launched by the host, which looks at each token.

    The same pass as a CUDA graph is what it would take if launching cost nothing.
    """
    with torch.no_grad():
        decoder = Decoder(batch, positions, layers, width)

        def grow() -> None:
            decoder.grow()
            decoder.places.add_(1).remainder_(decoder.positions)

        told = pinned(torch.zeros_like(decoder.tokens, device="cpu"))
        kernels = length_of(recorded(grow), at_once=sized(50, 2))
        length_of(grow, sized(0.6, 0.05), at_once=sized(20, 2))
        clock = ShareClock(seconds)
        clock.begin([(HOST_THREAD, kernels, None)])
        while clock.going():
            grow()
            told.copy_(decoder.tokens, non_blocking=True)
            clock.mark(BUSY)
            clock.step()
            synchronize()


def vgg_accumulating(seconds: float, *, batch: int, accumulate: int) -> None:
    """Healthy: VGG-16 in bf16, several batches to each step of the optimiser."""
    shape = sized(IMAGE, (3, 224, 224))
    with torch.device(DEVICE):
        network, seen = networks.vgg16(), torch.rand(sized(batch, 1), *shape)
        wanted = torch.zeros(len(seen), dtype=torch.long)
    trainer = Trainer(
        network, lambda network: functional.cross_entropy(network(seen), wanted), accumulate
    )

    def step(mark: Callable[[str], None]) -> None:
        trainer.step()
        mark(BUSY)

    _repeat(seconds, step)


class SumOfNeighbours(torch.autograd.Function):
    """A product with a sparse matrix, which is taken for symmetric."""

    @staticmethod
    def forward(ctx: Any, values: Any, matrix: Any) -> Any:
        """Same shape as `values`: node, width."""
        ctx.matrix = matrix
        with torch.autocast(DEVICE, enabled=False):
            return torch.sparse.mm(matrix, values)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Of the values alone."""
        return torch.sparse.mm(ctx.matrix, gradients[0].contiguous()), None


class SparseNetwork(nn.Module):
    """Graph convolutions as products of a sparse matrix and dense ones."""

    def __init__(self, matrix: Any, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self._matrix = matrix

    def forward(self, values: Any) -> Any:
        """Same shape as `values`: node, width."""
        for layer in self.layers:
            spread = SumOfNeighbours.apply(values.float(), self._matrix)
            values = values + functional.relu(layer(spread))
        return values


def sparse_graph(seconds: float, *, nodes: int, degree: int, layers: int, width: int) -> None:
    """Healthy: limited by the GPU's memory."""
    nodes, degree, width = sized((nodes, degree, width), (100, 4, 16))
    with torch.device(DEVICE):
        targets = torch.arange(nodes).repeat_interleave(degree)
        ends = torch.stack((targets, torch.randint(0, nodes, (nodes * degree,))))
        weights = torch.full((nodes * degree,), 1 / degree)
        matrix = torch.sparse_coo_tensor(ends, weights, (nodes, nodes)).coalesce()
        network, known = SparseNetwork(matrix, layers, width), torch.rand(nodes, width)
    trainer = Trainer(network, lambda network: network(known).float().square().mean())

    def step(mark: Callable[[str], None]) -> None:
        trainer.step()
        mark(BUSY)

    _repeat(seconds, step)


def merges_first(seconds: float, *, batch: int, preparing: float) -> None:
    """A vocabulary is learnt in plain Python for so long (s); the GPU only holds the network."""
    tokens = LoadedTokens(batch)
    trainer = Trainer(language_model(), tokens.loss)
    for _ in range(WARM_UP):
        trainer.step()
    synchronize()
    clock = ShareClock(seconds)
    clock.begin()
    clock.open(CPU)
    text = list(np.random.default_rng(0).integers(0, 60, 200_000).tolist())
    end = time.monotonic() + preparing
    while time.monotonic() < end:
        ((left, right), _) = Counter(itertools.pairwise(text)).most_common(1)[0]
        pairs = itertools.pairwise(text)
        text = [a + b if (a, b) == (left, right) else a for a, b in pairs] + text[-1:]
    clock.mark(CPU)
    while clock.going():
        trainer.step()
        clock.mark(BUSY)
        clock.step()


def saves_often(seconds: float, *, batch: int, every: int, writing: float) -> None:
    """After so many steps it writes for so long (s); each piece is on the disk before the next."""
    tokens = LoadedTokens(batch)
    trainer = Trainer(language_model(), tokens.loss)
    piece = os.urandom(sized(64 << 20, 1 << 20))
    for _ in range(WARM_UP):
        trainer.step()
    clock = ShareClock(seconds)
    with tempfile.TemporaryFile(dir=directory(), buffering=0) as file:
        clock.begin()
        for done in itertools.count(1):
            trainer.step()
            clock.mark(BUSY)
            clock.step()
            if done % every == 0:
                synchronize()
                end = time.monotonic() + writing
                os.lseek(file.fileno(), 0, os.SEEK_SET)
                while time.monotonic() < end:
                    os.write(file.fileno(), piece)
                    os.fsync(file.fileno())
                clock.mark(DISK)
            if not clock.going():
                return


def generation_server(seconds: float, *, pause: float, tokens: int, **sizes: int) -> None:
    """Requests come after pauses (s, mean; exponential); each is answered by 1 to 3 `tokens`."""
    asking, asked = socket.socketpair()
    serving = multiprocessing.get_context("fork").Process(
        target=_generate_for, args=(asked, seconds, tokens, sizes)
    )
    serving.start()
    numbers = random.Random(0)
    with contextlib.suppress(OSError):  # the server has gone
        while serving.is_alive():
            time.sleep(numbers.expovariate(1 / pause))
            asking.sendall(b"?")
    serving.join()


def _generate_for(asked: socket.socket, seconds: float, tokens: int, sizes: dict[str, int]) -> None:
    numbers = random.Random(1)
    with torch.no_grad():
        decoder = Decoder(**sizes)

        def grow() -> None:
            decoder.grow()
            decoder.places.add_(1).remainder_(decoder.positions)

        run = recorded(grow)
        for _ in range(tokens):
            run()
        synchronize()
        while select.select([asked], [], [], 0)[0]:
            asked.recv(4096)  # who asked during the start has gone
        clock = ShareClock(seconds)
        clock.begin()
        while clock.going():
            waiting = select.select([asked], [], [], POLL_EVERY)[0]
            clock.mark(UNKNOWN)
            if waiting:
                asked.recv(1)
                for _ in range(numbers.randint(tokens, 3 * tokens)):
                    run()
                synchronize()
                clock.mark(BUSY)
            clock.tell()
