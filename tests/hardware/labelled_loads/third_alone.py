"""One-GPU loads of the third blind trial whose data is there: no rule was made with them."""

import contextlib
import itertools
import multiprocessing
import random
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.hardware.labelled_loads.alone import recorded
from tests.hardware.labelled_loads.blind_input import LoadedTokens
from tests.hardware.labelled_loads.clock import ShareClock
from tests.hardware.labelled_loads.labels import BUSY, CPU, HOST_THREAD, UNKNOWN, Level
from tests.hardware.labelled_loads.models import Denoiser, LanguageModel
from tests.hardware.labelled_loads.serving import POLL_EVERY
from tests.hardware.labelled_loads.tasks import Trainer
from tests.hardware.labelled_loads.third_networks import Adapted, ManyHot, Mixer, blank, scanning
from tests.hardware.labelled_loads.work import length_of, sized
from tests.hardware.training import DEVICE, pinned, synchronize

WARM_UP = 4
"""Steps before the steady phase."""

VALIDATION_PASSES = 10

Mark = Callable[[str], None]
"""A clock's `mark`."""


def unmarked(_label: str) -> None:
    """In the place of a clock's `mark` before the steady phase."""


def steadily(
    seconds: float, step: Callable[[Mark], None], *, rank: int = 0, levels: Sequence[Level] = ()
) -> None:
    """Warm up, then mark the phases of one step after the other."""
    for _ in range(WARM_UP):
        step(unmarked)
    clock = ShareClock(seconds, rank)
    clock.begin(levels)
    while clock.going():
        step(clock.mark)
        clock.step()


def busily(seconds: float, step: Callable[[], Any]) -> None:
    """Steps that lose nothing."""

    def marked(mark: Mark) -> None:
        step()
        mark(BUSY)

    steadily(seconds, marked)


def unet_resolutions(seconds: float, *, batch: int, sides: Sequence[tuple[int, int]]) -> None:
    """Healthy: each batch of images has another resolution, drawn anew, and takes its own time."""
    shapes = sized(list(sides), [(16, 8), (8, 8)])
    numbers = random.Random(0)
    with torch.device(DEVICE):
        network = Denoiser()
        clean = [torch.rand(sized(batch, 2), 3, *shape) for shape in shapes]
    drawn = itertools.chain(2 * clean, iter(lambda: numbers.choice(clean), None))

    def loss(network: Any) -> Any:
        images = next(drawn)
        noise = torch.randn_like(images)
        return functional.mse_loss(network((images + noise) / 2), noise)

    trainer = Trainer(network, loss)
    for _ in range(2 * len(clean) - WARM_UP):
        trainer.step()
    busily(seconds, trainer.step)


def selective_scan(seconds: float, *, batch: int, length: int, width: int, layers: int) -> None:
    """Healthy: limited by the GPU's memory."""
    busily(seconds, Trainer(*scanning(batch, length, width, layers)).step)


def recommender(
    seconds: float, *, entries: int, width: int, features: int, hot: int, rows: int, wide: int
) -> None:
    """Healthy: gradients of a table are sparse, sorted and added up on the GPU."""
    entries, rows, wide = sized((entries, rows, wide), (500, 16, 32))
    with torch.device(DEVICE):
        network = ManyHot(entries, width, features, wide)
        seen = torch.randint(0, entries, (rows, features, hot))
    optimiser = torch.optim.SGD(network.parameters(), lr=1e-4)

    def step() -> None:
        with torch.autocast(DEVICE, torch.bfloat16):
            told = network(seen)
        told.float().square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()

    busily(seconds, step)


def adapters(
    seconds: float, *, batch: int, layers: int, width: int, rank: int, validate_every: int
) -> None:
    """Healthy: a frozen language model in bf16 is tuned by thin layers, and validated at times."""
    tokens = LoadedTokens(batch)
    with torch.device(DEVICE):
        network = LanguageModel(layers, width).to(torch.bfloat16).requires_grad_(False)
        for block in network.blocks:
            for name in ("mixed", "joined"):
                setattr(block, name, Adapted(getattr(block, name), rank))
    trainer = Trainer(network, tokens.loss)
    turns = itertools.count(1 - WARM_UP)

    def step() -> None:
        if next(turns) % validate_every == 0:
            with torch.no_grad():
                for _ in range(VALIDATION_PASSES):
                    trainer.loss()
        trainer.step()

    busily(seconds, step)


class Waves:
    """A field that swings in a box of side x side x side points, in FP32."""

    def __init__(self, side: int) -> None:
        with torch.device(DEVICE):
            self._now, self._before = torch.randn(2, side, side, side).unbind()
            self._speeds, self._bent, self._image = torch.full((3, *[side - 2] * 3), 0.1).unbind()
            distances = (torch.arange(side - 2)[:, None] - torch.arange(side - 2)).abs()
            self._smoothing = torch.softmax(-distances.float(), 1)

    def advance(self) -> None:
        """One step of time; what is seen now and before makes the image."""
        inside = slice(1, -1)
        inner = self._now[inside, inside, inside]
        torch.mul(inner, -6.0, out=self._bent)
        for place in (slice(0, -2), slice(2, None)):
            self._bent += self._now[place, inside, inside]
            self._bent += self._now[inside, place, inside]
            self._bent += self._now[inside, inside, place]
        after = self._before[inside, inside, inside]
        after.neg_().add_(inner, alpha=2.0).addcmul_(self._speeds, self._bent)
        self._image.addcmul_(after, inner, value=1e-6)
        self._now, self._before = self._before, self._now

    def learn(self, times: int) -> None:
        """Smooth the image by dense products, so many times; the speeds follow it."""
        for _ in range(times):
            for axis in range(3):
                turned = self._image.transpose(axis, 2)
                self._image = (turned @ self._smoothing).transpose(axis, 2).contiguous()
        self._speeds.add_(self._image, alpha=1e-6).clamp_(0.05, 0.2)
        self._image.zero_()


def wave_inversion(seconds: float, *, side: int, times: int, smoothing: int) -> None:
    """Healthy: a stencil limited by memory, so many steps of time to each update of the model."""
    side, times, smoothing = sized((side, times, smoothing), (8, 3, 1))
    waves = Waves(side)

    def step() -> None:
        for _ in range(times):
            waves.advance()
        waves.learn(smoothing)

    busily(seconds, step)


def phase_retrieval(seconds: float, *, views: int, side: int, rounds: int, sharpening: int) -> None:
    """Healthy, in JAX: there and back by FFT, many times; then dense products. One jitted step."""
    import jax
    import jax.numpy as jnp

    views, side, rounds, sharpening = sized((views, side, rounds, sharpening), (2, 16, 2, 1))
    keys = jax.random.split(jax.random.key(0), 2)
    measured = jnp.abs(jax.random.normal(keys[0], (views, side, side), jnp.float32)) * side
    sharp = jax.random.normal(keys[1], (side, side), jnp.float32) * side**-0.5

    def update(waves: Any, measured: Any, sharp: Any) -> Any:
        def there_and_back(_turn: int, waves: Any) -> Any:
            far = jnp.fft.fft2(waves)
            kept = far * (measured / (jnp.abs(far) + 1e-3))
            return 0.9 * jnp.fft.ifft2(kept) + 0.1 * waves

        def sharpened(_turn: int, values: Any) -> Any:
            values = values @ sharp
            return values / (1e-6 + jnp.max(jnp.abs(values)))

        waves = jax.lax.fori_loop(0, rounds, there_and_back, waves)
        added = jax.lax.fori_loop(0, sharpening, sharpened, jnp.abs(waves))
        return waves + 1e-3 * added

    step = jax.jit(update)
    waves = jnp.ones((views, side, side), jnp.complex64)
    for _ in range(WARM_UP):
        waves = jax.block_until_ready(step(waves, measured, sharp))
    clock = ShareClock(seconds, on_gpu=False)
    clock.begin()
    while clock.going():
        waves = jax.block_until_ready(step(waves, measured, sharp))
        clock.mark(BUSY)
        clock.step()


def compiled_lengths(
    seconds: float, *, preparing: float, layers: int, width: int, batch: int
) -> None:
    """JAX compiles a program for each length of sequences, for so long (s); then it trains.

    The layers are unrolled: the compiler sees each.
    """
    import jax
    import jax.numpy as jnp

    layers, width, batch = sized((layers, width, batch), (2, 16, 2))
    keys = jax.random.split(jax.random.key(0), 2)
    weights = jax.random.normal(keys[0], (layers, 2, width, width), jnp.bfloat16) * width**-0.5

    def loss(weights: Any, seen: Any) -> Any:
        told = seen
        for first, second in weights:
            mixed = jax.nn.softmax(told @ jnp.swapaxes(told, 1, 2) * width**-0.5) @ told
            told = told + jax.nn.gelu(mixed @ first) @ second
        return jnp.mean(jnp.square(told.astype(jnp.float32)))

    def update(weights: Any, seen: Any) -> Any:
        return weights - 1e-6 * jax.grad(loss)(weights, seen)

    lengths = itertools.count(sized(512, 8), 8)
    seen = jax.block_until_ready(
        jax.random.normal(keys[1], (batch, next(lengths), width), jnp.bfloat16)
    )
    clock = ShareClock(seconds, on_gpu=False)
    clock.begin()
    clock.open(CPU)
    end = time.monotonic() + preparing
    step = jax.jit(update).lower(weights, seen).compile()
    while time.monotonic() < end:
        longer = jax.ShapeDtypeStruct((batch, next(lengths), width), jnp.bfloat16)
        jax.jit(update).lower(weights, longer).compile()
    clock.mark(CPU)
    while clock.going():
        weights = jax.block_until_ready(step(weights, seen))
        clock.mark(BUSY)
        clock.step()


def policy_steps(seconds: float, *, carts: int, turns: int, width: int) -> None:
    """Carts with poles and the policy that drives them, all on the GPU, in the smallest kernels.

    The same step as a CUDA graph is what it would take if launching cost nothing.
    """
    turns = sized(turns, 3)
    with torch.device(DEVICE):
        policy = nn.Sequential(
            *(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()),
            nn.Linear(width, 2),
        )
        states = torch.rand(carts, 4) - 0.5
        seen, chosen = torch.zeros(turns, carts, 4), torch.zeros(turns, carts, dtype=torch.long)
    optimiser = torch.optim.SGD(policy.parameters(), lr=1e-4)

    def act(turn: int) -> None:
        seen[turn].copy_(states)
        drawn = torch.rand(carts, 2, device=DEVICE).add_(1e-6).log_().neg_().log_()
        chosen[turn].copy_((policy(states) - drawn).argmax(1))
        place, speed, angle, turning = states.unbind(1)
        pull = (chosen[turn] * 2 - 1 + 0.05 * turning.square() * angle.sin()) / 1.1
        fall = (9.8 * angle.sin() - angle.cos() * pull) / (0.67 - 0.05 * angle.cos().square())
        moved = (place + 0.02 * speed, speed + 0.02 * pull, angle + 0.02 * turning)
        states.copy_(torch.stack((*moved, turning + 0.02 * fall), 1).clamp_(-3, 3))

    def step() -> None:
        with torch.no_grad():
            for turn in range(turns):
                act(turn)
        optimiser.zero_grad(set_to_none=False)
        functional.cross_entropy(policy(seen.flatten(0, 1)), chosen.flatten()).backward()
        optimiser.step()

    kernels = length_of(recorded(step), at_once=sized(20, 2))
    length_of(step, at_once=sized(20, 2))

    def marked(mark: Mark) -> None:
        step()
        mark(BUSY)

    steadily(seconds, marked, levels=[(HOST_THREAD, kernels, None)])


def _pauses(each: float, demand: float, *, bursts: bool) -> Iterator[float]:
    """Seconds between requests that take so long `each` (s) and `demand` a share of the time."""
    numbers = random.Random(0)
    while not bursts:
        yield numbers.expovariate(demand / each)
    while True:
        asked = numbers.randint(10, 50)
        yield asked * each * (1 / demand - 0.7) * numbers.uniform(0.5, 1.5)
        for _ in range(asked):
            yield numbers.expovariate(1 / (0.7 * each))


def image_server(seconds: float, *, batch: int, demand: float, bursts: bool) -> None:
    """Answers requests one by one; they come at random, or in bursts faster than the answers."""
    asking, asked = socket.socketpair()
    context = multiprocessing.get_context("fork")
    serving = context.Process(target=_serve, args=(asked, seconds, batch))
    serving.start()
    asked.close()
    with contextlib.suppress(OSError, struct.error):  # the server has gone
        (each,) = struct.unpack("d", asking.recv(8))
        for pause in _pauses(each, demand, bursts=bursts):
            time.sleep(pause)
            asking.sendall(b"?")
    serving.join()


def _serve(asked: socket.socket, seconds: float, batch: int) -> None:
    stored = pinned(blank(batch))
    seen = stored.to(DEVICE)
    told = pinned(torch.zeros(len(seen), dtype=torch.long))
    with torch.device(DEVICE):
        network = Mixer()

    def answer() -> None:
        seen.copy_(stored, non_blocking=True)
        with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16):
            told.copy_(network(seen.float() / 255).argmax(1), non_blocking=True)
        synchronize()

    asked.sendall(struct.pack("d", length_of(answer, sized(1.0, 0.1))))
    clock = ShareClock(seconds)
    clock.begin()
    while clock.going():
        waiting = select.select([asked], [], [], POLL_EVERY)[0]
        clock.mark(UNKNOWN)
        if waiting:
            asked.recv(1)
            answer()
            clock.mark(BUSY)
        clock.tell()
