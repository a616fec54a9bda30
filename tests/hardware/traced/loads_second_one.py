"""Loads of one GPU."""

import contextlib
import ctypes
import io
import json
import multiprocessing
import os
import queue
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.hardware.traced.load import SERVER, Load
from tests.hardware.traced.loads_second import adam, begin, gpt, loss_of, repeat, sized
from tests.hardware.traced.loads_second_more import photos, resnet, scaled
from tests.hardware.traced.marks import Marks


def beside(target: Callable[..., None], *args: Any) -> None:
    """A process that dies with this one; call before the GPU is used."""

    def run() -> None:
        ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
        target(*args)

    multiprocessing.get_context("fork").Process(target=run, daemon=True).start()


def _object_store(listener: Any, rate: float) -> None:
    """Send as many bytes as asked for on each connection, at a rate (bytes/s)."""
    block = os.urandom(1 << 18)

    def answer(connection: Any) -> None:
        at = time.monotonic()
        while asked := connection.recv(8):
            (left,) = struct.unpack("<q", asked)
            at = max(at, time.monotonic() - 0.01)
            while left:
                part = block[: min(left, len(block))]
                connection.sendall(part)
                left -= len(part)
                at += len(part) / rate
                time.sleep(max(0.0, at - time.monotonic()))

    while True:
        threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()


def streamed_shards(marks: Marks) -> None:
    """Two threads fetch raw images from a distant store for a ResNet that could use more."""
    import torch

    listener = socket.create_server(("127.0.0.1", 0))
    beside(_object_store, listener, 60e6)
    device = begin()
    batch, edge = sized((128, 160), (4, 32))
    model = resnet(*sized((64, (3, 4, 6, 3)), (4, (1, 1)))).to(device)
    optimizer = adam(model, device)
    fetched: queue.Queue[Any] = queue.Queue(4)

    def fetch() -> None:
        with socket.create_connection(listener.getsockname()) as connection:
            while True:
                images = torch.empty(batch, 3, edge, edge, dtype=torch.uint8)
                into = memoryview(images.numpy()).cast("B")
                connection.sendall(struct.pack("<q", len(into)))
                while into:
                    into = into[connection.recv_into(into) :]
                fetched.put(images)

    for _ in range(2):
        threading.Thread(target=fetch, daemon=True).start()

    def step() -> None:
        with marks.waits("network"):
            images = fetched.get()
        labels = torch.randint(1000, (batch,)).to(device)
        loss, _ = loss_of(model, scaled(images, device), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    repeat(marks, step)


def _people(address: Any, interval: float) -> None:
    """Ask for pictures now and then."""

    def ask(number: int) -> None:
        with contextlib.suppress(OSError), socket.create_connection(address) as connection:
            request = {"prompt": f"a picture of {number} sheep", "seed": number}
            connection.sendall(json.dumps(request).encode() + b"\n")
            while connection.recv(1 << 16):
                pass

    number = 0
    while True:
        time.sleep(interval * random.uniform(0.6, 1.4))
        number += 1
        threading.Thread(target=ask, args=(number,), daemon=True).start()


def _unet(width: int) -> Any:
    """Predicts noise at three resolutions, with attention at the two lower ones."""
    import torch
    from torch import nn

    class Res(nn.Module):
        def __init__(self, a: int, b: int, attends: bool) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.GroupNorm(8, a), nn.SiLU(), nn.Conv2d(a, b, 3, 1, 1))
            self.second = nn.Sequential(nn.GroupNorm(8, b), nn.SiLU(), nn.Conv2d(b, b, 3, 1, 1))
            self.time = nn.Linear(256, b)
            self.side = nn.Conv2d(a, b, 1) if a != b else nn.Identity()
            self.qkv = nn.Linear(b, 3 * b) if attends else None
            self.out = nn.Linear(b, b)

        def forward(self, x: Any, when: Any) -> Any:
            x = self.side(x) + self.second(self.first(x) + self.time(when)[..., None, None])
            if self.qkv is not None:
                flat = self.qkv(x.flatten(2).transpose(1, 2)).unflatten(2, (3, 8, -1))
                q, k, v = flat.permute(2, 0, 3, 1, 4)
                seen = nn.functional.scaled_dot_product_attention(q, k, v)
                seen = self.out(seen.transpose(1, 2).flatten(2))
                x = x + seen.transpose(1, 2).reshape(x.shape)
            return x

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            a, b, c = width, 2 * width, 4 * width
            self.enter, self.leave = nn.Conv2d(4, a, 3, 1, 1), nn.Conv2d(a, 4, 3, 1, 1)
            pairs = [(a, a, False), (a, b, True), (b, c, True)]
            self.down = nn.ModuleList(Res(*pair) for pair in pairs)
            self.more = nn.ModuleList(Res(y, y, s) for _, y, s in pairs)
            backs = [(c + c, c, True), (c + b, b, True), (b + a, a, False)]
            self.up = nn.ModuleList(Res(*pair) for pair in backs)

        def forward(self, x: Any, when: Any) -> Any:
            x, kept = self.enter(x), []
            for level, (one, two) in enumerate(zip(self.down, self.more, strict=True)):
                x = two(one(x if not level else nn.functional.avg_pool2d(x, 2), when), when)
                kept.append(x)
            for level, one in enumerate(self.up):
                x = x if not level else nn.functional.interpolate(x, scale_factor=2.0)
                x = one(torch.cat([x, kept.pop()], 1), when)
            return self.leave(x)

    return UNet()


def pictures_on_request(marks: Marks) -> None:
    """Four pictures by diffusion for each request that comes in, sent as JPEG."""
    import torch
    from PIL import Image  # type: ignore[import-not-found, unused-ignore]
    from torch import nn

    listener = socket.create_server(("127.0.0.1", 0))
    beside(_people, listener.getsockname(), sized(0.45, 0.2))
    device = begin()
    kind = sized(torch.bfloat16, torch.float32)
    width, edge, steps = sized((320, 64, 30), (8, 16, 2))
    unet = _unet(width).to(device, kind).eval()
    growing = [(4, 256, 1), (256, 256, 2), (256, 128, 2), (128, 128, 2), (128, 3, 1)]
    decoder = nn.Sequential()
    for a, b, by in growing:
        decoder.extend([nn.Upsample(scale_factor=by), nn.SiLU(), nn.Conv2d(a, b, 3, 1, 1)])
    decoder.to(device, kind)

    def step() -> None:
        with marks.waits("requests"):
            connection, _ = listener.accept()
            asked = json.loads(connection.makefile().readline())
        torch.manual_seed(asked["seed"])
        x = torch.randn(4, 4, edge, edge).to(device, kind)
        for when in torch.linspace(1, 0, steps).tolist():
            embedded = torch.full((8, 256), when, device=device, dtype=kind).cos()
            plain, wanted = unet(torch.cat([x, x]), embedded).chunk(2)
            x = x - (plain + 5 * (wanted - plain)) / steps
        images = decoder(x).clamp(-1, 1).add(1).mul(127).byte().permute(0, 2, 3, 1).cpu().numpy()
        with connection, contextlib.suppress(OSError):
            for image in images:
                Image.fromarray(image).save(file := io.BytesIO(), "JPEG", quality=90)
                connection.sendall(file.getvalue())

    with torch.inference_mode():
        repeat(marks, step, warm=3)


def polling_server(marks: Marks) -> None:
    """An engine with its model loaded looks for requests each millisecond; none come, only a check
    of its health once a second."""
    import torch

    device = begin()
    vocab, width, layers, heads = sized((32000, 2048, 12, 16), (100, 32, 2, 2))
    model = gpt(vocab, width, layers, heads).to(device, sized(torch.bfloat16, torch.float32))
    requests: queue.Queue[Any] = queue.Queue()
    checked = 0.0

    def step() -> None:
        nonlocal checked
        with marks.waits("requests"):
            for _ in range(20):
                if not requests.empty():
                    break
                time.sleep(0.001)
        if time.monotonic() - checked > 1:
            checked = time.monotonic()
            model(torch.zeros(1, 8, dtype=torch.int64, device=device))[0, -1].argmax().item()

    with torch.inference_mode():
        repeat(marks, step)


def distillation(marks: Marks) -> None:
    """A small ResNet learns from a wide one; eight workers decode the photos."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    batches = photos(*sized((96, 8, 224), (4, 1, 32)))
    device = begin()
    teacher = resnet(*sized((128, (3, 4, 23, 3)), (8, (1, 1)))).to(device).eval()
    student = resnet(*sized((48, (2, 2, 2, 2)), (4, (1, 1)))).to(device)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)

    def step() -> None:
        with marks.waits("cpu"):
            images, labels = next(batches)
        images, labels = scaled(images, device), labels.to(device, non_blocking=True)
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
            wanted = (teacher(images).float() / 4).softmax(-1)
        loss, logits = loss_of(student, images, labels)
        said = (logits.float() / 4).log_softmax(-1)
        loss = 0.3 * loss + 16 * F.kl_div(said, wanted, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    repeat(marks, step, warm=10)


def sampled_graph(marks: Marks) -> None:
    """GraphSAGE: the main thread samples neighbours with NumPy and gathers their features."""
    import numpy as np
    import torch
    from torch import nn

    device = begin()
    nodes, wide, seeds, fans = sized((1_000_000, 256, 1024, (15, 10)), (1000, 16, 16, (3, 2)))
    rng = np.random.default_rng(0)
    starts = np.concatenate([[0], np.cumsum(rng.integers(1, 30, nodes))])
    neighbours = rng.integers(0, nodes, starts[-1], dtype=np.int64)
    features = rng.standard_normal((nodes, wide), dtype=np.float32)
    labels = rng.integers(0, 47, nodes)

    class Layer(nn.Module):
        def __init__(self, a: int, b: int) -> None:
            super().__init__()
            self.own, self.around = nn.Linear(a, b), nn.Linear(a, b)

        def forward(self, x: Any, source: Any, count: int) -> Any:
            near = x[source].view(count, -1, x.shape[1]).mean(1)
            return self.own(x[:count]) + self.around(near)

    layers = nn.ModuleList([Layer(wide, 512), Layer(512, 47)]).to(device)
    optimizer = adam(layers, device)

    def step() -> None:
        reached = chosen = rng.choice(nodes, seeds, replace=False)
        hops = []
        for fan in fans:
            first, degree = starts[reached], starts[reached + 1] - starts[reached]
            drawn = (rng.random((len(reached), fan)) * degree[:, None]).astype(np.int64)
            near = neighbours[first[:, None] + drawn].ravel()
            fresh = np.setdiff1d(near, reached)
            everyone = np.concatenate([reached, fresh])
            ordered = np.argsort(everyone)
            source = ordered[np.searchsorted(everyone, near, sorter=ordered)]
            hops.append((torch.from_numpy(source).to(device), len(reached)))
            reached = everyone
        x = torch.from_numpy(features[reached]).to(device)
        x = layers[0](x, *hops[1]).relu()
        out = layers[1](x, *hops[0])
        loss = nn.functional.cross_entropy(out, torch.from_numpy(labels[chosen]).to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()

    repeat(marks, step)


LOADS = {
    "second_streamed_shards": Load(streamed_shards),
    "second_pictures_on_request": Load(pictures_on_request, regular=False, settles=SERVER),
    "second_polling_server": Load(polling_server, settles=SERVER),
    "second_distillation": Load(distillation, regular=False),
    "second_sampled_graph": Load(sampled_graph),
}
