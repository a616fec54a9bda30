"""Data parallel training on two GPUs; PyTorch is imported in the functions."""

import itertools
import random
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from tests.hardware.traced.load import Load
from tests.hardware.traced.marks import Marks, rank, ranks


def begin() -> tuple[Any, Callable[[Any, Any], Any]]:
    """Join the other rank. The device of this one, and what picks the real or the tiny size."""
    import torch
    import torch.distributed as dist

    torch.manual_seed(41 + rank())
    has_gpu = torch.cuda.is_available()
    device = torch.device("cuda", 0) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high")
    else:
        torch.set_num_threads(1)
    if ranks() > 1:
        dist.init_process_group(
            "nccl" if has_gpu else "gloo", device_id=device if has_gpu else None
        )
    return device, lambda real, tiny: real if has_gpu else tiny


def parallel(model: Any, **options: Any) -> Any:
    """The model in DDP."""
    from torch.nn.parallel import DistributedDataParallel

    on_gpu = next(model.parameters()).is_cuda
    return DistributedDataParallel(model, device_ids=[0] if on_gpu else None, **options)


def drain(device: Any) -> None:
    """Wait until the GPU has done all."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize()


def repeat(marks: Marks, device: Any, step: Callable[[], Any], warm_up: int = 5) -> None:
    """Warm up, then take step after step. The launching thread is at most one step ahead."""
    import torch

    for _ in range(warm_up if device.type == "cuda" else 1):
        step()
    drain(device)
    marks.steady()
    before = None
    while marks.going():
        step()
        if device.type == "cuda":
            now = torch.cuda.Event()
            now.record()
            if before is not None:
                before.synchronize()
            before = now
        marks.step()


def blocks(width: int, heads: int, layers: int, causal: bool) -> Any:
    """Layers of a transformer."""
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            rows, length, _ = x.shape
            qkv = self.qkv(self.norm(x)).view(rows, length, 3, heads, width // heads)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
            x = x + self.out(seen.transpose(1, 2).reshape(rows, length, width))
            return x + self.down(functional.gelu(self.up(self.norm_2(x))))

    return nn.ModuleList([Block() for _ in range(layers)])


def gpt(vocabulary: int, width: int, heads: int, layers: int) -> Any:
    """A small language model; from tokens to logits."""
    from torch import nn

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(vocabulary, width)
            self.layers = blocks(width, heads, layers, causal=True)
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, vocabulary, bias=False)

        def forward(self, tokens: Any) -> Any:
            x = self.embed(tokens)
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x))

    return Gpt()


def next_token_loss(logits: Any, tokens: Any) -> Any:
    """Cross entropy of each next token."""
    from torch.nn import functional

    return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def vit_ddp(marks: Marks) -> None:
    """ViT-B/16 in bf16, DDP that overlaps its all-reduce; pictures from pinned memory."""
    import torch
    from torch import nn
    from torch.nn import functional

    device, pick = begin()
    width, batch, side = pick((768, 192, 224), (32, 2, 32))

    class Vit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch = nn.Conv2d(3, width, 16, 16)
            self.place = nn.Parameter(torch.zeros(1, (side // 16) ** 2, width))
            self.layers = blocks(width, width // 16 if width < 64 else width // 64, 12, False)
            self.head = nn.Linear(width, 1000)

        def forward(self, x: Any) -> Any:
            x = self.patch(x).flatten(2).transpose(1, 2) + self.place
            for layer in self.layers:
                x = layer(x)
            return self.head(x.mean(1))

    model = parallel(Vit().to(device), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    pool = [torch.randint(0, 256, (batch, 3, side, side), dtype=torch.uint8) for _ in range(3)]
    if device.type == "cuda":
        pool = [pictures.pin_memory() for pictures in pool]
    labels = torch.randint(0, 1000, (batch,), device=device)
    turn = 0

    def step() -> None:
        nonlocal turn
        turn += 1
        pictures = pool[turn % 3].to(device, non_blocking=True).float().div_(255)
        with torch.autocast(device.type, torch.bfloat16):
            loss = functional.cross_entropy(model(pictures), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    repeat(marks, device, step)


def small_cnn_ddp(marks: Marks) -> None:
    """ResNet-32 on CIFAR-sized pictures in fp32: small kernels, launched one by one."""
    import torch
    from torch import nn
    from torch.nn import functional

    device, pick = begin()

    class Unit(nn.Module):
        def __init__(self, channels: int, out: int) -> None:
            super().__init__()
            stride = out // channels
            self.one = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
            self.two = nn.Conv2d(out, out, 3, 1, 1, bias=False)
            self.norm, self.norm_2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
            same = stride == 1
            self.skip = nn.Identity() if same else nn.Conv2d(channels, out, 1, stride, bias=False)

        def forward(self, x: Any) -> Any:
            y = torch.relu(self.norm(self.one(x)))
            return torch.relu(self.norm_2(self.two(y)) + self.skip(x))

    widths = [16] * 6 + [32] * 5 + [64] * 5
    units = [Unit(*pair) for pair in itertools.pairwise(widths)]
    tail = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    model = parallel(nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), *units, *tail).to(device))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    batch = pick(96, 4)
    pictures = torch.randn(pick(20000, 64), 3, 32, 32, device=device)
    labels = torch.randint(0, 10, (len(pictures),), device=device)

    def step() -> None:
        chosen = torch.randint(0, len(pictures), (batch,), device=device)
        x = pictures[chosen]
        if random.random() < 0.5:
            x = x.flip(3)
        loss = functional.cross_entropy(model(x), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()

    repeat(marks, device, step)


class Pictures:
    """Compressed pictures that a worker unpacks, crops and distorts for `cost` seconds of CPU."""

    def __init__(self, side: int, cost: float) -> None:
        noise = random.Random(5).randbytes(side * side // 2)
        self._side, self._cost = side, cost
        self._packed = zlib.compress((noise * 6)[: side * side * 3], 1)

    def __len__(self) -> int:
        return 1 << 22

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import numpy as np
        import torch

        since = time.thread_time()
        while True:
            flat = np.frombuffer(zlib.decompress(self._packed), np.uint8)
            picture = np.roll(flat.reshape(3, self._side, self._side), index % 13, 2)
            gamma = 0.8 + 0.01 * (index % 40)
            picture = (255 * (picture / np.float32(255)) ** gamma).astype(np.uint8)
            if time.thread_time() - since >= self._cost:
                return torch.from_numpy(picture), index % 100


def endless(loader: Any) -> Iterator[Any]:
    """Its batches, epoch after epoch."""
    while True:
        yield from loader


def late_input_ddp(marks: Marks) -> None:
    """A plain deep CNN; rank 1 has fewer workers for the same pictures, so rank 0 waits for it."""
    import torch
    from torch import nn
    from torch.nn import functional
    from torch.utils.data import DataLoader

    device, pick = begin()
    side, batch, workers = pick((128, 64, (7, 3)[rank()]), (32, 4, 1))
    loader: Any = DataLoader(
        Pictures(side, 0.0025),  # type: ignore[arg-type,unused-ignore]
        batch,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        persistent_workers=True,
        drop_last=True,
    )
    batches = endless(loader)
    layers: list[Any] = []
    channels = 3
    for out in pick((64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0), (8, 0, 8, 0)):
        if out:
            convolution = nn.Conv2d(channels, out, 3, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
            channels = out
        else:
            layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 100)]
    model = parallel(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    def step() -> None:
        with marks.waits("cpu"):
            pictures, labels = next(batches)
        x = pictures.to(device, non_blocking=True).float().div_(255)
        loss = functional.cross_entropy(model(x), labels.to(device, non_blocking=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()

    repeat(marks, device, step)


def longer_rows_ddp(marks: Marks) -> None:
    """A language model in DDP; the rows of rank 1 are a quarter longer (sorted by length)."""
    import torch

    device, pick = begin()
    vocabulary, width, heads, layers, batch, length = pick(
        (16384, 1024, 16, 12, 20, 1024), (64, 32, 2, 2, 2, 16)
    )
    length = length * (5 if rank() == 1 else 4) // 4
    model = parallel(gpt(vocabulary, width, heads, layers).to(device), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=True)
    tokens = torch.randint(0, vocabulary, (16, batch, length), device=device)
    turn = 0

    def step() -> None:
        nonlocal turn
        turn += 1
        rows = tokens[turn % 16]
        with torch.autocast(device.type, torch.bfloat16):
            loss = next_token_loss(model(rows), rows)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    repeat(marks, device, step)


def rank0_evaluates(marks: Marks) -> None:
    """A speech LSTM in DDP; every 16 steps rank 0 alone evaluates 20 batches, rank 1 waits."""
    import torch
    from torch import nn
    from torch.nn import functional

    device, pick = begin()
    batch, length, width, deep = pick((96, 200, 1024, 4), (2, 8, 16, 2))

    class Acoustic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(80, width, deep, batch_first=True)
            self.head = nn.Linear(width, 512)

        def forward(self, frames: Any) -> Any:
            return self.head(self.lstm(frames)[0])

    model = parallel(Acoustic().to(device))
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    frames = torch.randn(batch, length, 80, device=device)
    labels = torch.randint(0, 512, (batch, length), device=device)
    turn = 0

    def loss_of(part: Any) -> Any:
        return functional.cross_entropy(part(frames).flatten(0, 1), labels.flatten())

    def step() -> None:
        nonlocal turn
        turn += 1
        loss = loss_of(model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if turn % 16 == 0 and rank() == 0:
            model.module.eval()
            with torch.no_grad():
                sum(loss_of(model.module).item() for _ in range(20))
            model.module.train()

    repeat(marks, device, step, 17)


LOADS = {
    "vit_ddp": Load(vit_ddp, gpus=2, healthy=True),
    "small_cnn_ddp": Load(small_cnn_ddp, gpus=2),
    "late_input_ddp": Load(late_input_ddp, gpus=2),
    "longer_rows_ddp": Load(longer_rows_ddp, gpus=2),
    "rank0_evaluates": Load(rank0_evaluates, gpus=2, regular=False),
}
