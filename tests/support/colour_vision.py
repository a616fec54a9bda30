"""Distance of two colours for people with each kind of colour vision."""

import tomllib
from itertools import starmap
from math import dist
from pathlib import Path

CASES = tomllib.loads(Path(__file__).with_name("colour_vision.toml").read_text("utf-8"))

Triple = tuple[float, float, float]

VISIONS = CASES["visions"]
"""Linear RGB as seen: Machado, Oliveira and Fernandes (2009), severity 1."""

TO_XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
WHITE = (0.9505, 1.0, 1.089)


def linear(colour: str) -> Triple:
    channels = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (
        (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4) for c in channels
    )
    return red, green, blue


def times(matrix: tuple[Triple, ...], vector: Triple) -> Triple:
    a, b, c = (sum(m * v for m, v in zip(row, vector, strict=True)) for row in matrix)
    return a, b, c


def lab(rgb: Triple) -> Triple:
    """CIELAB of linear RGB, under D65."""
    scaled = (v / w for v, w in zip(times(TO_XYZ, rgb), WHITE, strict=True))
    x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in scaled)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def distance(one: str, other: str) -> float:
    """The smallest difference (CIE76) over all kinds of colour vision; 2 is just noticeable."""

    def seen(colour: str, matrix: tuple[Triple, Triple, Triple]) -> Triple:
        red, green, blue = (min(1.0, max(0.0, v)) for v in times(matrix, linear(colour)))
        return lab((red, green, blue))

    pairs = ((seen(one, m), seen(other, m)) for m in VISIONS.values())
    return min(starmap(dist, pairs))


def contrast(one: str, other: str) -> float:
    """Contrast of two colours as WCAG counts it, 1 to 21."""
    dark, light = sorted(times(TO_XYZ, linear(colour))[1] for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)
