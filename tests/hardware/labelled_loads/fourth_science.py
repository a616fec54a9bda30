"""Healthy one-GPU loads of the fourth blind trial: no rule was made with them."""

from typing import Any

import torch
from torch import nn

from tests.hardware.labelled_loads.blind_input import words
from tests.hardware.labelled_loads.clock import ShareClock
from tests.hardware.labelled_loads.fourth_networks import Encoder, Experts
from tests.hardware.labelled_loads.labels import BUSY
from tests.hardware.labelled_loads.tasks import Trainer
from tests.hardware.labelled_loads.third_alone import WARM_UP, busily
from tests.hardware.labelled_loads.work import sized
from tests.hardware.training import DEVICE, pinned


def tight_half(seconds: float, *, rows: int, width: int, wide: int, count: int) -> None:
    """Healthy: nothing but the products of a language model's wide layers, in bf16."""
    rows, width, wide, count = sized((rows, width, wide, count), (16, 16, 32, 2))
    with torch.device(DEVICE):
        values = torch.randn(rows, width).to(torch.bfloat16)
        up = torch.randn(width, wide).to(torch.bfloat16)
        down = (torch.randn(wide, width) * wide**-0.5).to(torch.bfloat16)
        between, after = values @ up, torch.empty_like(values)

    def step() -> None:
        for _ in range(count):
            torch.matmul(values, up, out=between)
            torch.matmul(between, down, out=after)

    busily(seconds, step)


def tight_eighths(seconds: float, *, side: int, count: int) -> None:
    """Healthy: products of matrices of 8-bit floats, which begin as normal numbers."""
    side, count = sized((side, count), (32, 2))
    with torch.device(DEVICE):
        left, right = torch.randn(2, side, side).to(torch.bfloat16).unbind()
        unscaled = torch.ones(())
    if DEVICE != "cuda":
        busily(seconds, lambda: [left @ right for _ in range(count)])
        return
    first = left.to(torch.float8_e4m3fn)
    second = right.to(torch.float8_e4m3fn).t()  # column by column, as the hardware wants it

    def step() -> None:
        for _ in range(count):
            torch._scaled_mm(
                first, second, unscaled, unscaled, out_dtype=torch.bfloat16, use_fast_accum=True
            )

    busily(seconds, step)


def _grid(side: int) -> Any:
    """What each point of a periodic cube and its six neighbours make of a field, as a matrix."""
    places = torch.arange(side**3, device=DEVICE).view(side, side, side)
    around = [places.roll(by, axis) for axis in range(3) for by in (1, -1)]
    columns = torch.stack([places, *around], -1).view(-1, 7)
    values = torch.where(columns == columns[:, :1], 6.05, -1.0)
    columns, order = columns.sort(1)
    rows = torch.arange(0, columns.numel() + 1, 7, device=DEVICE)
    return torch.sparse_csr_tensor(
        rows.int(), columns.int().flatten(), values.gather(1, order).flatten(), (side**3, side**3)
    )


def conjugate_gradients(seconds: float, *, side: int, rounds: int) -> None:
    """Healthy: heat spreads in a cube; each step of time is a sparse system that is solved."""
    side, rounds = sized((side, rounds), (8, 3))
    matrix = _grid(side)
    warm = torch.rand(side**3, device=DEVICE)

    def step() -> None:
        found, rest = torch.zeros_like(warm), warm.clone()
        way, missed = rest.clone(), rest.dot(rest)
        for _ in range(rounds):
            bent = matrix @ way
            far = missed / (way.dot(bent) + 1e-30)
            found.addcmul_(way, far)
            rest.addcmul_(bent, far, value=-1)
            before, missed = missed, rest.dot(rest)
            way.mul_(missed / (before + 1e-30)).add_(rest)
        warm.copy_(found).div_(found.norm() + 1e-30)

    busily(seconds, step)


def lattice_flow(seconds: float, *, side: int, rounds: int) -> None:
    """Healthy, in JAX: a lattice Boltzmann method, limited by memory. One jitted call a step."""
    import jax
    import jax.numpy as jnp

    side, rounds = sized((side, rounds), (16, 2))
    ways = tuple((x, y) for x in (-1, 0, 1) for y in (-1, 0, 1))
    weights = [(4 / 9, 1 / 9, 1 / 36)[abs(x) + abs(y)] for x, y in ways]

    def advance(_turn: int, flow: Any) -> Any:
        come = [jnp.roll(flow[place], way, (0, 1)) for place, way in enumerate(ways)]
        dense = sum(come[1:], come[0])
        along = sum(x * part for (x, _), part in zip(ways, come, strict=True)) / dense
        across = sum(y * part for (_, y), part in zip(ways, come, strict=True)) / dense
        speed = 1.5 * (along * along + across * across)
        after = []
        for (x, y), weight, part in zip(ways, weights, come, strict=True):
            there = 3.0 * (x * along + y * across)
            still = weight * dense * (1 + there + 0.5 * there * there - speed)
            after.append(part + 0.6 * (still - part))
        return jnp.stack(after)

    step = jax.jit(lambda flow: jax.lax.fori_loop(0, rounds, advance, flow), donate_argnums=0)
    flow = jnp.asarray(weights, jnp.float32)[:, None, None] * (
        1 + 0.01 * jax.random.normal(jax.random.key(0), (9, side, side), jnp.float32)
    )
    for _ in range(WARM_UP):
        flow = jax.block_until_ready(step(flow))
    clock = ShareClock(seconds, on_gpu=False)
    clock.begin()
    while clock.going():
        flow = jax.block_until_ready(step(flow))
        clock.mark(BUSY)
        clock.step()


def guided_sampling(seconds: float, *, batch: int, layers: int, width: int, passes: int) -> None:
    """Healthy: images by a diffusion transformer, each pass with and without what is wanted."""
    batch, passes = sized((batch, passes), (1, 2))
    side, deep = sized((16, 4), (4, 4))  # pieces of an image; channels of a point
    with torch.device(DEVICE):
        network = Encoder(layers, width, words(), enter=4 * deep).to(torch.bfloat16)
        leave = nn.Linear(network.width, 4 * deep).to(torch.bfloat16)
        paint = nn.Sequential(
            nn.ConvTranspose2d(deep, 64, 4, 4), nn.SiLU(), nn.ConvTranspose2d(64, 3, 2, 2)
        ).to(torch.bfloat16)
        wanted = torch.randn(2 * batch, 1, network.width, dtype=torch.bfloat16)
    shape = (batch, side * side, 4 * deep)
    shown = pinned(torch.zeros(batch, 3, 16 * side, 16 * side, dtype=torch.uint8))

    def step() -> None:
        drawn = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)
        for _ in range(passes):
            noise, plain = leave(network(drawn.repeat(2, 1, 1), wanted)).chunk(2)
            drawn = 0.99 * drawn - 0.02 * (plain + 4.0 * (noise - plain))
        points = drawn.view(batch, side, side, deep, 2, 2).permute(0, 3, 1, 4, 2, 5)
        image = paint(points.reshape(batch, deep, 2 * side, 2 * side)).sigmoid() * 255
        shown.copy_(image.to(torch.uint8), non_blocking=True)

    with torch.no_grad():
        busily(seconds, step)


def mixture_of_experts(
    seconds: float, *, rows: int, width: int, wide: int, experts: int, layers: int
) -> None:
    """Healthy: every token asks two of many experts; all of them lie on this GPU."""
    rows, width, wide, experts = sized((rows, width, wide, experts), (32, 16, 32, 4))
    with torch.device(DEVICE):
        network = nn.Sequential(*(Experts(width, wide, experts) for _ in range(layers)))
        seen = torch.randn(rows, width).to(torch.bfloat16)
    trainer = Trainer(
        network.to(torch.bfloat16), lambda network: network(seen).float().square().mean()
    )
    busily(seconds, trainer.step)
