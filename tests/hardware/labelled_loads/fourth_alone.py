"""One-GPU loads of the fourth blind trial whose data is there: no rule was made with them."""

import io
import itertools
import math
import multiprocessing
import os
import random
import select
import socket
import struct
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tests.hardware.labelled_loads.alone import recorded
from tests.hardware.labelled_loads.blind_alone import Decoder
from tests.hardware.labelled_loads.blind_input import directory, words
from tests.hardware.labelled_loads.clock import ShareClock
from tests.hardware.labelled_loads.fourth_networks import Encoder, die_with_parent
from tests.hardware.labelled_loads.labels import BUSY, CPU, DISK, HOST_THREAD, PCIE, UNKNOWN
from tests.hardware.labelled_loads.serving import POLL_EVERY
from tests.hardware.labelled_loads.tasks import Trainer
from tests.hardware.labelled_loads.third_alone import WARM_UP, Mark, steadily
from tests.hardware.labelled_loads.work import length_of, sized
from tests.hardware.training import DEVICE, pinned, synchronize

WRITTEN = 16 << 20
"""Bytes written at once."""


def against_its_graph(seconds: float, step: Callable[[], None]) -> None:
    """The same step as a CUDA graph is what it would take if launching cost nothing."""
    kernels = length_of(recorded(step), at_once=sized(8, 2))
    length_of(step, at_once=sized(8, 2))

    def marked(mark: Mark) -> None:
        step()
        mark(BUSY)

    steadily(seconds, marked, levels=[(HOST_THREAD, kernels, None)])


def burgers_equation(seconds: float, *, points: int, width: int, layers: int, rounds: int) -> None:
    """A small network learns to obey an equation of its own derivatives, point by point."""
    points, rounds = sized((points, rounds), (16, 2))
    with torch.device(DEVICE):
        sides = (2, *(width for _ in range(layers)))
        hidden = [nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in itertools.pairwise(sides)]
        network = nn.Sequential(*hidden, nn.Linear(width, 1))
        places = torch.rand(points, 2, requires_grad=True)
    parameters = list(network.parameters())
    optimiser = torch.optim.SGD(parameters, lr=1e-4, momentum=0.9)

    def learn() -> None:
        optimiser.zero_grad(set_to_none=False)
        told = network(places)
        (slopes,) = torch.autograd.grad(told.sum(), places, create_graph=True)
        (bends,) = torch.autograd.grad(slopes[:, 0].sum(), places, create_graph=True)
        missed = slopes[:, 1] + told[:, 0] * slopes[:, 0] - 0.003 * bends[:, 0]
        missed.square().mean().backward(inputs=parameters)
        optimiser.step()

    def step() -> None:
        for _ in range(rounds):
            learn()

    against_its_graph(seconds, step)


def hamiltonian(
    seconds: float, *, chains: int, rows: int, width: int, leaps: int, moves: int
) -> None:
    """Chains of samples of a Bayesian logistic regression, all moved together, leap by leap."""
    leaps, moves = sized((leaps, moves), (2, 2))
    with torch.device(DEVICE):
        known, wanted = torch.randn(rows, width), torch.randint(0, 2, (rows,)).float()
        places = torch.zeros(chains, width)
    far = 0.5 * rows**-0.5

    def slope(places: Any) -> Any:
        return (torch.sigmoid(places @ known.T) - wanted) @ known + places

    def energy(places: Any, speeds: Any) -> Any:
        told = places @ known.T
        missed = (functional.softplus(told) - told * wanted).sum(1)
        return missed + 0.5 * (places.square() + speeds.square()).sum(1)

    def move() -> None:
        speeds = torch.randn_like(places)
        moved, pushed = places, speeds - 0.5 * far * slope(places)
        for _ in range(leaps):
            moved = moved + far * pushed
            pushed = pushed - far * slope(moved)
        pushed = pushed + 0.5 * far * slope(moved)
        likely = torch.exp(energy(places, speeds) - energy(moved, pushed))
        taken = torch.rand(chains, device=DEVICE) < likely
        places.copy_(torch.where(taken[:, None], moved, places))

    def step() -> None:
        for _ in range(moves):
            move()

    with torch.no_grad():
        against_its_graph(seconds, step)


def _ask(
    asking: socket.socket, answering: socket.socket, demand: float, tokens: tuple[int, int]
) -> None:
    die_with_parent()
    answering.close()  # else the server's end would not end the connection
    numbers = random.Random(0)
    each, first = struct.unpack("dd", asking.recv(16))
    mean = first + each * sum(tokens) / 2
    while True:  # as many as keep the server busy for that share, if all are answered at once
        time.sleep(numbers.expovariate(-math.log(1 - demand) / mean))
        asking.sendall(struct.pack("H", numbers.randint(*tokens)))


def continuous_batching(
    seconds: float, *, demand: float, tokens: tuple[int, int], slots: int, **sizes: int
) -> None:
    """A server of tokens: who asks joins those who are being answered, after a pass of his own.

    Requests come at random (Poisson). With none the GPU waits for nothing that is lacking.
    """
    tokens = sized(tokens, (2, 4))
    asking, asked = socket.socketpair()
    client = multiprocessing.get_context("fork").Process(
        target=_ask, args=(asking, asked, demand, tokens), daemon=True
    )
    client.start()
    asking.close()
    with torch.no_grad():
        _answer(seconds, asked, slots, sizes)
    client.kill()


def _answer(seconds: float, asked: socket.socket, slots: int, sizes: dict[str, int]) -> None:
    decoder = Decoder(batch=slots, **sizes)
    with torch.device(DEVICE):
        reader = Encoder(sizes["layers"], sizes["width"], words()).to(torch.bfloat16)
        prompt = torch.randint(0, words(), (1, sized(2048, 16)))

    def grow() -> None:
        decoder.grow()
        decoder.places.add_(1).remainder_(decoder.positions)

    run, told = recorded(grow), pinned(torch.zeros_like(decoder.tokens, device="cpu"))
    left = np.zeros(len(told), np.int64)  # tokens to come, by slot
    each = length_of(run, sized(0.5, 0.05), at_once=sized(20, 2))
    asked.sendall(struct.pack("dd", each, length_of(lambda: reader(prompt), sized(0.4, 0.05))))
    clock = ShareClock(seconds)
    clock.begin()
    while clock.going():
        idle = not left.any()
        waiting = select.select([asked], [], [], POLL_EVERY if idle else 0)[0]
        clock.mark(UNKNOWN if idle else HOST_THREAD)
        if waiting and not left.all():
            (wanted,) = struct.unpack("H", asked.recv(2))
            left[left.argmin()] = wanted
            reader(prompt)
        if left.any():
            run()
            told.copy_(decoder.tokens, non_blocking=True)
            clock.mark(BUSY)
            synchronize()
            left = np.maximum(left - 1, 0)
        clock.tell()


def exploring(seconds: float, *, rows: int, longest: float, pause: float) -> None:
    """Somebody asks a table this and that, and thinks about each answer."""
    rows, numbers = sized(rows, 2000), random.Random(0)
    with torch.device(DEVICE):
        prices, groups = torch.randn(rows), torch.randint(0, 10_000, (rows,))
        features, sums = torch.randn(rows // 64, 64), torch.zeros(10_000)
    questions: list[Callable[[], Any]] = [
        lambda: prices.sort(),
        lambda: sums.index_add_(0, groups, prices),
        lambda: prices.histc(100, -4, 4),
        lambda: features.T.corrcoef(),
        lambda: torch.cdist(features, features[:1024]).argmin(1),
        lambda: prices[prices > 1].mean(),
    ]
    for question in questions:
        question()
    clock = ShareClock(seconds)
    clock.begin()
    while clock.going():
        question, end = numbers.choice(questions), time.monotonic() + numbers.uniform(0.1, longest)
        while time.monotonic() < end:
            for _ in range(4):
                question()
            synchronize()
        clock.mark(BUSY)
        clock.tell(at_once=True)
        time.sleep(pause * numbers.uniform(0.2, 1.8))
        clock.mark(UNKNOWN)
        clock.tell()


class Pendulums:
    """Many chains of pendulums, moved by NumPy on one core."""

    def __init__(self, count: int, links: int) -> None:
        numbers = np.random.default_rng(0)
        self.angles = numbers.standard_normal((count, links), np.float32)
        self._speeds = np.zeros_like(self.angles)

    def advance(self, pushes: Any, times: int) -> None:
        """So many small steps of time under the same pushes: pendulum, link."""
        for _ in range(times):
            pulled = np.roll(self.angles, 1, axis=1) - 2 * self.angles
            pulled += np.roll(self.angles, -1, axis=1)
            self._speeds += 0.01 * (pulled - np.sin(self.angles) + np.tanh(pushes))
            self._speeds *= 0.999
            self.angles += 0.01 * self._speeds


def off_policy(
    seconds: float, *, count: int, links: int, width: int, rows: int, updates: int, share: float
) -> None:
    """Reinforcement learning: after each turn of environments on the main thread, some updates.

    The environments take so large a share of the time.
    """
    count, width, rows = sized((count, width, rows), (8, 16, 32))
    world = Pendulums(count, links)
    with torch.device(DEVICE):
        sides = (links, width, width, width)
        hidden = [nn.Sequential(nn.Linear(a, b), nn.SiLU()) for a, b in itertools.pairwise(sides)]
        policy = nn.Sequential(*hidden, nn.Linear(width, links))
        remembered = torch.randn(8 * rows, links)
    shown = pinned(torch.zeros(count, links))
    told = pinned(torch.zeros_like(shown))

    def loss(network: Any) -> Any:
        drawn = remembered[torch.randint(0, len(remembered), (rows,), device=DEVICE)]
        return (network(drawn).float() + drawn).square().mean()

    trainer, turns = Trainer(policy, loss), itertools.count()

    def learn() -> None:
        place = next(turns) * count % (len(remembered) - count)
        remembered[place : place + count].copy_(shown, non_blocking=True)
        for _ in range(updates):
            trainer.step()
        with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16):
            told.copy_(policy(remembered[place : place + count]), non_blocking=True)

    learning = length_of(learn, sized(0.6, 0.05))
    moving = length_of(lambda: world.advance(told.numpy(), 1), sized(0.3, 0.05))
    times = max(1, round(share / (1 - share) * learning / moving))

    def step(mark: Mark) -> None:
        world.advance(told.numpy(), times)
        shown.copy_(torch.from_numpy(world.angles))
        mark(CPU)
        learn()
        mark(BUSY)
        synchronize()

    steadily(seconds, step)


def keeps_and_validates(
    seconds: float, *, batch: int, layers: int, width: int, every: int, passes: int
) -> None:
    """After so many steps: a look at other data, then all weights are packed and on the disk."""
    with torch.device(DEVICE):
        network = Encoder(layers, width, words())
        seen = torch.randint(0, words(), (sized(batch, 2), sized(512, 16)))
    weights = [weight.detach() for weight in network.parameters()]
    kept = {f"{place}": pinned(weight.cpu()) for place, weight in enumerate(weights)}
    trainer = Trainer(network, lambda network: network(seen).float().square().mean())
    for _ in range(WARM_UP):
        trainer.step()
    packed = io.BytesIO()
    torch.save(kept, packed)  # memory is taken by now
    clock = ShareClock(seconds)
    with tempfile.TemporaryFile(dir=directory(), buffering=0) as file:
        clock.begin()
        for done in itertools.count(1):
            trainer.step()
            clock.mark(BUSY)
            clock.step()
            if done % every == 0:
                with torch.no_grad():
                    for _ in range(passes):
                        trainer.loss()
                clock.mark(BUSY)
                for weight, copy in zip(weights, kept.values(), strict=True):
                    copy.copy_(weight, non_blocking=True)
                clock.mark(PCIE)
                synchronize()
                packed.seek(0)
                torch.save(kept, packed)
                clock.mark(HOST_THREAD)
                file.seek(0)
                with packed.getbuffer() as content:
                    for at in range(0, len(content), WRITTEN):
                        file.write(content[at : at + WRITTEN])
                os.fsync(file.fileno())
                clock.mark(DISK)
            if not clock.going():
                return


def streamed_layers(seconds: float, *, rows: int, width: int, stored: int, layers: int) -> None:
    """A network too large for its GPU: each layer's weights come from the host when it is its turn.

    Nothing is copied beside what is computed.
    """
    rows, width = sized((rows, width), (16, 16))
    with torch.device(DEVICE):
        values = torch.randn(rows, width).to(torch.bfloat16)
        arrived = (torch.randn(8, width, width) * width**-0.5).to(torch.bfloat16)
    kept = []
    for _ in range(stored):
        place = torch.empty_like(arrived, device="cpu", pin_memory=DEVICE == "cuda")
        kept.append(place.copy_(arrived))
    turns = itertools.cycle(kept)

    def layer(values: Any) -> Any:
        up, down = arrived.view(2, 4, width, width).unbind()
        wide = [functional.silu(values @ part) for part in up]
        for one, part in zip(wide, down, strict=True):
            values = values + 0.1 * (one @ part)
        return functional.layer_norm(values, (width,))

    def step(mark: Mark) -> None:
        told = values
        for _ in range(layers):
            arrived.copy_(next(turns), non_blocking=True)
            mark(PCIE)
            told = layer(told)
            mark(BUSY)

    with torch.no_grad():
        steadily(seconds, step)
