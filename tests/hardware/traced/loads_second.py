"""Loads of two GPUs, and what builds the models of this set."""

import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.hardware.traced.load import Load
from tests.hardware.traced.marks import Marks, rank, ranks

NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0"}


def sized(real: Any, tiny: Any) -> Any:
    """The size for a GPU, or that for a trial without one."""
    import torch

    return real if torch.cuda.is_available() else tiny


def begin(together: bool = False) -> Any:
    """The device of this process, in a process group if it does not work alone."""
    import torch
    import torch.distributed as dist

    device = torch.device(*sized(("cuda", 0), ("cpu",)))
    torch.manual_seed(rank())
    torch.set_num_threads(sized(4, 1))
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = True
    if together:
        options = {"device_id": device} if device.type == "cuda" else {}
        dist.init_process_group(sized("nccl", "gloo"), **options)
    return device


def repeat(marks: Marks, step: Callable[[], Any], warm: int = 6) -> None:
    """Warm up, then step until it may end."""
    import torch
    import torch.distributed as dist

    for _ in range(warm):
        step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    if dist.is_initialized():
        dist.barrier()
    marks.steady()
    while marks.going():
        step()
        marks.step()


def block(width: int, heads: int) -> Any:
    """One layer of a GPT."""
    import torch.nn.functional as F  # noqa: N812
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            b, t, _ = x.shape
            q, k, v = self.qkv(self.before(x)).view(b, t, 3, heads, -1).permute(2, 0, 3, 1, 4)
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(b, t, width))
            return x + self.down(F.gelu(self.up(self.between(x))))

    return Block()


def gpt(vocab: int, width: int, layers: int, heads: int) -> Any:
    """Embedding, blocks, norm and head, in this order; made on the GPU, for it takes long else."""
    import torch
    from torch import nn

    with torch.device(sized("cuda", "cpu")):
        blocks = [block(width, heads) for _ in range(layers)]
        head = nn.Linear(width, vocab, bias=False)
        return nn.Sequential(nn.Embedding(vocab, width), *blocks, nn.LayerNorm(width), head)


def text(device: Any, vocab: int, batch: int, length: int) -> Callable[[], tuple[Any, Any]]:
    """Crops of a long array of tokens, as small trainers take them."""
    import numpy as np
    import torch

    tokens = np.random.default_rng(rank()).integers(0, vocab, 4_000_000, dtype=np.int64)

    def get() -> tuple[Any, Any]:
        at = torch.randint(len(tokens) - length - 1, (batch,)).tolist()
        both = torch.stack([torch.from_numpy(tokens[i : i + length + 1]) for i in at])
        if device.type == "cuda":
            both = both.pin_memory().to(device, non_blocking=True)
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()

    return get


def loss_of(model: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Loss in mixed precision, and the logits."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    with torch.autocast(x.device.type, torch.bfloat16):
        logits = model(x)
        return F.cross_entropy(logits.flatten(0, -2).float(), y.flatten()), logits


def adam(model: Any, device: Any) -> Any:
    """AdamW in as few kernels as there are."""
    import torch

    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")


def replicated(model: Any, device: Any, **options: Any) -> Any:
    """The model in DDP."""
    from torch.nn.parallel import DistributedDataParallel

    ids = [0] if device.type == "cuda" else None
    return DistributedDataParallel(model.to(device), device_ids=ids, **options)


def ddp_gpt(marks: Marks) -> None:
    """Pretraining of a GPT of 270 M parameters, the gradients reduced during the backward pass."""
    import torch

    device = begin(together=True)
    vocab, width, layers, heads = sized((32000, 1024, 16, 16), (100, 32, 2, 2))
    model = replicated(gpt(vocab, width, layers, heads), device, gradient_as_bucket_view=True)
    optimizer = adam(model, device)
    get = text(device, vocab, *sized((16, 1024), (2, 16)))
    seen = []

    def step() -> None:
        loss, _ = loss_of(model, *get())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seen.append(loss.item())

    repeat(marks, step)


def ddp_lstm_cells(marks: Marks) -> None:
    """Forecasts of time series by an LSTM that Python unrolls, one small kernel after the other."""
    import torch
    from torch import nn

    device = begin(together=True)
    width, batch, length = sized((256, 256, 48), (16, 4, 6))

    class Forecaster(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.ModuleList([nn.LSTMCell(16, width), nn.LSTMCell(width, width)])
            self.head = nn.Linear(width, 16)

        def forward(self, series: Any) -> Any:
            state: list[Any] = [None, None]
            out = []
            for t in range(series.shape[1]):
                x = series[:, t]
                for i, cell in enumerate(self.cells):
                    state[i] = cell(x, state[i])
                    x = state[i][0]
                out.append(self.head(x))
            return torch.stack(out, 1)

    model = replicated(Forecaster(), device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = torch.randn(4096, length + 1, 16, device=device)

    def step() -> None:
        series = data[torch.randint(len(data), (batch,), device=device)]
        loss = (model(series[:, :-1]) - series[:, 1:]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    repeat(marks, step)


def ddp_scores_on_first(marks: Marks) -> None:
    """After each step rank 0 alone counts n-grams in Python for a score that it logs."""
    device = begin(together=True)
    vocab, width, layers, heads = sized((16000, 768, 12, 12), (100, 32, 2, 2))
    model = replicated(gpt(vocab, width, layers, heads), device)
    optimizer = adam(model, device)
    get = text(device, vocab, *sized((24, 512), (2, 16)))
    log = []

    def grams(rows: list[list[int]], n: int) -> Counter[tuple[int, ...]]:
        found: Counter[tuple[int, ...]] = Counter()
        for row in rows:
            found.update(zip(*(row[i:] for i in range(n)), strict=False))
        return found

    def step() -> None:
        x, y = get()
        loss, logits = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank() == 0:
            said, meant = logits.argmax(-1).tolist(), y.tolist()
            hits = [(grams(said, n) & grams(meant, n)).total() for n in (1, 2, 3, 4)]
            log.append((loss.item(), hits))

    repeat(marks, step)


def fsdp_gpt(marks: Marks) -> None:
    """A GPT of 0.7 G parameters, sharded by FSDP block by block."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    device = begin(together=True)
    vocab, width, layers, heads = sized((32000, 2048, 12, 16), (100, 32, 2, 2))
    model = gpt(vocab, width, layers, heads).to(device)
    mesh = init_device_mesh(device.type, (ranks(),))
    kinds = sized({"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}, {})
    for part in [*model[1:-2], model]:
        fully_shard(part, mesh=mesh, mp_policy=MixedPrecisionPolicy(**kinds))
    optimizer = adam(model, device)
    get = text(device, vocab, *sized((8, 1024), (2, 16)))

    def step() -> None:
        loss, _ = loss_of(model, *get())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    repeat(marks, step)


def sharded_optimizer(marks: Marks) -> None:
    """ZeRO written by hand: all gradients are scattered after the backward pass, each rank updates
    its half, and the halves are gathered: nothing overlaps."""
    import torch
    import torch.distributed as dist

    device = begin(together=True)
    vocab, width, layers, heads = sized((16000, 2048, 14, 16), (100, 32, 2, 2))
    model = gpt(vocab, width, layers, heads).to(device, torch.bfloat16)
    count = sum(p.numel() for p in model.parameters())
    half = -(-count // ranks())
    flat = torch.zeros(half * ranks(), device=device, dtype=torch.bfloat16)
    grads = torch.zeros_like(flat)
    at = 0
    for p in model.parameters():  # parameters and gradients become views
        view = flat[at : at + p.numel()].view_as(p)
        view.copy_(p.data)
        p.data, p.grad = view, grads[at : at + p.numel()].view_as(p)
        at += p.numel()
    mine = flat[half * rank() :][:half]
    master = mine.float().requires_grad_()
    master.grad = torch.zeros_like(master)
    optimizer = torch.optim.AdamW([master], lr=1e-4, fused=device.type == "cuda")
    get = text(device, vocab, *sized((1, 1536), (2, 16)))

    def step() -> None:
        grads.zero_()
        x, y = get()
        torch.nn.functional.cross_entropy(model(x).flatten(0, 1).float(), y.flatten()).backward()
        dist.reduce_scatter_tensor(master.grad, grads.float())
        master.grad.div_(ranks())
        optimizer.step()
        dist.all_gather_into_tensor(flat, master.detach().to(torch.bfloat16))

    repeat(marks, step)


def tensor_parallel_server(marks: Marks) -> None:  # noqa: C901
    """A language model split over both GPUs answers: prompts kernel by kernel with big all-reduces,
    then tokens by a CUDA graph with small ones, each read and streamed by Python."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F  # noqa: N812

    device, kind = begin(together=True), sized(torch.bfloat16, torch.float32)
    width, heads, inner, layers, vocab = sized((4096, 32, 11008, 16, 32000), (64, 4, 128, 2, 100))
    slots, window, prompt, fresh = sized((16, 1024, 768, 4), (4, 64, 16, 1))
    tokens_a_turn = window // 16 - 16 if window > 100 else 8
    own, size = heads // ranks(), width // heads

    def weight(*shape: int) -> Any:
        return torch.randn(*shape, device=device, dtype=kind) / shape[0] ** 0.5

    torch.manual_seed(0)  # these are on both
    asked = torch.Generator().manual_seed(0)
    table, head = weight(vocab, width), weight(width, vocab)
    torch.manual_seed(1 + rank())
    wqkv = [weight(width, 3 * own * size) for _ in range(layers)]
    wout = [weight(own * size, width) for _ in range(layers)]
    wup = [weight(width, 2 * inner // ranks()) for _ in range(layers)]
    wdown = [weight(inner // ranks(), width) for _ in range(layers)]
    keys = torch.zeros(layers, slots, own, window, size, device=device, dtype=kind)
    values = torch.zeros_like(keys)
    last = torch.zeros(slots, dtype=torch.int64, device=device)
    places = torch.full((slots,), prompt, device=device)
    every, window_at = torch.arange(slots, device=device), torch.arange(window, device=device)

    def norm(x: Any) -> Any:
        return F.rms_norm(x, (width,))

    def after(x: Any, seen: Any, i: int) -> Any:
        out = seen @ wout[i]
        dist.all_reduce(out)
        x = x + out
        gate, up = (norm(x) @ wup[i]).chunk(2, -1)
        out = (F.silu(gate) * up) @ wdown[i]
        dist.all_reduce(out)
        return x + out

    def prefill(first: int) -> None:
        ids = torch.randint(vocab, (fresh, prompt), generator=asked).to(device)
        x, rows = table[ids], slice(first, first + fresh)
        for i in range(layers):
            q, k, v = (norm(x) @ wqkv[i]).view(fresh, prompt, 3, own, size).permute(2, 0, 3, 1, 4)
            keys[i, rows, :, :prompt], values[i, rows, :, :prompt] = k, v
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = after(x, seen.transpose(1, 2).reshape(fresh, prompt, -1), i)
        last[rows] = (norm(x[:, -1]) @ head).argmax(-1)
        places[rows] = prompt

    def decode() -> None:
        x, mask = table[last], (window_at <= places[:, None])[:, None, None]
        for i in range(layers):
            q, k, v = (norm(x) @ wqkv[i]).view(slots, 3, own, size).unbind(1)
            keys[i][every, :, places], values[i][every, :, places] = k, v
            seen = F.scaled_dot_product_attention(q[:, :, None], keys[i], values[i], mask)
            x = after(x, seen.reshape(slots, -1), i)
        last.copy_((norm(x) @ head).argmax(-1))
        places.add_(1)

    with torch.no_grad():
        for _ in range(2):
            prefill(0)
            decode()
        run = decode
        if device.type == "cuda":
            torch.cuda.synchronize()
            dist.barrier()
            time.sleep(1)  # the watchdog of the process group is done with what was before
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                decode()
            run = graph.replay
        said: list[list[int]] = [[] for _ in range(slots)]
        first = 0

        def step() -> None:
            nonlocal first
            prefill(first)
            for slot in range(first, first + fresh):
                said[slot] = []
            first = (first + fresh) % slots
            for _ in range(tokens_a_turn):
                run()
                for slot, token in enumerate(last.tolist()):
                    said[slot].append(token)
                    delta = {"index": slot, "delta": f"t{token}", "n": len(said[slot])}
                    json.dumps({"object": "chunk", "choices": [delta]})

        repeat(marks, step, warm=slots // fresh)


def both(function: Callable[[Marks], None], **more: Any) -> Load:
    """A load of both GPUs."""
    environment = NO_MULTICAST | more.pop("environment", {})
    return Load(function, gpus=2, environment=environment, **more)


LOADS = {
    "second_ddp_gpt": both(ddp_gpt, healthy=True),
    "second_ddp_lstm_cells": both(ddp_lstm_cells),
    "second_ddp_scores_on_first": both(ddp_scores_on_first),
    "second_fsdp_gpt": both(fsdp_gpt),
    "second_sharded_optimizer": both(sharded_optimizer),
    "second_tensor_parallel_server": both(
        tensor_parallel_server, environment={"GPU_TRACE_NODES": "1"}
    ),
}
