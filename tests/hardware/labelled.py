"""Loads whose verdict is known beforehand, on real GPUs (PyTorch).

`python -m tests.hardware.labelled KIND SECONDS [ARGUMENT ...] [--standby]` runs one of LOADS for
so many seconds of its steady phase. Each line is JSON: `at` (CLOCK_MONOTONIC, s), `steady` once
the steady phase begins, `images` done since. With --standby the load says `standby` once its
libraries are imported, touches nothing before a line comes on standard input, and ends with its
caller. A load that its caller made a process group is killed as one; what it leaves below $TMPDIR
when it is killed are temporary directories of its libraries, no data.
"""

import argparse
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

PACE = 300e6
"""Bytes per second that the network load receives."""

FILE_BYTES = 2 << 30
BYTES_PER_IMAGE = 6 << 20
COPY_BYTES = 256 << 20
FEW_CORES = 3


def held(seconds: float) -> None:
    """1 GiB of memory, and no kernel after it was filled."""
    import torch

    from tests.hardware.training import DEVICE, Progress, synchronize

    kept = torch.zeros(1 << 28, device=DEVICE)
    synchronize()
    Progress(seconds)
    time.sleep(seconds)
    del kept


def vgg16(seconds: float, batch: str = "128") -> None:
    """Healthy: the images lie on the GPU."""
    from tests.hardware import feeds, networks, training

    network = networks.vgg16().to(training.DEVICE)
    training.train(network, feeds.fixed(int(batch), on_gpu=True), seconds)


def resnet50(seconds: float, batch: str = "128") -> None:
    """Healthy: the images lie on the GPU."""
    from tests.hardware import feeds, networks, training

    network = networks.resnet50().to(training.DEVICE)
    training.train(network, feeds.fixed(int(batch), on_gpu=True), seconds)


def littlecnn(seconds: float, batch: str = "16") -> None:
    """The paper's network: at small batches the thread that launches kernels is the limit."""
    from tests.hardware import feeds, networks, training

    network = networks.little_cnn().to(training.DEVICE)
    training.train(network, feeds.shuffled(int(batch), (3, 32, 32)), seconds, little=True)


def disk(
    seconds: float, per_image: str = str(BYTES_PER_IMAGE), file_size: str = str(FILE_BYTES)
) -> None:
    """Six loaders read cold data; more bytes an image starve the GPU further."""
    from tests.hardware import feeds, networks, training

    cold = feeds.ColdReads(feeds.nameless_file(int(file_size)), int(per_image))
    network = networks.resnet50().to(training.DEVICE)
    training.train(network, feeds.loaded(cold, batch=32, workers=6), seconds)


def cpu(seconds: float) -> None:
    """Two loaders decode on three cores, a thread each: too few."""
    import torch

    from tests.hardware import feeds, networks, training

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:FEW_CORES])
    torch.set_num_threads(1)
    network = networks.resnet50().to(training.DEVICE)
    training.train(network, feeds.loaded(feeds.HeavyDecode(), batch=32, workers=2), seconds)


def _trainer(listener: socket.socket, seconds: float) -> None:
    from tests.hardware import feeds, networks, training

    network = networks.resnet50().to(training.DEVICE)
    training.train(network, feeds.received(listener, batch=32), seconds)


def network(seconds: float, pace: str = str(PACE)) -> None:
    """Images arrive over TCP at a steady pace; the sender is no child of the trainer."""
    from tests.hardware import feeds

    with socket.create_server(("127.0.0.1", 0)) as listener:
        trainer = multiprocessing.get_context("fork").Process(
            target=_trainer, args=(listener, seconds)
        )
        trainer.start()
        feeds.send_paced(listener.getsockname(), float(pace))
        trainer.join()


def copies(seconds: float) -> None:
    """Pinned copies to the GPU, flat out; counts copies in the place of images."""
    import torch

    from tests.hardware import training

    host = training.pinned(torch.empty(COPY_BYTES, dtype=torch.uint8))
    device = torch.empty_like(host, device=training.DEVICE)
    progress = training.Progress(seconds)
    going = True
    while going:
        device.copy_(host, non_blocking=True)
        training.synchronize()
        going = progress.add(1)


def sleeps(seconds: float, pause: str = "0.1") -> None:
    """A source that sleeps before each batch."""
    from tests.hardware import feeds, networks, training

    network = networks.resnet50().to(training.DEVICE)
    training.train(network, feeds.slow(32, float(pause)), seconds)


def graph(seconds: float) -> None:
    """Replays of a CUDA graph at the power limit: busy, and not throttled."""
    import torch

    from tests.hardware import training

    layers = [torch.nn.Linear(4096, 4096) for _ in range(8)]
    network = torch.nn.Sequential(*layers).to(training.DEVICE).half()
    images = torch.rand(512, 4096, device=training.DEVICE).half()
    with torch.no_grad():
        for _ in range(3):
            network(images)
        training.synchronize()
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded):
            for _ in range(50):
                network(images)
    recorded.replay()
    training.synchronize()
    progress = training.Progress(seconds)
    going = True
    while going:
        recorded.replay()
        training.synchronize()
        going = progress.add(50 * len(images))


def _ranks(name: str) -> Callable[..., None]:
    def load(seconds: float, machine: str = "0") -> None:
        from tests.hardware import ranks

        ranks.everywhere(getattr(ranks, name), seconds, int(machine))

    return load


LOADS: dict[str, Callable[..., None]] = {
    "held": held,
    "vgg16": vgg16,
    "resnet50": resnet50,
    "littlecnn": littlecnn,
    "disk": disk,
    "cpu": cpu,
    "network": network,
    "copies": copies,
    "sleeps": sleeps,
    "graph": graph,
    "all-reduce": _ranks("reduce_only"),
    "balanced": _ranks("balanced"),
    "rank0-sleeps": _ranks("sleeper"),
    "rank0-double": _ranks("double"),
}


def stand_by() -> None:
    """Import what takes seconds, then wait for a line; end where the caller has gone."""
    from tests.hardware import feeds, networks, ranks, training  # noqa: F401

    training.say(standby=1)
    if not sys.stdin.readline():
        raise SystemExit(0)
    threading.Thread(target=_end_with_caller, daemon=True).start()


def _end_with_caller() -> None:
    """Nobody holds the other end of standard input any more: nobody would end this load."""
    while os.read(0, 1):  # not sys.stdin, whose lock a forked loader would inherit
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def main(words: list[str]) -> None:
    """Run one load."""
    parser = argparse.ArgumentParser(description="A load whose verdict is known beforehand.")
    parser.add_argument("kind", choices=LOADS)
    parser.add_argument("seconds", type=float)
    parser.add_argument("arguments", nargs="*")
    parser.add_argument("--standby", action="store_true")
    given = parser.parse_args(words)
    if given.standby:
        stand_by()
    LOADS[given.kind](given.seconds, *given.arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
