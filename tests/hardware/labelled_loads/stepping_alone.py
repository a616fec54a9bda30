"""One-GPU jobs of different make whose steps are to be read, and work that has no steps.

Their clocks tell steps; shares only of those that the host never holds up: each size of batch
that is new costs it time, of which events on the GPU know nothing.
"""

import itertools
import random
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.hardware import networks
from tests.hardware.labelled_loads.clock import ShareClock
from tests.hardware.labelled_loads.labels import BUSY, CPU, UNKNOWN
from tests.hardware.labelled_loads.models import Denoiser, LanguageModel, TransformerBlock
from tests.hardware.labelled_loads.tasks import Loss, Trainer, diffusion, graphs, images, language
from tests.hardware.labelled_loads.third_alone import Mark, busily, steadily
from tests.hardware.labelled_loads.work import Products, sized
from tests.hardware.training import DEVICE, IMAGE, synchronize

TASKS: dict[str, Callable[..., tuple[Any, Loss]]] = {
    "language": language,
    "images": images,
    "diffusion": diffusion,
    "graphs": graphs,
}


def training(seconds: float, *, task: str, accumulate: int = 1, **sizes: Any) -> None:
    """One of the tasks; so many batches a step."""
    busily(seconds, Trainer(*TASKS[task](**sizes), accumulate).step)


def averaging(seconds: float, *, batch: int, share: float) -> None:
    """Diffusion that keeps a running mean of its weights."""
    trainer = Trainer(*diffusion(batch))
    weights = list(trainer.network.parameters())
    means = [weight.detach().clone() for weight in weights]

    def step() -> None:
        trainer.step()
        with torch.no_grad():
            torch._foreach_lerp_(means, weights, share)

    busily(seconds, step)


def scaled_half(seconds: float, *, batch: int) -> None:
    """A language model in FP16 with a scaled loss: the host waits for each step's result."""
    network, loss = language(batch)
    optimiser = torch.optim.SGD(network.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(DEVICE)

    def step() -> None:
        with torch.autocast(DEVICE, torch.float16):
            value = loss(network)
        scaler.scale(value).backward()
        scaler.step(optimiser)
        scaler.update()
        optimiser.zero_grad()

    busily(seconds, step)


def adversarial(seconds: float, *, batch: int, rounds: int) -> None:
    """Two networks in turns: so many steps of one that judges, then one of that which draws."""
    side = sized(64, 16)
    with torch.device(DEVICE):
        drawing, judging = Denoiser(), networks.resnet50()
        real = torch.rand(sized(batch, 2), IMAGE[0], side, side)
    draws = torch.optim.AdamW(drawing.parameters(), lr=1e-5)
    judges = torch.optim.AdamW(judging.parameters(), lr=1e-5)

    def step() -> None:
        with torch.autocast(DEVICE, torch.bfloat16):
            for _ in range(rounds):
                with torch.no_grad():
                    drawn = drawing(torch.randn_like(real))
                (judging(real).mean() - judging(drawn).mean()).backward()
                judges.step()
                judges.zero_grad()
            judging(drawing(torch.randn_like(real))).mean().backward()
            draws.step()
            draws.zero_grad()

    busily(seconds, step)


def recurrent(seconds: float, *, batch: int, length: int, width: int, layers: int) -> None:
    """An LSTM over sequences."""
    batch, length, width = sized((batch, length, width), (2, 8, 16))
    with torch.device(DEVICE):
        network = nn.LSTM(width, width, layers, batch_first=True).to(torch.bfloat16)
        seen = torch.randn(batch, length, width, dtype=torch.bfloat16)
    optimiser = torch.optim.SGD(network.parameters(), lr=1e-4)

    def step() -> None:
        network(seen)[0].float().square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()

    busily(seconds, step)


def bodies(seconds: float, *, count: int, moves: int) -> None:
    """Every body pulls every other, so many times a step: no network, in FP32."""
    count, moves = sized((count, moves), (64, 2))
    with torch.device(DEVICE):
        places, speeds = torch.randn(2, count, 3).unbind()

    def step() -> None:
        for _ in range(moves):
            distances = torch.cdist(places, places).add_(0.1).pow_(-3)
            speeds.add_(distances @ places - places * distances.sum(1, keepdim=True), alpha=1e-6)
            places.add_(speeds, alpha=1e-3)
        places.sub_(places.mean(0))

    busily(seconds, step)


def validating(seconds: float, *, batch: int, every: int, passes: int) -> None:
    """Images, and so many passes without gradients after every so many steps."""
    trainer = Trainer(*images(batch))
    turns = itertools.count(1)

    def step() -> None:
        if next(turns) % every == 0:
            with torch.no_grad():
                for _ in range(passes):
                    trainer.loss()
        trainer.step()

    busily(seconds, step)


def jittering(seconds: float, *, batch: int, pause: float, spread: float) -> None:
    """The main thread computes for a while before each step, now longer, now shorter."""
    trainer, numbers = Trainer(*images(batch)), random.Random(0)

    def step(mark: Mark) -> None:
        end = time.monotonic() + pause * max(0.2, numbers.gauss(1.0, spread))
        while time.monotonic() < end:
            sum(range(1000))
        mark(CPU)
        trainer.step()
        synchronize()
        mark(BUSY)

    steadily(seconds, step)


def towers(seconds: float, *, batch: int, width: int, layers: int) -> None:
    """Two transformers whose outputs are compared, each with each (contrastive)."""
    batch, width = sized((batch, width), (4, 64))
    with torch.device(DEVICE):
        one, other = (
            nn.Sequential(*(TransformerBlock(width, width // 64) for _ in range(layers)))
            for _ in range(2)
        )
        seen = torch.randn(2, batch, 77, width)
    both = nn.ModuleList((one, other))

    def loss(_network: Any) -> Any:
        left, right = (tower(values)[:, -1] for tower, values in zip(both, seen, strict=True))
        alike = functional.normalize(left, dim=1) @ functional.normalize(right, dim=1).T
        return functional.cross_entropy(alike * 10, torch.arange(batch, device=DEVICE))

    busily(seconds, Trainer(both, loss).step)


# Work without steps


def lengths(seconds: float, *, batch: int) -> None:
    """A language model on sequences of any length, drawn anew for each batch."""
    network = LanguageModel().to(DEVICE)
    numbers = random.Random(0)

    def loss(network: Any) -> Any:
        shape = (sized(batch, 2), numbers.randint(sized(100, 8), sized(1024, 16)))
        tokens = torch.randint(0, sized(50304, 512), shape, device=DEVICE)
        return network(tokens).float().square().mean()

    busily(seconds, Trainer(network, loss).step)


def batches(seconds: float, *, most: int) -> None:
    """Images in batches of any size, drawn anew for each."""
    network, _ = images(2)
    seen = torch.rand(sized(most, 4), *sized(IMAGE, (3, 32, 32)), device=DEVICE)
    numbers = random.Random(0)
    trainer = Trainer(network, lambda network: network(seen[: numbers.randint(2, len(seen))]).sum())
    busily(seconds, trainer.step)


def sampling(seconds: float, *, batch: int, most: int) -> None:
    """Images are drawn by diffusion, each set in another number of passes, one after the other."""
    network, _ = diffusion(2)
    noise = torch.randn(sized(batch, 2), 3, sized(64, 16), sized(64, 16), device=DEVICE)
    numbers = random.Random(0)

    def step() -> None:
        values = noise
        with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16):
            for _ in range(numbers.randint(3, most)):
                values = values - 0.01 * network(values)

    busily(seconds, step)


def notebook(seconds: float, *, longest: float, pause: float) -> None:
    """Somebody tries things: work for a while, a look at it, work for another while."""
    products, numbers = Products(mixed=True), random.Random(0)
    clock = ShareClock(seconds)
    clock.begin()
    while clock.going():
        end = time.monotonic() + longest * numbers.random() ** 2
        while time.monotonic() < end:
            products.run(numbers.randint(1, 30))
            synchronize()
        clock.mark(BUSY)
        clock.tell()
        time.sleep(pause * numbers.random())
        clock.mark(UNKNOWN)
        clock.tell()
