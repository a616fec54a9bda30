"""PNG files made small: 256 colours are enough for a page, and a third of the bytes."""

import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from itertools import islice

MAGIC = b"\x89PNG\r\n\x1a\n"
Colour = tuple[int, int, int]


def smaller(png: bytes) -> bytes:
    """The same picture with a palette; `png` has 8 bits of red, green and blue a pixel."""
    parts = list(chunks(png))
    width, height, depth, kind = struct.unpack(">IIBB", parts[0][1][:10])
    assert (depth, kind) == (8, 2), "not 8 bits of red, green and blue"
    raw = zlib.decompress(b"".join(body for name, body in parts if name == b"IDAT"))
    rows = list(unfiltered(raw, 3 * width))
    counts = Counter(colour for row in rows for colour in pixels(row))
    palette = [colour for colour, _ in counts.most_common(256)]
    place = {colour: nearest(colour, palette) for colour in counts}
    body = b"".join(b"\0" + bytes(place[colour] for colour in pixels(row)) for row in rows)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    table = bytes(part for colour in palette for part in colour)
    written = (
        (b"IHDR", header),
        (b"PLTE", table),
        (b"IDAT", zlib.compress(body, 9)),
        (b"IEND", b""),
    )
    return MAGIC + b"".join(chunk(name, content) for name, content in written)


def chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    place = len(MAGIC)
    while place < len(png):
        length, name = struct.unpack(">I4s", png[place : place + 8])
        yield name, png[place + 8 : place + 8 + length]
        place += 12 + length


def chunk(name: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + name
        + content
        + struct.pack(">I", zlib.crc32(name + content))
    )


def pixels(row: bytes) -> Iterator[Colour]:
    return zip(row[::3], row[1::3], row[2::3], strict=True)


def nearest(colour: Colour, palette: list[Colour]) -> int:
    return min(
        range(len(palette)),
        key=lambda i: sum((a - b) ** 2 for a, b in zip(colour, palette[i], strict=True)),
    )


def unfiltered(raw: bytes, length: int) -> Iterator[bytes]:
    """Rows of bytes: each was written as the difference to its neighbours."""
    above = bytearray(length)
    stream = iter(raw)
    for kind in stream:
        row = bytearray(islice(stream, length))
        for i in range(length):
            left = row[i - 3] if i >= 3 else 0
            corner = above[i - 3] if i >= 3 else 0
            row[i] = (row[i] + guess(kind, left, above[i], corner)) & 255
        yield bytes(row)
        above = row


def guess(kind: int, left: int, up: int, corner: int) -> int:
    """Return the prediction that the filters 0 to 4 of PNG subtract from a byte."""
    if kind < 3:
        return (0, left, up)[kind]
    if kind == 3:
        return (left + up) // 2
    base = left + up - corner
    return min((left, up, corner), key=lambda near: abs(base - near))
