"""Two servers with a GPU each, and clients that come at random; PyTorch is imported late."""

import functools
import queue
import random
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

from tests.hardware.traced.load import SERVER, Load
from tests.hardware.traced.loads_fourth import begin, blocks, drain
from tests.hardware.traced.marks import Marks


def poisson(rate: float, into: "queue.Queue[Any]", request: Callable[[], Any]) -> None:
    """Start clients that send requests at this mean rate; some are dropped where 64 wait."""

    def clients() -> None:
        at = time.monotonic()
        while True:
            at += random.expovariate(rate)
            time.sleep(max(0.0, at - time.monotonic()))
            if into.qsize() < 64:
                into.put(request())

    threading.Thread(target=clients, daemon=True).start()


def image_server(marks: Marks) -> None:
    """Unpacks a picture, classifies it kernel by kernel and answers; busy 80 % of the time."""
    import numpy as np
    import torch
    from torch import nn

    device, pick = begin()
    side, width, layers = pick((256, 384, 24), (64, 32, 2))
    patch = nn.Conv2d(3, width, 16, 16).to(device).eval()
    trunk = blocks(width, width // 16 if width < 64 else 6, layers, causal=False).to(device).eval()
    head = nn.Linear(width, 1000).to(device)
    noise = random.Random(3).randbytes(side * side // 8)
    packed = zlib.compress(noise * 24, 1)
    answers: dict[int, str] = {}

    @torch.inference_mode()
    def answer(number: int) -> None:
        flat = np.frombuffer(zlib.decompress(packed), np.uint8)
        picture = torch.from_numpy(flat.reshape(side, side, 3).copy()).to(device)
        x = picture.permute(2, 0, 1).unsqueeze(0).float().div_(127.5).sub_(1)
        x = patch(x).flatten(2).transpose(1, 2)
        for layer in trunk:
            x = layer(x)
        best = head(x.mean(1)).softmax(1).topk(5)
        found = zip(best.indices[0].tolist(), best.values[0].tolist(), strict=True)
        answers[number % 100] = ", ".join(f"class {label}: {sure:.3f}" for label, sure in found)

    lengths = []
    for number in range(pick(200, 5)):
        since = time.monotonic()
        answer(number)
        lengths.append(time.monotonic() - since)
    took = sorted(lengths)[len(lengths) // 2]
    requests: queue.Queue[int] = queue.Queue()
    numbers = iter(range(1 << 40))
    poisson(0.8 / took, requests, functools.partial(next, numbers))
    marks.steady()
    while marks.going():
        with marks.waits("requests"):
            number = requests.get()
        answer(number)
        marks.step()


class ChatModel:
    """A language model with a cache of keys and values for each of its slots."""

    def __init__(self, device: Any, pick: Callable[[Any, Any], Any]) -> None:
        import torch
        from torch import nn

        width, self.heads, layers, self.room, slots = pick(
            (2048, 16, 16, 512, 16), (32, 2, 2, 64, 4)
        )
        self.width, self.slots, self.device, self.vocabulary = width, slots, device, pick(32000, 64)
        kind = pick(torch.bfloat16, torch.float32)

        def linear(inputs: int, outputs: int) -> Any:
            return nn.Linear(inputs, outputs, bias=False, device=device, dtype=kind)

        wide = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
        self.weights = [[linear(*sizes) for sizes in wide] for _ in range(layers)]
        self.embed = nn.Embedding(self.vocabulary, width, device=device, dtype=kind)
        self.head = linear(width, self.vocabulary)
        shape = (layers, 2, slots, self.room, self.heads, width // self.heads)
        self.cache = torch.zeros(shape, device=device, dtype=kind)
        self.tokens = torch.zeros(slots, 1, dtype=torch.long, device=device)
        self.at = torch.zeros(slots, dtype=torch.long, device=device)
        self.every = torch.arange(slots, device=device)
        self.places = torch.arange(self.room, device=device)
        self.decode = self._graphed() if device.type == "cuda" else self._decode

    def _forward(self, tokens: Any, attend: Callable[[int, Any, Any, Any], Any]) -> Any:
        from torch.nn import functional

        x = self.embed(tokens)
        for index, (qkv, out, up, down) in enumerate(self.weights):
            split = qkv(functional.rms_norm(x, (self.width,))).unflatten(-1, (3, self.heads, -1))
            x = x + out(attend(index, *split.unbind(2)).transpose(1, 2).flatten(2))
            x = x + down(functional.silu(up(functional.rms_norm(x, (self.width,)))))
        return self.head(x[:, -1]).argmax(-1)

    def _decode(self) -> None:
        from torch.nn import functional

        def attend(index: int, q: Any, k: Any, v: Any) -> Any:
            self.cache[index, 0].index_put_((self.every, self.at), k[:, 0])
            self.cache[index, 1].index_put_((self.every, self.at), v[:, 0])
            keys, values = self.cache[index].transpose(2, 3)
            q = q.transpose(1, 2)
            return functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)

        mask = (self.places <= self.at[:, None])[:, None, None]
        self.tokens.copy_(self._forward(self.tokens, attend)[:, None])
        self.at.add_(1).clamp_(max=self.room - 1)

    def _graphed(self) -> Callable[[], None]:
        import torch

        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                self._decode()
        torch.cuda.current_stream().wait_stream(aside)
        drain(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._decode()
        replay: Callable[[], None] = graph.replay
        return replay

    def prefill(self, slot: int, prompt: list[int]) -> None:
        """Read a prompt."""
        import torch
        from torch.nn import functional

        def attend(index: int, q: Any, k: Any, v: Any) -> Any:
            self.cache[index, 0, slot, : len(prompt)] = k[0]
            self.cache[index, 1, slot, : len(prompt)] = v[0]
            q, k, v = (part.transpose(1, 2) for part in (q, k, v))
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        self.tokens[slot] = self._forward(torch.tensor([prompt], device=self.device), attend)
        self.at[slot] = len(prompt)


class ChatServer:
    """Continuous batching: who arrives joins the others at their next token."""

    def __init__(self, model: ChatModel, answer_length: int) -> None:
        self.model, self._answer_length = model, answer_length
        self.requests: queue.Queue[list[int]] = queue.Queue()
        self.left: dict[int, int] = {}  # tokens left, by slot
        self._texts: dict[int, list[str]] = {}

    def admit(self, prompt: list[int]) -> None:
        """Begin to answer it."""
        slot = min(set(range(self.model.slots)) - set(self.left))
        self.model.prefill(slot, prompt)
        self.left[slot], self._texts[slot] = self._answer_length, []

    def turn(self) -> int:
        """One token for each request; how many are answered."""
        self.model.decode()
        chosen = self.model.tokens[:, 0].tolist()
        for slot in list(self.left):
            self._texts[slot].append(f"w{chosen[slot]}")
            self.left[slot] -= 1
        done = [slot for slot, left in self.left.items() if not left]
        for slot in done:
            "".join(self._texts.pop(slot))
            del self.left[slot]
        return len(done)


def chat_server(marks: Marks) -> None:
    """Continuous batching in 16 slots, decoding in a CUDA graph; 30 % of the time has requests."""
    import torch

    device, pick = begin()
    prompt_length, answer_length = pick((192, 48), (8, 6))
    with torch.no_grad():
        model = ChatModel(device, pick)
        server = ChatServer(model, answer_length)

        def prompt() -> list[int]:
            return random.choices(range(model.vocabulary), k=prompt_length)

        took = 0.0
        for _ in range(6):
            since = time.monotonic()
            server.admit(prompt())
            while server.left:
                server.turn()
            took = time.monotonic() - since
        poisson(0.36 / took, server.requests, prompt)  # 1 - exp(-0.36): 30 %
        marks.steady()
        while marks.going():
            if not server.left:
                with marks.waits("requests"):
                    first = server.requests.get()
                server.admit(first)
            while len(server.left) < model.slots and not server.requests.empty():
                server.admit(server.requests.get())
            for _ in range(server.turn()):
                marks.step()


LOADS = {
    "chat_server": Load(chat_server, regular=False, settles=SERVER),
    "image_server": Load(image_server, regular=False, settles=SERVER),
}
