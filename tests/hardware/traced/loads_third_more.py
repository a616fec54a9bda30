"""Loads of one GPU: checkpoints, two processes on it, a CUDA graph, JAX, a table in host memory."""

import io
import os
import time
from pathlib import Path
from typing import Any

from tests.hardware.traced.load import Load
from tests.hardware.traced.loads_third import (
    FEW_THREADS,
    die_with_parent,
    folder,
    library,
    place,
    residual_net,
)
from tests.hardware.traced.marks import Marks


def checkpoints(marks: Marks) -> None:
    """Training that keeps a checkpoint of its weights and moments every two seconds, and waits
    until it lies on the disk."""
    import torch
    from torch import nn

    device, cuda = place()
    home = folder()
    noise = os.urandom((256 if cuda else 1) << 20)
    start = time.monotonic()
    with open(home / "new.pt", "wb") as trial:
        trial.write(noise)
        trial.flush()
        os.fsync(trial.fileno())
    slow = time.monotonic() - start > 0.35  # a disk that takes in less than 700 MB/s
    width, layers = (1024, 3 if slow else 8) if cuda else (32, 1)
    block = nn.TransformerEncoderLayer(width, 16, width * 4, 0.1, batch_first=True, norm_first=True)
    net = nn.TransformerEncoder(block, layers, enable_nested_tensor=False).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    x = torch.randn(16 if cuda else 2, 256 if cuda else 16, width, device=device)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            loss = (net(x).float() - x).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        loss.item()
        marks.step()

    def save() -> None:
        new = home / "new.pt"
        with open(new, "wb") as file:
            state = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, file)  # 0.5 or 1.2 GB
            file.flush()
            with marks.waits("disk"):
                os.fsync(file.fileno())
        new.replace(home / "last.pt")

    def round_() -> None:
        until = time.monotonic() + (1.5 if cuda else 0.3)
        while time.monotonic() < until:
            step()
        save()

    round_()
    marks.steady()
    while marks.going():
        round_()


def evaluate(path: str, small: bool) -> None:
    """The second process of `train_and_evaluate`: evaluates the latest weights again and again."""
    die_with_parent()
    import torch

    device, _ = place()
    net = residual_net(3, 4 if small else 96, 3, 100).to(device).eval()
    images = torch.randn(8 if small else 256, 3, 32 if small else 160, 32 if small else 160)
    images = images.to(device)
    with torch.inference_mode():
        while True:
            net.load_state_dict(torch.load(io.BytesIO(Path(path).read_bytes()), device))
            right = 0.0
            for part in images.chunk(8):
                right += net(part).argmax(1).float().mean().item()
            time.sleep(0.05)  # until it looks for new weights again


def train_and_evaluate(marks: Marks) -> None:
    """A trainer whose loop makes its own pictures, and a process beside it that evaluates the
    weights that it saves, on the same GPU."""
    import multiprocessing

    import numpy as np
    import torch
    from torch.nn import functional

    device, cuda = place()
    net = residual_net(3, 96 if cuda else 4, 3, 100).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    weights = folder() / "weights.pt"

    def save() -> None:
        new = weights.with_suffix(".new")
        torch.save(net.state_dict(), new)
        new.replace(weights)

    save()
    context = multiprocessing.get_context("spawn")
    beside = context.Process(target=evaluate, args=(str(weights), not cuda), daemon=True)
    beside.start()
    rng = np.random.default_rng(5)
    batch, edge = (24, 160) if cuda else (2, 32)
    raw = rng.integers(0, 255, (256 if cuda else 8, edge + 16, edge + 16, 3), dtype=np.uint8)

    def step(number: int) -> None:
        images = []
        for wanted in rng.integers(0, len(raw), batch):
            top, left = rng.integers(0, 16, 2)
            crop = raw[wanted, top : top + edge, left : left + edge].astype(np.float32) / 255
            images.append((crop - crop.mean((0, 1))) / (crop.std((0, 1)) + 1e-3))
        x = torch.from_numpy(np.stack(images)).to(device).permute(0, 3, 1, 2).contiguous()
        y = torch.from_numpy(rng.integers(0, 100, batch)).to(device)
        loss = functional.cross_entropy(net(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        loss.item()
        if number % 50 == 0:
            save()
        marks.step()

    until, number = time.monotonic() + (14 if cuda else 1), 0  # the other one starts meanwhile
    while time.monotonic() < until:
        number += 1
        step(number)
    marks.steady()
    while marks.going():
        number += 1
        step(number)


def graphed(marks: Marks) -> None:
    """Pretraining whose whole step is one CUDA graph: the GPU is busy all the time."""
    import torch
    from torch import nn
    from torch.nn import functional

    device, cuda = place()
    width, layers, batch, length = (1024, 8, 8, 1024) if cuda else (32, 1, 2, 16)
    block = nn.TransformerEncoderLayer(
        width, 16, width * 4, 0.0, "gelu", batch_first=True, norm_first=True
    )
    body = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
    net = nn.Sequential(nn.Embedding(16384, width), body, nn.Linear(width, 16384))
    net = net.to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, capturable=cuda)
    data = torch.randint(0, 16384, (64, batch, length + 1), device=device)
    given = data[0].clone()

    def train() -> Any:
        optimizer.zero_grad(set_to_none=True)
        logits = net(given[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), given[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = train
    events: list[Any] = []
    if cuda:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                train()
        torch.cuda.current_stream().wait_stream(side)
        optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            train()
        run = graph.replay
        events = [torch.cuda.Event() for _ in range(2)]

    def step(number: int) -> None:
        given.copy_(data[number % len(data)])
        run()
        if events:  # two steps are under way at most
            events[number % 2].record()
            events[(number + 1) % 2].synchronize()
        marks.step()

    for number in range(10 if cuda else 1):
        step(number)
    marks.steady()
    while marks.going():
        number += 1
        step(number)


def flax_mixer(marks: Marks) -> None:
    """JAX and Flax: a small mixer trained by a jitted step, batches made by NumPy in the loop."""
    import jax
    import numpy as np
    from jax import numpy as jnp

    optax = library("optax")
    nn: Any = library("flax.linen")
    cuda = jax.default_backend() == "gpu"
    batch, width, layers = (768, 512, 4) if cuda else (8, 16, 1)

    class Mixer(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = x.reshape(x.shape[0], 8, 8, 8, 8, 3).swapaxes(2, 3).reshape(x.shape[0], 64, 192)
            x = nn.Dense(width)(x)
            for _ in range(layers):
                y = nn.LayerNorm()(x).swapaxes(1, 2)
                x = x + nn.Dense(64)(nn.gelu(nn.Dense(256)(y))).swapaxes(1, 2)
                x = x + nn.Dense(width)(nn.gelu(nn.Dense(4 * width)(nn.LayerNorm()(x))))
            return nn.Dense(200)(x.mean(1))

    net = Mixer()
    rng = np.random.default_rng(7)
    images = rng.integers(0, 255, (4096 if cuda else 64, 64, 64, 3), dtype=np.uint8)
    labels = rng.integers(0, 200, len(images))
    weights = jax.jit(net.init)(jax.random.PRNGKey(0), jnp.zeros((1, 64, 64, 3)))
    optimizer = optax.adamw(1e-3)

    @jax.jit
    def train(weights: Any, moments: Any, x: Any, y: Any) -> Any:
        def loss_of(given: Any) -> Any:
            losses = optax.softmax_cross_entropy_with_integer_labels(net.apply(given, x), y)
            return losses.mean()

        loss, slope = jax.value_and_grad(loss_of)(weights)
        change, moments = optimizer.update(slope, moments, weights)
        return optax.apply_updates(weights, change), moments, loss

    state = (weights, jax.jit(optimizer.init)(weights))

    def step() -> None:
        nonlocal state
        chosen = rng.integers(0, len(images), batch)
        x = (images[chosen].astype(np.float32) / 255 - 0.5) * 4
        *new, loss = train(*state, x, labels[chosen])
        state = tuple(new)
        float(loss)
        marks.step()

    for _ in range(6):
        step()
    marks.steady()
    while marks.going():
        step()


def k_means(marks: Marks) -> None:
    """Clusters of a table that stays in pinned host memory: it crosses PCIe in every round."""
    import torch

    device, cuda = place()
    rows, many, clusters = (1 << 20, 8, 256) if cuda else (1 << 10, 2, 8)
    table = torch.empty(many, rows, 64, pin_memory=cuda)
    for part in table:
        part.copy_(torch.randn(rows, 64, device=device))
    centres = torch.randn(clusters, 64, device=device)
    ones = torch.ones(rows, device=device)

    def step() -> None:
        nonlocal centres
        total, counts = torch.zeros_like(centres), torch.zeros(clusters, device=device)
        for part in table:
            points = part.to(device, non_blocking=True)
            far = centres.square().sum(1) - 2 * points @ centres.T
            nearest = far.argmin(1)
            total.index_add_(0, nearest, points)
            counts.index_add_(0, nearest, ones)
        new = total / counts.clamp(min=1)[:, None]
        (new - centres).norm().item()
        centres = new
        marks.step()

    for _ in range(4):
        step()
    marks.steady()
    while marks.going():
        step()


JAX = {**FEW_THREADS, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
LOADS = {
    "third_checkpoints": Load(checkpoints, regular=False, environment=FEW_THREADS),
    "third_train_and_evaluate": Load(train_and_evaluate, regular=False, environment=FEW_THREADS),
    "third_graphed": Load(graphed, healthy=True, environment=FEW_THREADS),
    "third_flax_mixer": Load(flax_mixer, environment=JAX),
    "third_k_means": Load(k_means, environment=FEW_THREADS),
}
