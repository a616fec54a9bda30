"""An example of a load: data parallel training on two GPUs. Its functions import PyTorch."""

from collections.abc import Callable
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


LOADS = {"longer_rows_ddp": Load(longer_rows_ddp, gpus=2)}
