"""Files and a paced sender for loads that are fed from a disk or a network."""

import mmap
import os
import socket
import time
from pathlib import Path

import numpy as np

PIECE = 4 << 20
PACE_SECONDS = 0.01


def nameless_file(size: int) -> int:
    """A file of so many bytes on the disk and not in the page cache, open for direct reads.

    It has no name any more when this returns: it is gone with the last process that holds it open.
    """
    path = Path(os.environ.get("TMPDIR") or Path.cwd()) / f"labelled-{os.getpid()}.data"
    piece = mmap.mmap(-1, PIECE)  # O_DIRECT wants aligned memory
    piece.write(np.random.default_rng(0).bytes(PIECE))
    writing = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
    try:
        reading = os.open(path, os.O_RDONLY | os.O_DIRECT)
    finally:
        path.unlink()
    for _ in range(size // PIECE):
        os.write(writing, piece)
    os.fsync(writing)
    os.close(writing)
    return reading


def send_paced(address: tuple[str, int], bytes_per_second: float) -> None:
    """Send at a steady pace to who listens there, until no one does."""
    piece = bytes(int(bytes_per_second * PACE_SECONDS))
    with socket.create_connection(address) as connection:
        start, sent = time.monotonic(), 0
        try:
            while True:
                connection.sendall(piece)
                sent += len(piece)
                time.sleep(max(0.0, start + sent / bytes_per_second - time.monotonic()))
        except OSError:
            return
