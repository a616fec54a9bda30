"""Loads of one GPU: training that others feed, and what all loads of this set are made of. PyTorch
is imported by who needs it."""

import ctypes
import io
import multiprocessing
import os
import queue
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from tests.hardware.traced.load import Load
from tests.hardware.traced.marks import Marks


def on_gpu() -> bool:
    """Without a GPU a load is tried with tiny sizes."""
    import torch

    return bool(torch.cuda.is_available())


def size(big: int, small: int) -> int:
    """A size with and without a GPU."""
    return big if on_gpu() else small


def start(threads: int = 8) -> str:
    """The device of PyTorch, which is left so many cores."""
    import torch

    torch.manual_seed(1)
    torch.set_num_threads(min(threads, os.cpu_count() or 1) if on_gpu() else 1)
    torch.backends.cuda.matmul.allow_tf32 = True
    return "cuda" if on_gpu() else "cpu"


def made(function: Callable[..., Any], *given: Any) -> Any:
    """A model, made where it is used."""
    import torch

    with torch.device("cuda" if on_gpu() else "cpu"):
        return function(*given)


def wait() -> None:
    """Until the GPU has done all."""
    import torch

    if on_gpu():
        torch.cuda.synchronize()


def seconds(function: Callable[[], Any], times: int) -> float:
    """Return the duration of one call, the GPU's work included."""
    function()
    wait()
    begun = time.monotonic()
    for _ in range(times):
        function()
    wait()
    return (time.monotonic() - begun) / times


def die_with_parent(*_: object) -> None:
    """Also where the parent is killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _begin(function: Callable[..., None], *given: Any) -> None:
    die_with_parent()
    function(*given)


def child(function: Callable[..., None], *given: Any) -> None:
    """A process that computes beside this one; to be started before the GPU is used."""
    context = multiprocessing.get_context("fork")
    context.Process(target=_begin, args=(function, *given), daemon=True).start()


@cache
def block() -> Any:
    """The class of a transformer's block."""
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self, width: int, causal: bool) -> None:
            super().__init__()
            self.heads, self.causal = max(width // 64, 1), causal
            self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def split(self, x: Any) -> Any:
            rows = self.qkv(self.before(x)).view(*x.shape[:2], 3, self.heads, -1)
            return rows.permute(2, 0, 3, 1, 4).unbind(0)

        def join(self, x: Any, seen: Any) -> Any:
            x = x + self.out(seen.transpose(1, 2).reshape(x.shape))
            return x + self.down(functional.gelu(self.up(self.between(x))))

        def forward(self, x: Any) -> Any:
            attend = functional.scaled_dot_product_attention
            return self.join(x, attend(*self.split(x), is_causal=self.causal))

    return Block


def gpt(layers: int, width: int, vocabulary: int) -> Any:
    """A language model."""
    from torch import nn

    blocks = [block()(width, True) for _ in range(layers)]
    ends = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
    return nn.Sequential(nn.Embedding(vocabulary, width), *blocks, *ends)


def vit(layers: int, width: int, classes: int = 1000) -> Any:
    """A vision transformer, without positions."""
    from torch import nn

    class Vit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, width, 16, 16)
            self.blocks = nn.Sequential(*(block()(width, False) for _ in range(layers)))
            self.head = nn.Linear(width, classes)

        def forward(self, x: Any) -> Any:
            return self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(1))

    return Vit()


def resnet(depths: tuple[int, ...], width: int = 64, classes: int = 1000) -> Any:
    """(3, 4, 6, 3) is about ResNet-50."""
    from torch import nn

    def unit(came: int, goes: int, kernel: int, stride: int = 1) -> list[Any]:
        fold = nn.Conv2d(came, goes, kernel, stride, kernel // 2, bias=False)
        return [fold, nn.BatchNorm2d(goes)]

    class Residual(nn.Module):
        def __init__(self, came: int, inner: int, stride: int) -> None:
            super().__init__()
            first, second = unit(came, inner, 1), unit(inner, inner, 3, stride)
            third = unit(inner, 4 * inner, 1)
            self.main = nn.Sequential(*first, nn.ReLU(), *second, nn.ReLU(), *third)
            same = came == 4 * inner and stride == 1
            self.side = nn.Identity() if same else nn.Sequential(*unit(came, 4 * inner, 1, stride))

        def forward(self, x: Any) -> Any:
            return (self.main(x) + self.side(x)).relu()

    layers = [*unit(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    came = width
    for stage, depth in enumerate(depths):
        inner = width << stage
        for at in range(depth):
            layers.append(Residual(came, inner, 2 if stage and not at else 1))
            came = 4 * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(came, classes))


def trainer(model: Any, optimiser: Any) -> Callable[[Any, Any], Any]:
    """One step of training by a batch and its answers."""
    import torch
    from torch.nn import functional

    device = "cuda" if on_gpu() else "cpu"

    def step(x: Any, y: Any) -> Any:
        with torch.autocast(device, torch.bfloat16, enabled=on_gpu()):
            loss = functional.cross_entropy(model(x).flatten(0, -2), y.flatten())
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def scaled(pictures: Any) -> Any:
    """Bytes of pictures on the GPU, made fit for a network."""
    return pictures.float().sub_(127).div_(58)


def jpegs(count: int, width: int, height: int) -> list[bytes]:
    """Files as photographs are: smooth, with some noise."""
    import numpy as np
    from PIL import Image  # type: ignore[import-not-found,unused-ignore]

    generator = np.random.default_rng(1)
    files = []
    for _ in range(count):
        coarse = generator.integers(0, 255, (height // 16, width // 16, 3), dtype=np.uint8)
        smooth = np.asarray(Image.fromarray(coarse).resize((width, height)), dtype=np.float32)
        noisy = smooth + generator.normal(0, 9, smooth.shape)
        file = io.BytesIO()
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        files.append(file.getvalue())
    return files


class Pictures:
    """A data set of JPEGs, cropped and mirrored at random."""

    def __init__(self, files: list[bytes], side: int) -> None:
        self._files, self._side = files, side

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, at: int) -> tuple[Any, int]:
        import torch
        from PIL import Image  # type: ignore[import-not-found,unused-ignore]

        with Image.open(io.BytesIO(self._files[at % len(self._files)])) as file:
            whole = file.convert("RGB")
        edge = int(min(whole.size) * random.uniform(0.6, 1))
        left, top = (random.randint(0, most - edge) for most in whole.size)
        box = (left, top, left + edge, top + edge)
        cut = whole.resize((self._side, self._side), Image.Resampling.BILINEAR, box)
        if random.random() < 0.5:
            cut = cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.frombuffer(bytearray(cut.tobytes()), dtype=torch.uint8)
        return pixels.view(self._side, self._side, 3).permute(2, 0, 1), at % 10


def loader(data: Any, batch: int | None, workers: int) -> Any:
    """PyTorch's, with processes."""
    from torch.utils.data import DataLoader

    return DataLoader(
        data,
        batch_size=batch,
        num_workers=workers,
        pin_memory=on_gpu(),
        multiprocessing_context="fork",
        worker_init_fn=die_with_parent,
    )


def steps(marks: Marks, warm: int = 5) -> Iterator[int]:
    """Numbers of steps while the load is going, which is steady after some."""
    count = 0
    while marks.going() or count <= warm:
        yield count
        count += 1
        if count == warm:
            wait()
            marks.steady()
        elif count > warm:
            marks.step()


def fed(marks: Marks, source: Iterator[Any], cause: str) -> Iterator[Any]:
    """A batch a step."""
    for _ in steps(marks):
        with marks.waits(cause):
            batch = next(source)
        yield batch


def _train_on_pictures(marks: Marks, step: Any, source: Iterator[Any], cause: str) -> None:
    device = "cuda" if on_gpu() else "cpu"
    for x, y in fed(marks, source, cause):
        step(scaled(x.to(device, non_blocking=True)), y.to(device, non_blocking=True))


def images_slow_loader(marks: Marks) -> None:
    """A ResNet-50 that too few loader processes decode photographs for."""
    import torch

    start()
    files = jpegs(size(64, 4), 640, 480)
    source = iter(loader(Pictures(files, size(224, 64)), size(64, 4), size(4, 2)))
    model = made(resnet, (3, 4, 6, 3) if on_gpu() else (1, 1), size(64, 8))
    step = trainer(model, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9))
    _train_on_pictures(marks, step, source, "cpu")


def images_near_loader(marks: Marks) -> None:
    """A vision transformer whose number of loader processes is nearly enough."""
    import torch

    device = start()
    batch, side = size(48, 4), size(224, 64)
    data = Pictures(jpegs(size(64, 4), 500, 375), side)
    model = made(vit, size(24, 2), size(1024, 64))
    step = trainer(model, torch.optim.AdamW(model.parameters(), 1e-4, fused=on_gpu()))
    x = torch.zeros(batch, 3, side, side, device=device)
    y = torch.zeros(batch, dtype=torch.long, device=device)
    takes, decodes = (
        seconds(lambda: step(x, y), 5),
        seconds(lambda: data[random.randint(0, 63)], 40),
    )
    workers = min(max(round(0.9 * decodes * batch / takes), 1), size(11, 1))
    _train_on_pictures(marks, step, iter(loader(data, batch, workers)), "cpu")


class Texts:
    """A data set of tokens."""

    def __init__(self, vocabulary: int, length: int) -> None:
        self._vocabulary, self._length = vocabulary, length

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, at: int) -> Any:
        import numpy as np

        tokens = np.random.default_rng(at).zipf(1.3, self._length + 1)
        return tokens % self._vocabulary


def text_fast_loader(marks: Marks) -> None:
    """A language model with gradient accumulation, whose loader keeps up."""
    import torch
    from torch.nn import functional

    device = start()
    vocabulary, micro = size(32000, 100), 4
    source = iter(loader(Texts(vocabulary, size(1024, 32)), size(8, 2), 2))
    model = made(gpt, size(12, 2), size(1024, 64), vocabulary)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-4, fused=on_gpu())
    for count, tokens in enumerate(fed(marks, source, "cpu")):
        text = tokens.to(device, non_blocking=True)
        with torch.autocast(device, torch.bfloat16, enabled=on_gpu()):
            logits = model(text[:, :-1]).flatten(0, 1)
            loss = functional.cross_entropy(logits, text[:, 1:].flatten()) / micro
        loss.backward()
        if count % micro == micro - 1:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)


def _clicks(out: "queue.Queue[Any]", seed: int, batch: int, fields: int) -> None:
    """A thread that makes features out of raw clicks."""
    import numpy as np

    generator = np.random.default_rng(seed)
    while True:
        raw = generator.zipf(1.2, (batch, fields)).astype(np.int64)
        hashed = (raw * 2654435761 % 4294967291) % 1_000_000
        _, common = np.unique(hashed, return_inverse=True)
        dense = generator.normal(size=(batch, 13)).astype(np.float32)
        dense[:, 0] = np.log1p(common.reshape(batch, fields).max(1))
        out.put((hashed % 500_000, dense, (dense.sum(1) > 0).astype(np.float32)))


def recommender_threads(marks: Marks) -> None:
    """Embedding tables and a small network; threads of the same process prepare the batches."""
    import torch
    from torch import nn
    from torch.nn import functional

    device = start(4)
    batch, fields, width = size(8192, 64), 24, size(64, 8)
    ready: queue.Queue[Any] = queue.Queue(8)
    for seed in range(size(6, 2)):
        given = (ready, seed, batch, fields)
        threading.Thread(target=_clicks, args=given, daemon=True).start()
    place = {"device": device}
    bags = (nn.EmbeddingBag(500_000, width, sparse=True, **place) for _ in range(fields))
    tables = nn.ModuleList(bags)
    layers = nn.Linear(fields * width + 13, 1024, **place), nn.ReLU(), nn.Linear(1024, 1, **place)
    top = nn.Sequential(*layers)
    optimisers = [
        torch.optim.SGD(tables.parameters(), 0.01, foreach=False),
        torch.optim.Adam(top.parameters()),
    ]
    for ids, dense, clicked in fed(marks, iter(ready.get, None), "cpu"):
        places = torch.from_numpy(ids).to(device)
        found = [table(places[:, at : at + 1]) for at, table in enumerate(tables)]
        found.append(torch.from_numpy(dense).to(device))
        logits = top(torch.cat(found, 1))[:, 0]
        answers = torch.from_numpy(clicked).to(device)
        functional.binary_cross_entropy_with_logits(logits, answers).backward()
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)


LOADS = {
    "first_images_slow_loader": Load(images_slow_loader),
    "first_images_near_loader": Load(images_near_loader, regular=False),
    "first_text_fast_loader": Load(text_fast_loader, healthy=True),
    "first_recommender_threads": Load(recommender_threads),
}
