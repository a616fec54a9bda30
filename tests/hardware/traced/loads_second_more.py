"""More loads of two GPUs, and photos with what learns from them."""

import io
import os
import random
from pathlib import Path
from typing import Any

from tests.hardware.traced.loads_second import (
    adam,
    begin,
    both,
    gpt,
    loss_of,
    repeat,
    replicated,
    sized,
    text,
)
from tests.hardware.traced.marks import Marks, rank, ranks


def resnet(width: int, depths: tuple[int, ...], classes: int = 1000) -> Any:
    """Bottleneck blocks, as in ResNet-50 with width 64 and depths (3, 4, 6, 3)."""
    import torch
    from torch import nn

    def conv(a: int, b: int, size: int, stride: int = 1) -> list[Any]:
        return [nn.Conv2d(a, b, size, stride, size // 2, bias=False), nn.BatchNorm2d(b)]

    class Bottleneck(nn.Module):
        def __init__(self, a: int, b: int, stride: int) -> None:
            super().__init__()
            self.main = nn.Sequential(
                *conv(a, b, 1), nn.ReLU(), *conv(b, b, 3, stride), nn.ReLU(), *conv(b, 4 * b, 1)
            )
            self.side = nn.Sequential(*conv(a, 4 * b, 1, stride)) if a != 4 * b else nn.Identity()

        def forward(self, x: Any) -> Any:
            return (self.main(x) + self.side(x)).relu()

    parts = [*conv(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    now = width
    for stage, depth in enumerate(depths):
        out = width << stage
        for i in range(depth):
            parts.append(Bottleneck(now, out, 2 if stage and not i else 1))
            now = 4 * out
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(now, classes)]
    return nn.Sequential(*parts, *head).to(memory_format=torch.channels_last)


def photos(batch: int, workers: int, edge: int) -> Any:
    """Batches of JPEGs that worker processes decode, crop and change."""
    import numpy as np
    import torch
    from PIL import Image, ImageEnhance  # type: ignore[import-not-found, unused-ignore]
    from torch.utils.data import DataLoader, Dataset

    noise = np.random.default_rng(rank())
    jpegs = []
    for _ in range(128):
        small = Image.fromarray(noise.integers(0, 255, (12, 16, 3), dtype=np.uint8))
        large = np.asarray(small.resize((800, 600), Image.Resampling.BICUBIC), np.int16)
        large = large + noise.integers(-12, 12, large.shape, dtype=np.int16)
        file = io.BytesIO()
        Image.fromarray(large.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        jpegs.append(file.getvalue())

    class Photos(Dataset[Any]):
        def __len__(self) -> int:
            return 1 << 24

        def __getitem__(self, at: int) -> Any:
            with Image.open(io.BytesIO(jpegs[at % len(jpegs)])) as opened:
                image = opened.convert("RGB")
            x, y = random.randrange(200), random.randrange(150)
            image = image.resize((edge, edge), Image.Resampling.BILINEAR, (x, y, x + 600, y + 450))
            image = ImageEnhance.Brightness(image).enhance(random.uniform(0.7, 1.3))
            image = ImageEnhance.Color(image).enhance(random.uniform(0.7, 1.3))
            return torch.from_numpy(np.array(image)).permute(2, 0, 1), at % 1000

    loader = DataLoader(
        Photos(),
        batch,
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
        multiprocessing_context="fork",
    )
    return iter(loader)


def scaled(images: Any, device: Any) -> Any:
    """Bytes as numbers around zero, on the GPU."""
    import torch

    images = images.to(device, non_blocking=True).float().div_(127.5).sub_(1)
    return images.contiguous(memory_format=torch.channels_last)


def pipeline(marks: Marks) -> None:
    """Two stages, four microbatches forward and then backward (GPipe), by send and recv."""
    import torch
    import torch.distributed as dist

    device = begin(together=True)
    vocab, width, layers, heads = sized((32000, 2048, 16, 16), (100, 32, 2, 2))
    batch, length, parts = sized((4, 1024, 4), (2, 16, 4))
    whole = gpt(vocab, width, layers, heads)
    cut = 1 + layers // 2 + sized(1, 0)  # the head is worth a layer
    stage = (whole[:cut] if rank() == 0 else whole[cut:]).to(device)
    optimizer = adam(stage, device)
    get = text(device, vocab, batch, length)
    other = 1 - rank()

    def empty() -> Any:
        return torch.empty(batch, length, width, device=device)

    def step() -> None:
        held: list[tuple[Any, Any]] = []
        sent = []
        for _ in range(parts):
            x, y = get()
            if rank() == 0:
                with torch.autocast(device.type, torch.bfloat16):
                    out = stage(x).float()
                sent.append(dist.isend(out.detach(), other))
                held.append((x, out))
            else:
                inner = empty()
                dist.recv(inner, other)
                held.append((inner.requires_grad_(), loss_of(stage, inner, y)[0] / parts))
        for entered, out in held:
            if rank() == 0:
                grad = empty()
                dist.recv(grad, other)
                out.backward(grad)
            else:
                out.backward()
                sent.append(dist.isend(entered.grad, other))
        for work in sent:
            work.wait()
        optimizer.step()
        optimizer.zero_grad()

    repeat(marks, step)


def checkpoint_on_first(marks: Marks) -> None:
    """Every few steps rank 0 saves the model safely to disk, and rank 1 waits at a barrier."""
    import torch
    import torch.distributed as dist

    device = begin(together=True)
    vocab, width, layers, heads = sized((16000, 640, 10, 10), (100, 32, 2, 2))
    model = replicated(gpt(vocab, width, layers, heads), device)
    optimizer = adam(model, device)
    get = text(device, vocab, *sized((24, 1024), (2, 16)))
    path = Path("/var/tmp/second-checkpoint")
    path.mkdir(exist_ok=True)

    def step() -> None:
        for _ in range(sized(12, 2)):
            loss, _ = loss_of(model, *get())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if rank() == 0:
            with open(path / "new.pt", "wb") as file:
                torch.save({"model": model.module.state_dict(), "loss": loss.item()}, file)
                file.flush()
                with marks.waits("disk"):
                    os.fsync(file.fileno())
            (path / "new.pt").replace(path / "last.pt")
        dist.barrier()

    repeat(marks, step, warm=2)


def slow_decoding(marks: Marks) -> None:
    """A ResNet-50 in DDP, each rank with three workers that cannot decode fast enough."""
    batches = photos(*sized((64, 3, 224), (4, 1, 32)))
    device = begin(together=True)
    model = replicated(resnet(*sized((64, (3, 4, 6, 3)), (4, (1, 1)))), device)
    optimizer = adam(model, device)

    def step() -> None:
        with marks.waits("cpu"):
            images, labels = next(batches)
        loss, _ = loss_of(model, scaled(images, device), labels.to(device, non_blocking=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    repeat(marks, step, warm=8)


def experts(marks: Marks) -> None:
    """A mixture of experts spread over both GPUs: tokens go to their experts and back by
    all-to-all, in each layer as many as the gate says."""
    import torch
    import torch.distributed as dist
    from torch import nn

    device = begin(together=True)
    vocab, width, layers, heads, inner = sized((16000, 1536, 8, 12, 2048), (100, 32, 2, 2, 32))
    here, top = 8, 4

    class ToPeers(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, sent: list[int], got: list[int]) -> Any:
            ctx.counts = sent, got
            out = x.new_empty(sum(got), x.shape[1])
            dist.all_to_all_single(out, x.contiguous(), got, sent)
            return out

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            sent, got = ctx.counts
            return ToPeers.apply(grad, got, sent), None, None

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.gate = nn.LayerNorm(width), nn.Linear(width, here * ranks())
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))
                for _ in range(here)
            )

        def forward(self, x: Any) -> Any:
            flat = self.norm(x).flatten(0, 1)
            weights, chosen = self.gate(flat).softmax(-1).topk(top)
            chosen, order = chosen.flatten().sort()
            counts = torch.zeros(here * ranks(), dtype=torch.int64, device=x.device)
            counts.scatter_add_(0, chosen, torch.ones_like(chosen))
            theirs = torch.empty_like(counts)
            dist.all_to_all_single(theirs, counts)
            per_rank = torch.stack([counts, theirs]).view(2, ranks(), here).sum(-1)
            sent, got = per_rank.tolist()
            rows = ToPeers.apply(flat[order // top], sent, got)
            pieces = rows.split(theirs.tolist())
            done = [torch.empty(0)] * len(pieces)
            for i, expert in enumerate(self.experts):
                mine = pieces[i::here]
                out = expert(torch.cat(mine)).split([len(piece) for piece in mine])
                done[i::here] = out
            back = ToPeers.apply(torch.cat(done), got, sent)
            back = back * weights.flatten()[order, None]
            return x + torch.zeros_like(flat).index_add(0, order // top, back).view_as(x)

    parts = list(gpt(vocab, width, layers, heads))
    for i in range(layers):
        parts[1 + i] = nn.Sequential(parts[1 + i], Experts())
    model = nn.Sequential(*parts).to(device, torch.bfloat16)
    shared = [p for name, p in model.named_parameters() if ".experts." not in name]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    get = text(device, vocab, *sized((8, 1024), (2, 16)))

    def step() -> None:
        x, y = get()
        nn.functional.cross_entropy(model(x).flatten(0, 1).float(), y.flatten()).backward()
        flat = torch.cat([p.grad.flatten() for p in shared])
        dist.all_reduce(flat)
        for p, part in zip(shared, flat.split([p.numel() for p in shared]), strict=True):
            p.grad.copy_(part.view_as(p)).div_(ranks())
        optimizer.step()
        optimizer.zero_grad()

    repeat(marks, step)


def local_steps(marks: Marks) -> None:
    """Local SGD: ten steps alone, then the parameters are averaged; the texts of rank 1 are
    longer."""
    import torch
    import torch.distributed as dist

    device = begin(together=True)
    vocab, width, layers, heads = sized((16000, 768, 12, 12), (100, 32, 2, 2))
    model = gpt(vocab, width, layers, heads).to(device)
    optimizer = adam(model, device)
    batch, lengths = sized((24, (512, 768)), (2, (16, 24)))
    get = text(device, vocab, batch, lengths[rank()])

    def step() -> None:
        for _ in range(10):
            loss, _ = loss_of(model, *get())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            mean = torch.nn.utils.parameters_to_vector(model.parameters())
            dist.all_reduce(mean)
            torch.nn.utils.vector_to_parameters(mean / ranks(), model.parameters())

    repeat(marks, step, warm=2)


LOADS = {
    "second_pipeline": both(pipeline),
    "second_checkpoint_on_first": both(checkpoint_on_first, regular=False),
    "second_slow_decoding": both(slow_decoding, regular=False),
    "second_experts": both(experts),
    "second_local_steps": both(local_steps),
}
