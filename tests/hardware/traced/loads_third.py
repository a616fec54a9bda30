"""Loads of one GPU whose data come from somewhere: sound, pictures, files, tables.
PyTorch is imported where it is needed."""

import contextlib
import ctypes
import importlib
import mmap
import os
import shutil
import signal
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

from tests.hardware.traced.load import Load
from tests.hardware.traced.marks import Marks

FEW_THREADS = {
    "OMP_NUM_THREADS": "4",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def library(name: str) -> Any:
    """A library that machines with GPUs have, and the type checker does not."""
    return importlib.import_module(name)


def place() -> tuple[Any, bool]:
    """The device, and whether it is a GPU; sizes are tiny without one."""
    import torch

    torch.set_num_threads(4)
    torch.set_float32_matmul_precision("high")
    cuda = torch.cuda.is_available()
    return torch.device("cuda" if cuda else "cpu"), cuda


def die_with_parent() -> None:
    """In a child: the kernel ends it when its parent ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == 1:
        os._exit(0)


def folder() -> Path:
    """An own folder on the local disk; those of loads that have ended are removed."""
    for old in Path(tempfile.gettempdir()).glob("third_files_*"):
        if not Path(f"/proc/{old.name.split('_')[2]}").exists():
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"third_files_{os.getpid()}_"))


def residual_net(channels: int, width: int, blocks: int, classes: int) -> Any:
    """A small ResNet."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(size, size, 3, padding=1, bias=False),
                nn.BatchNorm2d(size),
                nn.ReLU(inplace=True),
                nn.Conv2d(size, size, 3, padding=1, bias=False),
                nn.BatchNorm2d(size),
            )

        def forward(self, x: Any) -> Any:
            return torch.relu(x + self.body(x))

    layers: list[Any] = [nn.Conv2d(channels, width, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(2)]
    for stage in range(3):
        layers += [Block(width << stage) for _ in range(blocks)]
        if stage < 2:
            layers += [nn.Conv2d(width << stage, width << (stage + 1), 3, 2, 1), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width << 2, classes)]
    return nn.Sequential(*layers, *head)


class Clips:
    """A map-style data set of sound clips, each decoded, resampled and turned into a log-mel
    picture by the worker."""

    def __init__(self, seconds: float) -> None:
        import numpy as np

        rng = np.random.default_rng(0)
        self.coded = rng.integers(0, 256, (64, int(seconds * 44100)), dtype=np.uint8)
        code = np.arange(256) - 128.0
        self.law = np.sign(code) * (256 ** (np.abs(code) / 128) - 1) / 255  # mu-law
        self.mel = rng.random((80, 257)).astype(np.float32)

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Any:
        import numpy as np
        import torch

        sound = library("scipy.signal")
        wave = self.law[self.coded[index % 64]]
        wave = sound.resample_poly(wave, 160, 441)
        wave *= 0.5 + (index % 7) / 10
        spectrum = sound.stft(wave, 16000, nperseg=512, noverlap=352)[2]
        picture = np.log(self.mel @ (np.abs(spectrum) ** 2).astype(np.float32) + 1e-6)
        return torch.from_numpy(picture.astype(np.float16))[None], index % 35


def audio_workers(marks: Marks) -> None:
    """Keyword spotting: eight workers of a DataLoader decode sound, slower than the GPU."""
    import torch
    from torch.nn import functional
    from torch.utils.data import DataLoader

    library("scipy.signal")  # before the workers are forked
    device, cuda = place()
    data = DataLoader(
        Clips(4.0 if cuda else 0.5),
        batch_size=32 if cuda else 4,
        shuffle=False,
        num_workers=8 if cuda else 1,
        multiprocessing_context="fork",
        pin_memory=cuda,
        persistent_workers=True,
    )
    batches = iter(data)
    net = residual_net(1, 192 if cuda else 4, 3, 35).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        with marks.waits("cpu"):
            sound, label = next(batches)
        sound = sound.to(device, non_blocking=True).float()
        label = label.to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16):
            loss = functional.cross_entropy(net(sound), label)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        loss.item()
        marks.step()

    for _ in range(16 if cuda else 1):
        step()
    marks.steady()
    while marks.going():
        step()


def jpegs(count: int, height: int, width: int) -> list[Any]:
    """Pictures as cameras make them: smooth, with some noise."""
    import numpy as np

    cv2 = library("cv2")
    rng = np.random.default_rng(1)
    found = []
    for _ in range(count):
        coarse = rng.integers(0, 255, (12, 16, 3), dtype=np.uint8)
        smooth = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
        noisy = cv2.add(smooth, rng.integers(0, 24, smooth.shape, dtype=np.uint8))
        found.append(cv2.imencode(".jpg", noisy)[1])
    return found


def augment_in_main(marks: Marks) -> None:
    """A notebook: the training loop itself decodes and augments pictures with OpenCV and NumPy."""
    import numpy as np
    import torch
    from torch.nn import functional

    device, cuda = place()
    cv2 = library("cv2")
    cv2.setNumThreads(1)
    files = jpegs(64 if cuda else 4, 480, 640)
    rng = np.random.default_rng(2)
    batch = 32 if cuda else 2
    mean = np.array([0.485, 0.456, 0.406], np.float32)
    spread = np.array([0.229, 0.224, 0.225], np.float32)

    def picture() -> Any:
        image = cv2.imdecode(files[rng.integers(len(files))], cv2.IMREAD_COLOR)
        size = int(rng.integers(224, 440))
        top, left = (int(rng.integers(0, edge - size)) for edge in image.shape[:2])
        image = image[top : top + size, left : left + size]
        image = cv2.resize(image, (224, 224), interpolation=cv2.INTER_LINEAR)
        if rng.random() < 0.5:
            image = image[:, ::-1]
        colour = cv2.cvtColor(np.ascontiguousarray(image), cv2.COLOR_BGR2RGB)
        lit = colour.astype(np.float32) * (rng.uniform(0.7, 1.3) / 255)
        return (lit - mean) / spread

    net = residual_net(3, 128 if cuda else 4, 3, 100).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step(number: int) -> None:
        images = np.stack([picture() for _ in range(batch)])
        x = torch.from_numpy(images).to(device).permute(0, 3, 1, 2)
        y = torch.from_numpy(rng.integers(0, 100, batch)).to(device)
        with torch.autocast(device.type, torch.bfloat16):
            loss = functional.cross_entropy(net(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if number % 20 == 0:
            loss.item()
        marks.step()

    for number in range(10 if cuda else 1):
        step(number)
    marks.steady()
    while marks.going():
        number += 1
        step(number)


def sqlite_index(marks: Marks) -> None:
    """Brain recordings: an SQLite index says where each lies in one large file, and the training
    loop reads them from the cold disk, one after another."""
    import numpy as np
    import torch
    from torch import nn
    from torch.nn import functional

    device, cuda = place()
    size = (512 if cuda else 64) << 10
    many = 2048 if cuda else 32  # 1 GiB
    batch = 32 if cuda else 4
    home = folder()
    noise = bytearray(os.urandom(size * 16))
    with open(home / "records.bin", "wb") as records:
        records.writelines(noise for _ in range(many // 16))
        records.flush()
        os.fsync(records.fileno())
        with contextlib.suppress(OSError):
            os.posix_fadvise(records.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    index = sqlite3.connect(home / "index.db")
    index.execute("create table record (id integer primary key, at integer, label integer)")
    rows = [(n, n * size, n % 5) for n in range(many)]
    index.executemany("insert into record values (?, ?, ?)", rows)
    index.commit()
    try:
        file = os.open(home / "records.bin", os.O_RDONLY | os.O_DIRECT)
    except OSError:
        file = os.open(home / "records.bin", os.O_RDONLY)
    buffer = mmap.mmap(-1, size)  # aligned to pages, as O_DIRECT wants it
    rng = np.random.default_rng(3)
    width = 256 if cuda else 8
    net = nn.Sequential(
        nn.Conv1d(64, width, 7, 2, 3),
        nn.GELU(),
        *(layer for _ in range(8) for layer in (nn.Conv1d(width, width, 7, 1, 3), nn.GELU())),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(width, 5),
    ).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)

    def step() -> None:
        samples, labels = [], []
        for wanted in rng.integers(0, many, batch).tolist():
            at, label = index.execute(
                "select at, label from record where id = ?", (wanted,)
            ).fetchone()
            with marks.waits("disk"):
                os.preadv(file, [buffer], at)
            signal_ = np.frombuffer(buffer, np.int16).reshape(64, -1)
            samples.append(signal_.astype(np.float32) / 32768)
            labels.append(label)
        x = torch.from_numpy(np.stack(samples)).to(device)
        y = torch.tensor(labels, device=device)
        with torch.autocast(device.type, torch.bfloat16):
            loss = functional.cross_entropy(net(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        loss.item()
        marks.step()

    for _ in range(5 if cuda else 1):
        step()
    marks.steady()
    while marks.going():
        step()


def read_tables(paths: list[str], to: Any) -> None:
    """The reader process of `parquet_reader`: reads row groups, fills and scales their columns."""
    die_with_parent()
    import numpy as np

    pa, pq = library("pyarrow"), library("pyarrow.parquet")
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    while True:
        for path in paths:
            file = pq.ParquetFile(path)
            for group in range(file.num_row_groups):
                frame = file.read_row_group(group).to_pydict()
                site = np.array([hash(name) % 5000 for name in frame.pop("site")], np.int64)
                columns = [np.array(column, np.float32) for column in frame.values()]
                values = np.log1p(np.nan_to_num(np.stack(columns, 1)))
                to.send_bytes(values.tobytes())
                to.send_bytes(site.tobytes())


def parquet_reader(marks: Marks) -> None:
    """A click model: one reader process turns Parquet files into arrays, slower than the GPU."""
    import multiprocessing

    import numpy as np
    import torch
    from torch import nn
    from torch.nn import functional

    rows, columns = 8192, 24
    home = folder()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    paths = [str(home / f"part-{n}.parquet") for n in range(4)]
    writer = context.Process(target=write_tables, args=(paths, rows, columns), daemon=True)
    writer.start()
    writer.join()
    reader = context.Process(target=read_tables, args=(paths, theirs), daemon=True)
    reader.start()  # before CUDA begins here
    device, cuda = place()
    wide = 4096 if cuda else 32
    embedding = nn.Embedding(5000, 64).to(device)
    net = nn.Sequential(
        nn.Linear(columns + 64, wide),
        nn.ReLU(),
        *(layer for _ in range(4) for layer in (nn.Linear(wide, wide), nn.ReLU())),
        nn.Linear(wide, 1),
    ).to(device)
    optimizer = torch.optim.Adam([*net.parameters(), *embedding.parameters()], lr=1e-4)

    def step() -> None:
        with marks.waits("cpu"):
            ours.poll(None)
        values = np.frombuffer(bytearray(ours.recv_bytes()), np.float32).reshape(-1, columns)
        site = np.frombuffer(bytearray(ours.recv_bytes()), np.int64)
        x, s = torch.from_numpy(values).to(device), torch.from_numpy(site).to(device)
        order = torch.randperm(rows, device=device)
        for _ in range(3 if cuda else 1):  # passes over what is at hand
            for part in order.chunk(4 if cuda else 1):
                logits = net(torch.cat([x[part], embedding(s[part])], 1))[:, 0]
                clicked = (x[part, 0] > 1.0).float()
                loss = functional.binary_cross_entropy_with_logits(logits, clicked)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
        loss.item()
        marks.step()

    for _ in range(8 if cuda else 1):
        step()
    marks.steady()
    while marks.going():
        step()
    reader.kill()


def write_tables(paths: list[str], rows: int, columns: int) -> None:
    """The files of `parquet_reader`; in a process of its own, since Arrow's threads do not fork."""
    import numpy as np

    pa, pq = library("pyarrow"), library("pyarrow.parquet")
    rng = np.random.default_rng(4)
    for path in paths:
        table = {f"c{n}": rng.exponential(3.0, rows * 4).astype(np.float32) for n in range(columns)}
        names = [f"site-{n}.example" for n in rng.integers(0, 20000, rows * 4)]
        pq.write_table(
            pa.table({**table, "site": names}), path, row_group_size=rows, compression="zstd"
        )


LOADS = {
    "third_audio_workers": Load(audio_workers, regular=False, environment=FEW_THREADS),
    "third_augment_in_main": Load(augment_in_main, environment=FEW_THREADS),
    "third_sqlite_index": Load(sqlite_index, regular=False, environment=FEW_THREADS),
    "third_parquet_reader": Load(parquet_reader, environment=FEW_THREADS),
}
