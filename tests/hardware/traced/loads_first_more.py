"""More loads of one GPU: disks, networks, checkpoints, small work, compilers, games."""

import multiprocessing
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.hardware.traced import loads_first as base
from tests.hardware.traced.load import Load
from tests.hardware.traced.loads_first import child, fed, made, on_gpu, size, start, steps, trainer
from tests.hardware.traced.marks import Marks

DISK = "/var/tmp"  # on a disk where /tmp may be memory


def pil_features(marks: Marks) -> None:
    """Features of photographs, which the main thread decodes one after the other."""
    import torch

    device = start(2)
    data = base.Pictures(base.jpegs(size(64, 4), 800, 600), size(224, 64))
    model = made(base.vit, size(24, 2), size(1024, 64)).eval()
    kept: list[Any] = []
    with torch.inference_mode(), torch.autocast(device, torch.bfloat16, enabled=on_gpu()):
        for count in steps(marks):
            shots = [data[count * 16 + at][0] for at in range(size(16, 2))]
            features = model(base.scaled(torch.stack(shots).to(device)))
            kept = [*kept[-100:], features.float().cpu().numpy()]


class Cold:
    """A file that is on the disk alone: what is read of it is dropped from memory again. It has no
    name, so it goes with its readers."""

    def __init__(self, pieces: int, length: int) -> None:
        self._pieces, self._length = pieces, length
        self._file = tempfile.TemporaryFile(dir=DISK, buffering=0)  # noqa: SIM115
        for _ in range(pieces):
            self._file.write(os.urandom(1 << 16) * (length >> 16))
        os.fsync(self._file.fileno())
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def __len__(self) -> int:
        return 1 << 20

    def read(self, at: int, into: Any) -> None:
        """Piece `at`, from the disk."""
        begin, view = at % self._pieces * self._length, memoryview(into)
        done = 0
        while done < self._length:
            done += os.preadv(self._file.fileno(), [view[done:]], begin + done)
        os.posix_fadvise(self._file.fileno(), begin, self._length, os.POSIX_FADV_DONTNEED)

    def __getitem__(self, at: int) -> Any:
        import torch

        piece = torch.empty(self._length, dtype=torch.uint8).share_memory_()
        self.read(at, piece.numpy())
        return piece


def shards_cold_loader(marks: Marks) -> None:
    """A small ResNet on pictures that two loader processes read from the disk as they are."""
    import torch

    device, side = start(), size(256, 64)
    batch, length = size(128, 16), size(128, 16) * 3 * side * side
    source = iter(base.loader(Cold(size(48, 8), length), None, 2))
    model = made(base.resnet, (2, 2, 2, 2) if on_gpu() else (1,), size(32, 8))
    step = trainer(model, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9))
    y = torch.zeros(batch, dtype=torch.long, device=device)
    for piece in fed(marks, source, "disk"):
        x = piece.to(device, non_blocking=True).view(batch, 3, side, side)
        step(base.scaled(x).contiguous(memory_format=torch.channels_last), y)


def main_reads_disk(marks: Marks) -> None:
    """Scores of rows that the main thread reads from the disk, block by block."""
    import torch
    from torch import nn

    device, width = start(), size(2048, 256)
    length = size(48 << 20, 1 << 20)
    rows = Cold(size(24, 8), length)
    buffer = torch.empty(length, dtype=torch.uint8)
    with torch.device(device):
        layers = [nn.Sequential(nn.Linear(width, 4 * width), nn.GELU()) for _ in range(8)]
        both = [part for layer in layers for part in (layer, nn.Linear(4 * width, width))]
        model = nn.Sequential(*both, nn.Linear(width, 1)).to(torch.bfloat16)
    best = 0.0
    with torch.inference_mode():
        for at in steps(marks):
            with marks.waits("disk"):
                rows.read(at, buffer.numpy())
            x = buffer.to(device).view(torch.int16).view(-1, width).to(torch.bfloat16) / 32768
            best = max(best, float(model(x).float().cpu().topk(8, 0).values[0]))


def _send_paced(listener: socket.socket, rate: float) -> None:
    """A server of data that its network lets send so many bytes a second."""
    connection = listener.accept()[0]
    piece, sent, begun = os.urandom(1 << 18), 0, time.monotonic()
    while True:
        connection.sendall(piece)
        sent += len(piece)
        ahead = sent / rate - (time.monotonic() - begun)
        if ahead > 0:
            time.sleep(ahead)
        elif ahead < -0.05:  # a network makes up for nothing
            begun, sent = time.monotonic(), 0


def tcp_stream(marks: Marks) -> None:
    """A ResNet-50 trained on pictures that come over TCP, as bytes, at 150 MB/s."""
    import torch

    listener = socket.create_server(("127.0.0.1", 0))
    child(_send_paced, listener, 150e6 if on_gpu() else 2e6)
    connection = socket.create_connection(listener.getsockname())
    device, side = start(4), size(224, 64)
    batch = size(96, 4)
    model = made(base.resnet, (3, 4, 6, 3) if on_gpu() else (1,), size(64, 8))
    step = trainer(model, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9))
    buffers = [torch.empty(batch, 3, side, side, dtype=torch.uint8) for _ in range(2)]
    if on_gpu():
        buffers = [buffer.pin_memory() for buffer in buffers]
    y = torch.zeros(batch, dtype=torch.long, device=device)
    for count in steps(marks):
        view, done = memoryview(buffers[count % 2].view(-1).numpy()), 0
        while done < len(view):
            with marks.waits("network"):
                done += connection.recv_into(view[done:])
        x = buffers[count % 2].to(device, non_blocking=True)
        step(base.scaled(x), y)


def _language(layers: int, width: int, vocabulary: int, batch: int) -> tuple[Any, Any, Any]:
    """A language model, its optimiser and a step of its training."""
    import torch

    device = start()
    model = made(base.gpt, size(layers, 2), size(width, 64), vocabulary)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-4, fused=on_gpu())
    text = torch.randint(vocabulary, (size(batch, 2), size(513, 17)), device=device)
    step = trainer(model, optimiser)
    return model, optimiser, lambda: step(text[:, :-1], text[:, 1:])


def _save(what: Any, marks: Marks | None = None) -> None:
    """A checkpoint, on the disk before this returns."""
    import torch

    with tempfile.TemporaryFile(dir=DISK) as file:
        torch.save(what, file)
        file.flush()
        if marks is None:
            os.fsync(file.fileno())
        else:
            with marks.waits("disk"):
                os.fsync(file.fileno())


def checkpoint_fsync(marks: Marks) -> None:
    """A language model saved with its optimiser every 25 steps, by the main thread."""
    model, optimiser, step = _language(6, 512, size(8000, 100), 24)
    for count in steps(marks, 26):
        loss = step()
        if count % 25 == 24:
            print(count, float(loss), flush=True)
            _save({"model": model.state_dict(), "optimiser": optimiser.state_dict()}, marks)


def checkpoint_async(marks: Marks) -> None:
    """A language model copied to the host every 40 steps, which a thread saves meanwhile."""
    import torch

    model, _, step = _language(12, 768, size(16000, 100), 16)
    state = model.state_dict()
    kept = {name: torch.empty_like(one, device="cpu") for name, one in state.items()}
    if on_gpu():
        kept = {name: one.pin_memory() for name, one in kept.items()}
    saver: threading.Thread | None = None
    for count in steps(marks, 41):
        step()
        if count % 40 == 39:
            if saver is not None:
                with marks.waits("disk"):
                    saver.join()
            for name, one in model.state_dict().items():
                kept[name].copy_(one, non_blocking=True)
            base.wait()
            saver = threading.Thread(target=_save, args=(kept,), daemon=True)
            saver.start()


def cnn_small_eager(marks: Marks) -> None:
    """A small network on small batches of small pictures, kernel by kernel, its loss logged."""
    import torch

    device = start(2)
    model = made(base.resnet, (2, 2, 2), 16, 10)
    optimiser = torch.optim.Adam(model.parameters(), foreach=False)
    pictures = torch.randint(255, (2048, 3, 32, 32), dtype=torch.uint8)
    answers = torch.randint(10, (2048,))
    step, losses = trainer(model, optimiser), [0.0]
    for _ in steps(marks):
        chosen = torch.randint(2048, (32,))
        x = base.scaled(pictures[chosen].to(device))
        losses = [*losses[-100:], step(x, answers[chosen].to(device)).item()]


def compiled_graphs(marks: Marks) -> None:
    """A compiled transformer that replays CUDA graphs: scores of small batches, one by one."""
    import torch

    device, side = start(4), size(224, 64)
    model = made(base.vit, size(4, 1), size(1024, 64)).to(torch.bfloat16).eval()
    ways = {"mode": "reduce-overhead"} if on_gpu() else {"backend": "eager"}
    compiled = torch.compile(model, **ways)
    pictures = torch.randn(64, 3, side, side).to(torch.bfloat16)
    with torch.no_grad():
        for count in steps(marks, 10):
            x = pictures[count * 4 % 64 :][:4].to(device)
            best = compiled(x).float().softmax(-1).topk(5)
            best.indices.tolist()


def _compilers(folder: Path) -> Iterator[list[str]]:
    """Commands that compile `folder`/k.cu or .cpp, those of a GPU first; one always works."""
    lines = "".join(f"a[i] = a[i] * {n}.5f + b[(i + {n}) % n];\n" for n in range(120))
    body = f"int i = 0; do {{ {lines} i += 1; }} while (i < n);"
    (folder / "k.cu").write_text(
        f'extern "C" __global__ void f(float* a, float* b, int n) {{ {body} }}'
    )
    headers = "".join(f"#include <{name}>\n" for name in ("map", "string"))
    (folder / "k.cpp").write_text(f"{headers} void f(float* a, float* b, int n) {{ {body} }}")
    here = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    yield [here, "-arch=sm_90", "-cubin", "-o", str(folder / "k.o"), str(folder / "k.cu")]
    yield ["c++", "-O2", "-c", "-o", str(folder / "k.o"), str(folder / "k.cpp")]
    yield [sys.executable, "-c", "print(sum(n * n % 7 for n in range(10_000_000)))"]


def compiler_child(marks: Marks) -> None:
    """A tuner: a compiler makes a candidate in a process of its own, then it is timed."""
    import torch

    device, edge = start(2), size(8192, 128)

    def run(command: list[str]) -> bool:
        try:
            return not subprocess.run(command, capture_output=True, check=False).returncode
        except OSError:
            return False

    command = next(one for one in _compilers(Path(tempfile.mkdtemp())) if run(one))
    a = torch.randn(edge, edge, device=device, dtype=torch.bfloat16)
    for _ in steps(marks, 1):
        with marks.waits("cpu"):
            run(command)
        for _ in range(size(400, 20)):
            torch.mm(a, a)
        base.wait()


def rl_processes(marks: Marks) -> None:
    """PPO: eight processes play, a small network says what, and learns after each 64 moves."""
    import torch
    from torch import nn

    pipes = []
    for seed in range(size(8, 2)):
        mine, theirs = multiprocessing.Pipe()
        child(_play, theirs, seed)
        pipes.append(mine)
    device, moves = start(2), size(64, 8)
    net = made(lambda: nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 9)))
    optimiser = torch.optim.Adam(net.parameters(), 3e-4)
    seen = torch.zeros(len(pipes), 64, device=device)
    for _ in steps(marks, 2):
        rows = []
        for _ in range(moves):
            with torch.no_grad():
                chances = torch.distributions.Categorical(logits=net(seen)[:, :8])
                actions = chances.sample()
            for pipe, action in zip(pipes, actions.tolist(), strict=True):
                pipe.send(action)
            with marks.waits("cpu"):
                came = [pipe.recv() for pipe in pipes]
            won = torch.tensor([reward for _, reward in came], device=device)
            rows.append((seen, actions, chances.log_prob(actions), won))
            seen = torch.tensor([state for state, _ in came], device=device)
        x, did, before, won = (torch.cat(one) for one in zip(*rows, strict=True))
        for part in torch.randperm(len(x), device=device).repeat(4).chunk(16):
            out = net(x[part])
            gain = won[part] - out[:, 8]
            policy = torch.distributions.Categorical(logits=out[:, :8])
            ratio = (policy.log_prob(did[part]) - before[part]).exp()
            clipped = ratio.clamp(0.8, 1.2) * gain.detach()
            loss = gain.square().mean() - torch.min(ratio * gain.detach(), clipped).mean()
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimiser.step()


def _play(pipe: Any, seed: int) -> None:
    """A game: balls in a box, in plain Python."""
    dice = random.Random(seed)
    balls = [[dice.random() for _ in range(4)] for _ in range(16)]
    while True:
        force = (pipe.recv() - 3.5) * 0.01
        for _ in range(dice.randint(20, 60)):
            for ball in balls:
                for axis in (0, 1):
                    ball[axis] += ball[axis + 2] * 0.01
                    if not 0 < ball[axis] < 1:
                        ball[axis + 2] = -ball[axis + 2]
                ball[3] += force
        pipe.send(([value for ball in balls for value in ball], balls[0][1]))


LOADS = {
    "first_pil_features": Load(pil_features),
    "first_shards_cold_loader": Load(shards_cold_loader, regular=False),
    "first_main_reads_disk": Load(main_reads_disk),
    "first_tcp_stream": Load(tcp_stream),
    "first_checkpoint_fsync": Load(checkpoint_fsync, regular=False),
    "first_checkpoint_async": Load(checkpoint_async, regular=False),
    "first_cnn_small_eager": Load(cnn_small_eager),
    "first_compiled_graphs": Load(
        compiled_graphs, environment={"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    ),
    "first_compiler_child": Load(compiler_child),
    "first_rl_processes": Load(rl_processes),
}
