"""Loads of one GPU for blind trials whose data comes late: no rule was made with them in sight."""

import http.client
import http.server
import itertools
import mmap
import multiprocessing
import os
import queue
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tests.hardware.labelled_loads.clock import ShareClock
from tests.hardware.labelled_loads.feeding import train_on
from tests.hardware.labelled_loads.labels import BUSY, CPU, DISK, NETWORK, Level
from tests.hardware.labelled_loads.models import CONTEXT, WORDS, LanguageModel
from tests.hardware.labelled_loads.tasks import Trainer
from tests.hardware.labelled_loads.work import length_of, sized
from tests.hardware.training import DEVICE, IMAGE, pinned

PREPARED = 8
"""Batches before the steady phase: queues have come to their usual length by then."""


def directory() -> str:
    """Where files of a load may lie: on a disk, if the caller says so."""
    return os.environ.get("TMPDIR") or "."


def words() -> int:
    """How many tokens the language models know."""
    return sized(WORDS, 512)


def token_shape(batch: int) -> tuple[int, int]:
    """Sequences and tokens of a batch, each sequence with the one to guess last."""
    return sized(batch, 2), sized(CONTEXT, 32) + 1


class LoadedTokens:
    """The tokens of the next step, on the GPU, and the loss of a language model on them."""

    def __init__(self, batch: int) -> None:
        self._tokens = torch.randint(0, words(), token_shape(batch), device=DEVICE)

    def take(self, tokens: Any) -> None:
        """Copy a batch from the host."""
        self._tokens.copy_(tokens, non_blocking=True)

    def loss(self, network: Any) -> Any:
        """Of all tokens but the first of each sequence."""
        guessed = network(self._tokens[:, :-1])
        return functional.cross_entropy(guessed.flatten(0, 1), self._tokens[:, 1:].flatten())


def language_model(layers: int = 12, width: int = 768) -> LanguageModel:
    """On the GPU, drawn there: on the host it takes seconds."""
    with torch.device(DEVICE):
        return LanguageModel(layers, width)


def train_as_they_come(
    batches: Iterable[Any],
    tokens: LoadedTokens,
    trainer: Trainer,
    seconds: float,
    *,
    cause: str,
    levels: Sequence[Level] = (),
) -> None:
    """One step a batch; what the GPU waits for a batch is the cause's."""
    clock = None
    for place, batch in enumerate(batches):
        if clock is not None:
            clock.mark(cause)
        tokens.take(batch)
        trainer.step()
        if clock is not None:
            clock.mark(BUSY)
            clock.step()
            if not clock.going():
                return
        elif place >= PREPARED:
            clock = ShareClock(seconds)
            clock.begin(levels)


class StoredDocuments(IterableDataset):
    """Sequences packed of many documents; each is a small file, mapped, read once, forgotten."""

    def __init__(self, files: Sequence[int], documents: int, batch: int) -> None:
        """`files` are open and have no names; so many documents make one sequence."""
        self._files, self._documents, self._batch = files, documents, batch

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        own = list(self._files[worker.id :: worker.num_workers])
        np.random.default_rng(worker.id).shuffle(own)
        turns = itertools.cycle(own)
        sequences, length = token_shape(self._batch)
        share = -(-length // self._documents)
        made = torch.zeros(sequences, self._documents, share, dtype=torch.int64)
        while True:
            for sequence, place in np.ndindex(sequences, self._documents):
                made[sequence, place] = torch.from_numpy(_document(next(turns), share))
            yield made.flatten(1)[:, :length].contiguous()


def _document(file: int, length: int) -> Any:
    """So many tokens of a file, of which every page is looked at."""
    opened = os.open(f"/proc/self/fd/{file}", os.O_RDONLY)
    with mmap.mmap(opened, 0, prot=mmap.PROT_READ) as mapped:
        stored = np.frombuffer(mapped, np.int32)
        each_page = int(stored[:: mmap.PAGESIZE // 4].sum(dtype=np.int64))
        tokens = (stored[:length].astype(np.int64) + each_page) % words()
        del stored  # a mapping in use cannot be closed
    os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(opened)
    return tokens


def files_mapped(
    seconds: float, *, batch: int, files: int, file_bytes: int, documents: int, workers: int
) -> None:
    """Worker processes map small cold files, and do little else with them."""
    files, file_bytes = sized((files, file_bytes), (64, 64 << 10))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, files + 1024), most))
    stored = [small_file(file_bytes) for _ in range(files)]
    loader = DataLoader(
        StoredDocuments(stored, documents, batch),
        batch_size=None,
        num_workers=workers,
        multiprocessing_context="fork",
    )
    tokens = LoadedTokens(batch)
    train_as_they_come(loader, tokens, Trainer(language_model(), tokens.loss), seconds, cause=DISK)


def small_file(size: int) -> int:
    """A file on the disk that has no name any more, and is not in the page cache."""
    path = Path(directory()) / f"labelled-{os.getpid()}.data"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
    path.unlink()
    with mmap.mmap(-1, size) as content:  # aligned, as direct writes want it
        content.write(np.random.default_rng(file).bytes(size))
        os.write(file, content)
    return file


_UNPACK = """
import sys, time, zlib
seconds, size = float(sys.argv[1]), int(sys.argv[2])
packed = zlib.compress(bytes(range(251)) * 4000, 1)
while time.thread_time() < seconds:
    image = zlib.decompress(packed)
sys.stdout.buffer.write((image * (size // len(image) + 1))[:size])
"""


def decoder_commands(seconds: float, *, batch: int, cpu_seconds: float, commands: int) -> None:
    """Each batch is decoded by a command of its own, which lives for less than half a second."""
    shape = (sized(batch, 2), *IMAGE)
    size = int(np.prod(shape))
    command = [sys.executable, "-I", "-S", "-c", _UNPACK, str(cpu_seconds), str(size)]
    made: queue.Queue[Any] = queue.Queue(2)

    def call() -> None:
        while True:
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            images = torch.from_numpy(np.frombuffer(done.stdout, np.uint8).copy())
            made.put(pinned(images.view(shape)))

    for _ in range(commands):
        threading.Thread(target=call, daemon=True).start()
    train_on(iter(made.get, None), seconds, CPU)


class Tokeniser:
    """Greedy longest match in plain Python: its threads take turns for the one interpreter."""

    LONGEST = 6

    def __init__(self) -> None:
        numbers = np.random.default_rng(0)
        letters = "".join(chr(97 + place) for place in numbers.integers(0, 26, 4000))
        self._text = letters
        self._known = {
            letters[at : at + length]: (at * length) % words()
            for length in range(1, self.LONGEST + 1)
            for at in range(0, len(letters) - length, length)
        }

    def batch(self, shape: tuple[int, int], cpu_seconds: float) -> Any:
        """Tokens of this shape, after so many seconds of a core."""
        end = time.thread_time() + cpu_seconds
        found = self._tokens()
        while time.thread_time() < end:
            found = self._tokens()
        return torch.from_numpy(np.resize(np.array(found), shape))

    def _tokens(self) -> list[int]:
        found, at = [], 0
        while at < len(self._text):
            for length in range(self.LONGEST, 0, -1):
                token = self._known.get(self._text[at : at + length])
                if token is not None or length == 1:
                    found.append(token or 0)
                    at += length
                    break
        return found


def tokenising(seconds: float, *, batch: int, cpu_seconds: float, threads: int) -> None:
    """Threads of the training process tokenise, and are slow because they share the interpreter.

    What they take from the thread that launches counts as theirs: a step is measured before them.
    """
    tokens = LoadedTokens(batch)
    trainer = Trainer(language_model(), tokens.loss)
    alone = length_of(trainer.step, sized(1.5, 0.1), at_once=4)
    made: queue.Queue[Any] = queue.Queue(2)

    def work() -> None:
        tokeniser = Tokeniser()
        while True:
            made.put(tokeniser.batch(token_shape(batch), cpu_seconds))

    for _ in range(threads):
        threading.Thread(target=work, daemon=True).start()
    batches = iter(made.get, None)
    train_as_they_come(batches, tokens, trainer, seconds, cause=CPU, levels=[(CPU, alone, None)])


class ObjectStore(http.server.ThreadingHTTPServer):
    """Objects of one size over HTTP: each after a latency (s), all at one rate (bytes/s)."""

    daemon_threads = True

    def __init__(self, size: int, latency: float, bytes_per_second: float) -> None:
        super().__init__(("127.0.0.1", 0), ObjectRequest)
        self.content = os.urandom(size)
        self._latency, self._seconds_each = latency, size / bytes_per_second
        self._free = 0.0
        self._lock = threading.Lock()

    def wait_for_turn(self) -> None:
        """Sleep until the rate lets one more object go."""
        now = time.monotonic()
        with self._lock:
            self._free = max(now, self._free) + self._seconds_each
            ready = max(self._free, now + self._latency)
        time.sleep(max(0.0, ready - time.monotonic()))


class ObjectRequest(http.server.BaseHTTPRequestHandler):
    """Answers any path with the one content."""

    protocol_version = "HTTP/1.1"
    server: ObjectStore

    def do_GET(self) -> None:
        """Wait for the rate, then send all at once."""
        self.server.wait_for_turn()
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.content)))
        self.end_headers()
        self.wfile.write(self.server.content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        """Say nothing: standard error is for what went wrong."""


def _fetched(port: int, batch: int, per_object: int, connections: int) -> Iterator[Any]:
    """Batches whose objects come over several connections at the same time."""
    local = threading.local()
    images, per_object = sized((batch, per_object), (2, 1))

    def fetch(number: int) -> bytes:
        if not hasattr(local, "connection"):
            local.connection = http.client.HTTPConnection("127.0.0.1", port)
        local.connection.request("GET", f"/images/{number}")
        content: bytes = local.connection.getresponse().read()
        return content

    numbers = itertools.count()
    with ThreadPoolExecutor(connections) as pool:
        while True:
            wanted = list(itertools.islice(numbers, images // per_object))
            content = b"".join(pool.map(fetch, wanted))
            made = torch.from_numpy(np.frombuffer(content, np.uint8).copy())
            yield pinned(made.view(images, *IMAGE))


def http_objects(
    seconds: float,
    *,
    batch: int,
    per_object: int,
    connections: int,
    latency: float,
    bytes_per_second: float,
) -> None:
    """Threads of the trainer fetch objects over HTTP; the server is no child of the trainer."""
    store = ObjectStore(sized(per_object, 1) * int(np.prod(IMAGE)), latency, bytes_per_second)

    def train() -> None:
        made: queue.Queue[Any] = queue.Queue(2)

        def fetch() -> None:
            for images in _fetched(store.server_port, batch, per_object, connections):
                made.put(images)

        threading.Thread(target=fetch, daemon=True).start()
        train_on(iter(made.get, None), seconds, NETWORK)
        os._exit(0)  # the pool's threads wait for each other at a usual end

    trainer = multiprocessing.get_context("fork").Process(target=train)
    trainer.start()
    threading.Thread(target=store.serve_forever, daemon=True).start()
    trainer.join()
