"""Models and sequences spread over two GPUs; PyTorch is imported in the functions."""

from collections import deque
from typing import Any

from tests.hardware.traced.load import Load
from tests.hardware.traced.loads_fourth import begin, blocks, gpt, next_token_loss, repeat
from tests.hardware.traced.marks import Marks, rank, ranks


def fsdp_checkpointed(marks: Marks) -> None:
    """A language model under fully_shard in bf16, each layer recomputed in the backward pass."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.utils.checkpoint import checkpoint

    device, pick = begin()
    vocabulary, width, heads, layers, batch, length = pick(
        (16384, 2048, 16, 14, 3, 2048), (64, 32, 2, 2, 2, 16)
    )
    model = gpt(vocabulary, width, heads, layers).to(device)
    mesh = init_device_mesh(device.type, (ranks(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

    def recomputed(layer: Any) -> Any:
        plain = layer.forward
        return lambda x: checkpoint(plain, x, use_reentrant=False)

    for layer in model.layers:
        layer.forward = recomputed(layer)
    tokens = torch.randint(0, vocabulary, (8, batch, length), device=device)
    turn = 0

    def step() -> None:
        nonlocal turn
        turn += 1
        rows = tokens[turn % 8]
        loss = next_token_loss(model(rows), rows)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    repeat(marks, device, step, 4)


def tensor_parallel(marks: Marks) -> None:
    """Layers split by columns, then rows; two all-reduces of activations a layer each way."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn import functional

    device, pick = begin()
    width, heads, layers, batch, length = pick((2048, 16, 16, 12, 1024), (32, 4, 2, 2, 8))
    own, own_heads, vocabulary = width // ranks(), heads // ranks(), pick(8192, 64)

    class Enter(torch.autograd.Function):
        """Every rank's own copy; its gradient is the sum over all."""

        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            return x.view_as(x)

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:  # type: ignore[override,unused-ignore]
            gradient = gradient.contiguous()
            dist.all_reduce(gradient)
            return gradient

    class Leave(torch.autograd.Function):
        """The sum over all ranks."""

        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            total = x.clone()
            dist.all_reduce(total)
            return total

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:  # type: ignore[override,unused-ignore]
            return gradient

    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * own), nn.Linear(own, width, bias=False)
            self.up, self.down = nn.Linear(width, 4 * own), nn.Linear(4 * own, width, bias=False)

        def forward(self, x: Any) -> Any:
            qkv = self.qkv(Enter.apply(self.norm(x)))
            q, k, v = qkv.view(batch, length, 3, own_heads, -1).permute(2, 0, 3, 1, 4)
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + Leave.apply(self.out(seen.transpose(1, 2).reshape(batch, length, own)))
            hidden = functional.gelu(self.up(Enter.apply(self.norm_2(x))))
            return x + Leave.apply(self.down(hidden))

    embed, head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
    model = nn.Sequential(embed, *[Split() for _ in range(layers)], head)
    model.to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    tokens = torch.randint(0, vocabulary, (batch, length), device=device)
    dist.broadcast(tokens, 0)

    def step() -> None:
        loss = next_token_loss(model(tokens), tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    repeat(marks, device, step)


def pipeline_1f1b(marks: Marks) -> None:
    """Two stages and eight microbatches, one forward and one backward pass in turn."""
    import torch
    import torch.distributed as dist
    from torch import nn

    device, pick = begin()
    width, heads, layers, batch, length = pick((2048, 16, 6, 4, 1024), (32, 2, 1, 2, 8))
    vocabulary, micro, first, peer = pick(8192, 64), 8, rank() == 0, 1 - rank()
    trunk = blocks(width, heads, layers, causal=True)
    ends = [nn.Embedding(vocabulary, width)], [nn.Linear(width, vocabulary)]
    stage = nn.Sequential(*ends[0], *trunk) if first else nn.Sequential(*trunk, *ends[1])
    stage.to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(stage.parameters(), 1e-4, fused=True)
    tokens = torch.randint(0, vocabulary, (micro, batch, length), device=device)
    dist.broadcast(tokens, 0)

    def exchange(sent: Any = None, receives: bool = True) -> Any:
        """Send to the other stage, receive from it, or both at once."""
        got = torch.empty(batch, length, width, device=device, dtype=torch.bfloat16)
        calls = [] if sent is None else [dist.P2POp(dist.isend, sent.detach().contiguous(), peer)]
        calls += [dist.P2POp(dist.irecv, got, peer)] if receives else []
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        return got

    def first_stage() -> None:
        waiting = deque([stage(tokens[0])])
        exchange(waiting[0], receives=False)
        for index in range(1, micro):
            waiting.append(stage(tokens[index]))
            gradient = exchange(waiting[-1])
            waiting.popleft().backward(gradient)
        waiting.popleft().backward(exchange())

    def last_stage() -> None:
        x = exchange()
        for index in range(micro):
            x.requires_grad_()
            loss = next_token_loss(stage(x), tokens[index]) / micro
            loss.backward()
            following = exchange(x.grad, receives=index < micro - 1)
            x = following

    def step() -> None:
        first_stage() if first else last_stage()
        optimizer.step()
        optimizer.zero_grad()

    repeat(marks, device, step)


def all_reduce_after(marks: Marks) -> None:
    """Gradients (360 MB) are packed and all-reduced after the backward pass, by hand."""
    import torch
    import torch.distributed as dist

    device, pick = begin()
    vocabulary, width, heads, layers, batch, length = pick(
        (4096, 1536, 12, 3, 4, 1024), (64, 32, 2, 1, 2, 16)
    )
    model = gpt(vocabulary, width, heads, layers).to(device)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, 1e-4, fused=True)
    tokens = torch.randint(0, vocabulary, (8, batch, length), device=device)
    turn = 0

    def step() -> None:
        nonlocal turn
        turn += 1
        loss = next_token_loss(model(tokens[turn % 8]), tokens[turn % 8])
        loss.backward()
        gradients = [one.grad for one in parameters]
        flat = torch.cat([one.flatten() for one in gradients])
        dist.all_reduce(flat)
        flat /= ranks()
        sizes = [one.numel() for one in gradients]
        shaped = [part.view_as(one) for part, one in zip(flat.split(sizes), gradients, strict=True)]
        torch._foreach_copy_(gradients, shaped)
        optimizer.step()
        optimizer.zero_grad()

    repeat(marks, device, step)


def ring_video(marks: Marks) -> None:
    """A video diffusion transformer draws; its tokens are split, keys and values go round."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn import functional

    device, pick = begin()
    width, heads, layers, length = pick((2048, 16, 12, 12288), (32, 2, 2, 16))
    peer = 1 - rank()

    def attend(q: Any, k: Any, v: Any) -> tuple[Any, Any]:
        """Attention to one block, and the logarithm of the sum of its weights."""
        if device.type == "cuda":
            found = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v)
            return found[0], found[1]
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        return scores.softmax(-1) @ v, scores.float().logsumexp(-1)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            qkv = self.qkv(self.norm(x)).view(1, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
            q, mine = qkv[0].contiguous(), qkv[1:].contiguous()
            theirs = torch.empty_like(mine)
            calls = [dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, theirs, peer)]
            under_way = dist.batch_isend_irecv(calls)
            near, near_sum = attend(q, *mine)
            for work in under_way:
                work.wait()
            far, far_sum = attend(q, *theirs)
            share = torch.sigmoid(near_sum - far_sum).unsqueeze(-1).to(near.dtype)
            seen = near * share + far * (1 - share)
            x = x + self.out(seen.transpose(1, 2).reshape(1, length, width))
            return x + self.down(functional.gelu(self.up(self.norm_2(x))))

    model = nn.Sequential(*[Layer() for _ in range(layers)]).to(device, torch.bfloat16)
    latent = torch.randn(1, length, width, device=device, dtype=torch.bfloat16)

    @torch.inference_mode()
    def step() -> None:
        nonlocal latent
        noise = functional.layer_norm(model(latent), (width,))
        latent = latent * 0.98 - noise * 0.1

    repeat(marks, device, step)


LOADS = {
    "fsdp_checkpointed": Load(fsdp_checkpointed, gpus=2, healthy=True),
    "tensor_parallel": Load(tensor_parallel, gpus=2),
    "pipeline_1f1b": Load(pipeline_1f1b, gpus=2),
    "all_reduce_after": Load(all_reduce_after, gpus=2),
    "ring_video": Load(ring_video, gpus=2, healthy=True),
}
