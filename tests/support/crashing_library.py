"""A libnvidia-ml.so.1 whose nvmlInitWithFlags, which pynvml calls, is an illegal instruction. Made
without a compiler."""

import platform
import struct
from pathlib import Path

NAME = "libnvidia-ml.so.1"
MACHINES = {"x86_64": (62, b"\x0f\x0b"), "aarch64": (183, b"\0\0\0\0")}
"""ELF's number of the processor, and an instruction that it refuses."""

TEXT, STRINGS, SYMBOLS, HASHES, DYNAMIC = 0x140, 0x160, 0x180, 0x1C0, 0x1000
LOAD, DYNAMIC_SEGMENT, STACK, EXECUTABLE, WRITABLE = 1, 2, 0x6474E551, 5, 6


def make(folder: Path) -> Path:
    """Write it into the folder, for LD_LIBRARY_PATH."""
    machine, instruction = MACHINES[platform.machine()]
    names = b"\0" + b"nvmlInitWithFlags" + b"\0"
    entries = ((4, HASHES), (6, SYMBOLS), (5, STRINGS), (10, len(names)), (11, 24), (0, 0))
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    parts = {
        0: b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
        + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 4, 64, 0, 0)
        + _segment(LOAD, EXECUTABLE, 0, HASHES + 20)
        + _segment(LOAD, WRITABLE, DYNAMIC, len(dynamic))
        + _segment(DYNAMIC_SEGMENT, WRITABLE, DYNAMIC, len(dynamic))
        + _segment(STACK, WRITABLE, 0, 0),  # or the stack becomes executable
        TEXT: instruction,
        STRINGS: names,
        SYMBOLS: bytes(24) + struct.pack("<IBBHQQ", 1, 0x12, 0, 1, TEXT, len(instruction)),
        HASHES: struct.pack("<5I", 1, 2, 1, 0, 0),
        DYNAMIC: dynamic,
    }
    image = bytearray(DYNAMIC + len(dynamic))
    for at, part in parts.items():
        image[at : at + len(part)] = part
    library = folder / NAME
    library.write_bytes(image)
    return library


def _segment(kind: int, flags: int, at: int, size: int) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, 0x1000)
