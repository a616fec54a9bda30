"""More loads of one GPU: servers, JAX, a notebook, optimisers on the host."""

import asyncio
import multiprocessing
import queue
import random
import threading
import time
from typing import Any

from tests.hardware.traced import loads_first as base
from tests.hardware.traced.load import SERVER, Load
from tests.hardware.traced.loads_first import child, made, on_gpu, size, start, steps
from tests.hardware.traced.marks import Marks


def _decoder(layers: int, width: int, slots: int, room: int) -> Any:
    """A language model that keeps keys and values for some requests at a time."""
    import torch
    from torch import nn
    from torch.nn.functional import scaled_dot_product_attention as attend

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(16000, width), nn.Linear(width, 16000)
            self.blocks = nn.ModuleList(base.block()(width, True) for _ in range(layers))
            shape = (2, layers, slots, max(width // 64, 1), room, min(width, 64))
            self.register_buffer("kept", torch.zeros(shape))
            self.register_buffer("rows", torch.arange(slots))
            self.register_buffer("columns", torch.arange(room))

        def prefill(self, prompt: Any, slot: int) -> Any:
            x = self.embed(prompt)
            for at, block in enumerate(self.blocks):
                q, k, v = block.split(x)
                self.kept[0, at, slot, :, : x.shape[1]] = k[0]
                self.kept[1, at, slot, :, : x.shape[1]] = v[0]
                x = block.join(x, attend(q, k, v, is_causal=True))
            return self.head(x[:, -1]).argmax(-1)

        def forward(self, tokens: Any, places: Any) -> Any:
            x = self.embed(tokens)[:, None]
            mask = (self.columns <= places[:, None])[:, None, None]
            for at, block in enumerate(self.blocks):
                q, k, v = block.split(x)
                self.kept[0, at][self.rows, :, places] = k[:, :, 0]
                self.kept[1, at][self.rows, :, places] = v[:, :, 0]
                seen = attend(q, self.kept[0, at], self.kept[1, at], attn_mask=mask)
                x = block.join(x, seen)
            return self.head(x[:, 0]).argmax(-1)

    return Decoder().to(torch.bfloat16 if on_gpu() else torch.float32).eval()


def _answer(model: Any, device: str, length: int, wanted: int) -> list[int]:
    """One request: its prompt, then token by token."""
    import torch

    token = model.prefill(torch.randint(16000, (1, length)).to(device), 0)
    out = [int(token.item())]
    for at in range(wanted):
        token = model(token, torch.tensor([length + at], device=device))
        out.append(int(token.item()))
    return out


def serve_light(marks: Marks) -> None:
    """A server kernel by kernel, busy with requests for a tenth of its time."""
    import torch

    device, dice = start(2), random.Random(1)
    model = made(_decoder, size(16, 1), size(2048, 64), 1, 256)
    with torch.inference_mode():
        takes = base.seconds(lambda: _answer(model, device, 100, 16), 5)
        next_one = time.monotonic()
        for _ in steps(marks, 1):
            next_one += dice.expovariate(0.1 / takes)
            with marks.waits("requests"):
                time.sleep(max(next_one - time.monotonic(), 0))
            _answer(model, device, dice.randint(50, 150), dice.randint(8, 24))


def _ask(pipe: Any) -> None:
    """Send requests, at the rate reported first."""
    rate, due = pipe.recv(), time.monotonic()
    while True:
        due += random.expovariate(rate)
        time.sleep(max(due - time.monotonic(), 0))
        pipe.send((random.randint(50, 150), random.randint(20, 80)))


def serve_half_graph(marks: Marks) -> None:
    """A server that replays a CUDA graph for each token, with work for half of its time."""
    import torch

    pipe, theirs = multiprocessing.Pipe()
    child(_ask, theirs)
    device = start(2)
    model = made(_decoder, size(16, 1), size(2048, 64), 1, 256)
    token, place = (torch.zeros(1, dtype=torch.long, device=device) for _ in range(2))

    def one() -> None:
        token.copy_(model(token, place))
        place.add_(1)

    def answer(length: int, wanted: int) -> None:
        token.copy_(model.prefill(torch.randint(16000, (1, length)).to(device), 0))
        place.fill_(length)
        for _ in range(wanted):
            replay()
            token.item()

    replay = one
    with torch.no_grad():
        if on_gpu():
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                one()
            torch.cuda.current_stream().wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                one()
            replay = graph.replay
        pipe.send(0.5 / base.seconds(lambda: answer(100, 50), 5))
        for _ in steps(marks, 2):
            with marks.waits("requests"):
                pipe.poll(None)
            answer(*pipe.recv())


async def _talk(port: int, rate: float) -> None:
    """A client of `serve_busy`: sends requests at random, reads what comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    reading = asyncio.ensure_future(reader.read(-1))
    due = time.monotonic()
    while not reading.done():
        due += random.expovariate(rate)
        await asyncio.sleep(max(due - time.monotonic(), 0))
        writer.write(f"{random.randint(50, 150)} {random.randint(20, 80)}\n".encode())


def _call(pipe: Any) -> None:
    asyncio.run(_talk(*pipe.recv()))


class Engine:
    """Continuous batching, kernel by kernel, in a thread of its own: requests join and leave
    between two tokens."""

    def __init__(self, marks: Marks, slots: int) -> None:
        self.marks, self.slots = marks, slots
        self.asked: queue.Queue[tuple[int, int, Any]] = queue.Queue()
        self.device = start(2)
        self.model = made(_decoder, size(12, 1), size(1536, 64), slots, 256)
        self.left: dict[int, tuple[int, Any]] = {}  # tokens to come and who wants them, by slot
        self.tokens, self.places = (
            made(lambda: _zeros(slots)),
            made(lambda: _zeros(slots)),
        )

    def admit(self) -> None:
        """New requests into free slots; without any work it waits for one."""
        import torch

        while len(self.left) < self.slots:
            if not self.left:
                with self.marks.waits("requests"):
                    length, wanted, emit = self.asked.get()
            elif self.asked.empty():
                return
            else:
                length, wanted, emit = self.asked.get()
            slot = next(at for at in range(self.slots) if at not in self.left)
            prompt = torch.randint(16000, (1, length)).to(self.device)
            self.tokens[slot] = self.model.prefill(prompt, slot)[0]
            self.places[slot] = length
            self.left[slot] = wanted, emit

    def token(self) -> None:
        """The next token of each request."""
        self.tokens.copy_(self.model(self.tokens, self.places))
        self.places.add_(1).clamp_(max=255)
        said = self.tokens.tolist()
        for slot, (wanted, emit) in list(self.left.items()):
            emit(said[slot])
            self.left[slot] = wanted - 1, emit
            if wanted <= 1:
                del self.left[slot]

    def capacity(self) -> float:
        """Requests a second that it can answer."""
        import torch

        def fill() -> None:
            self.model.prefill(torch.zeros(1, 100, dtype=torch.long, device=self.device), 0)

        return 1 / (base.seconds(fill, 10) + 50 * base.seconds(self.token, 30) / self.slots)

    def run(self, pipe: Any, port: int) -> None:
        import torch

        with torch.inference_mode():
            pipe.send((port, 0.8 * self.capacity()))
            for _ in steps(self.marks, 5):
                self.admit()
                self.token()


def _zeros(count: int) -> Any:
    import torch

    return torch.zeros(count, dtype=torch.long)


def serve_busy_batching(marks: Marks) -> None:
    """A server of text over TCP, at about nine tenths of what it can do: the main thread talks with
    clients, an engine thread launches."""
    pipe, theirs = multiprocessing.Pipe()
    child(_call, theirs)
    engine = Engine(marks, size(24, 4))

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()

        def emit(token: int) -> None:
            loop.call_soon_threadsafe(writer.write, f'{{"token": {token}}}\n'.encode())

        while line := await reader.readline():
            length, wanted = map(int, line.split())
            engine.asked.put((length, wanted, emit))

    async def serve() -> None:
        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        thread = threading.Thread(target=engine.run, args=(pipe, port), daemon=True)
        thread.start()
        while thread.is_alive():  # noqa: ASYNC110
            await asyncio.sleep(0.2)

    asyncio.run(serve())


def jax_python_data(marks: Marks) -> None:
    """A jitted step of JAX, whose main thread makes each batch with NumPy and Python first."""
    import jax
    import numpy as np
    from jax import numpy as jnp

    big = jax.default_backend() == "gpu"
    width, depth, batch, length = (768, 6, 32, 256) if big else (32, 1, 2, 16)
    generator = np.random.default_rng(1)

    def weights(*shape: int) -> Any:
        return jnp.asarray(generator.normal(0, 0.02, shape), jnp.float32)

    layers = [
        {
            "mix": weights(length, length),
            "up": weights(width, 4 * width),
            "down": weights(4 * width, width),
        }
        for _ in range(depth)
    ]
    start_model = {"embed": weights(8192, width), "layers": layers}

    def loss_of(model: Any, text: Any, answers: Any) -> Any:
        x = model["embed"][text].astype(jnp.bfloat16)
        for layer in model["layers"]:
            mix, up, down = (layer[name].astype(jnp.bfloat16) for name in ("mix", "up", "down"))
            x = x + jnp.einsum("btw,ts->bsw", x, mix)
            x = x + jax.nn.gelu(x / (1e-3 + jnp.std(x, -1, keepdims=True)) @ up) @ down
        chances = jax.nn.log_softmax(
            (x @ model["embed"].T.astype(jnp.bfloat16)).astype(jnp.float32)
        )
        return -jnp.take_along_axis(chances, answers[..., None], -1).mean()

    @jax.jit
    def step(model: Any, text: Any, answers: Any) -> Any:
        loss, slope = jax.value_and_grad(loss_of)(model, text, answers)
        return jax.tree.map(lambda w, g: w - 1e-3 * g, model, slope), loss

    words = [bytes(generator.integers(97, 123, 6, np.uint8)).decode() for _ in range(8000)]
    numbers = {word: at for at, word in enumerate(words)}

    def make() -> Any:
        rows = []
        for _ in range(batch):
            line = " ".join(random.choices(words, k=length + 1))
            rows.append([numbers.get(word.strip().lower(), 8191) for word in line.split(" ")])
        table = np.array(rows, np.int32)
        masked = np.where(generator.random(table.shape) < 0.15, 8190, table)
        return masked[:, :-1], table[:, 1:]

    model, losses = start_model, [0.0]
    for _ in steps(marks):
        model, loss = step(model, *make())
        losses = [*losses[-100:], float(loss)]


def notebook(marks: Marks) -> None:
    """A person who thinks, runs a cell, looks at the picture, thinks."""
    import numpy as np
    import torch
    from PIL import Image  # type: ignore[import-not-found,unused-ignore]

    device, dice, side = start(4), random.Random(1), size(128, 32)
    model = made(base.resnet, (2, 2), size(64, 8), 10)
    step = base.trainer(model, torch.optim.AdamW(model.parameters()))
    x = torch.randn(size(256, 4), 3, side, side, device=device)
    y = torch.zeros(len(x), dtype=torch.long, device=device)

    def train() -> None:
        print([round(float(step(x, y)), 3) for _ in range(size(12, 2))], flush=True)

    def look() -> None:
        with torch.no_grad():
            found = model(x).float().cpu().numpy()
        heights, _ = np.histogram(np.repeat(found, size(2000, 10)), 200)
        Image.fromarray(np.outer(heights, heights) % 255 > 99).resize((900, 900)).tobytes()

    def solve() -> None:
        square = torch.randn(size(3000, 100), size(3000, 100), device=device)
        torch.linalg.qr(square)

    for count in steps(marks, 3):
        (train, look, solve)[count % 3]()
        base.wait()
        with marks.waits("unknown"):
            time.sleep(dice.uniform(0.1, 0.7))


def offload_adam(marks: Marks) -> None:
    """A language model whose optimiser lives on the host: gradients go there, weights come back."""
    import torch
    from torch.nn import functional

    device, vocabulary = start(8), size(16000, 100)
    model = made(base.gpt, size(10, 2), size(1024, 64), vocabulary).to(torch.bfloat16)
    there = list(model.parameters())
    here = [one.detach().float().cpu() for one in there]
    slopes = [torch.empty(one.shape, dtype=one.dtype, pin_memory=on_gpu()) for one in there]
    back = [torch.empty(one.shape, dtype=one.dtype, pin_memory=on_gpu()) for one in there]
    optimiser = torch.optim.AdamW(here, 1e-4, fused=True)
    text = torch.randint(vocabulary, (size(16, 2), size(1025, 17)), device=device)
    for _ in steps(marks):
        for _ in range(2):
            logits = model(text[:, :-1]).flatten(0, 1)
            functional.cross_entropy(logits, text[:, 1:].flatten()).backward()
        for one, slope in zip(there, slopes, strict=True):
            slope.copy_(one.grad, non_blocking=True)
            one.grad = None
        base.wait()
        for master, slope in zip(here, slopes, strict=True):
            master.grad = slope.float()
        optimiser.step()
        with torch.no_grad():
            for one, master, buffer in zip(there, here, back, strict=True):
                one.copy_(buffer.copy_(master), non_blocking=True)


LOADS = {
    "first_serve_light": Load(serve_light, regular=False, settles=SERVER),
    "first_serve_half_graph": Load(serve_half_graph, regular=False, settles=SERVER),
    "first_serve_busy_batching": Load(serve_busy_batching, regular=False, settles=SERVER),
    "first_jax_python_data": Load(
        jax_python_data, environment={"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    ),
    "first_notebook": Load(notebook, regular=False),
    "first_offload_adam": Load(offload_adam),
}
