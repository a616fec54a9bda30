"""Colours of boards: one for each state, distinguished by everybody; and the units of networks."""

import json
import re
import tomllib
from itertools import combinations, starmap
from math import dist
from pathlib import Path

import pytest

from agent.model import PAIRS, State
from dashboards.board import BAD, GOOD, STATES, WARNING, name_of
from tests.support.boards import Json, boards, panels

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


every_board = pytest.mark.parametrize("board", boards().values(), ids=lambda b: b["uid"])


def test_states_have_one_name_and_colour_on_every_board() -> None:
    assert set(STATES) == set(PAIRS)
    assert len({name_of(pair) for pair in PAIRS}) == len(PAIRS)
    every = [panel for board in boards().values() for panel in panels(board)]
    shown = [panel for panel in every if "dgx_gpu_state" in str(panel["targets"])]
    assert len(shown) >= 6
    colours: dict[str, set[str]] = {}
    for panel in shown:
        for override in panel["fieldConfig"]["overrides"]:
            properties = {p["id"]: p["value"] for p in override["properties"]}
            if {"displayName", "color"} <= properties.keys():
                fixed = properties["color"]["fixedColor"]
                colours.setdefault(properties["displayName"], set()).add(fixed)
    (unobserved,) = colours.pop("not observed")  # time without a state
    least = min(distance(unobserved, colour) for colour in STATES.values())
    assert least >= 11, "it looks like a state"
    assert colours == {name_of(pair): {colour} for pair, colour in STATES.items()}


SICK = {State.STARVED, State.THROTTLED}


def test_states_can_be_distinguished_with_any_colour_vision() -> None:
    """19 is nine times what is just noticeable; two ways to be sick may look a little more alike,
    and two causes of a state that no one has to find."""
    for (one, this), (other, that) in combinations(STATES.items(), 2):
        sick = {one[0], other[0]} <= SICK and {one[0], other[0]} != {State.THROTTLED}
        least = 17 if sick else 11 if one[0] is other[0] else 19
        assert distance(this, that) >= least, f"{name_of(one)} looks like {name_of(other)}"
    for good_or_bad in combinations((GOOD, WARNING, BAD), 2):
        assert distance(*good_or_bad) >= 19


TEXTS = ("#202226", "#F7F8FA")
"""Colours of Grafana's text on a colour brighter than 180 of 255, and on the others."""

READABLE = 4.5
"""Contrast that text needs (WCAG 2.2, 1.4.3)."""


@every_board
def test_every_word_can_be_read_on_dark_and_on_light(board: Json) -> None:
    """No text is coloured: no colour reads on both grounds. What lies behind text is such that
    what Grafana writes on it can be read."""
    for panel in panels(board):
        said = json.dumps([panel["options"], panel["fieldConfig"]])
        assert "color-text" not in said
        assert panel["options"].get("colorMode", "none") in {"none", "background_solid"}
        assert panel["options"].get("valueMode", "text") == "text"
        if panel["type"] not in {"stat", "table"}:
            continue
        for colour in set(re.findall(r'"color": "(#\w{6})"', said)):
            red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
            text = TEXTS[0 if 299 * red + 587 * green + 114 * blue > 180_000 else 1]
            assert contrast(colour, text) >= READABLE, f"{panel['title']}: {colour}"


def test_networks_are_in_bits_with_their_limits_and_other_paths_in_bytes() -> None:
    seen = set()
    for panel in (p for b in boards().values() for p in panels(b) if p["type"] == "timeseries"):
        asked = [target["expr"] for target in panel["targets"]]
        network = [bool(re.search(r"dgx_(network|infiniband)_\w*bytes", one)) for one in asked]
        unit = panel["fieldConfig"]["defaults"]["unit"]
        if any(network):
            assert unit == "bps", panel["title"]
            assert all(one.startswith("8 * (") for one in asked), panel["title"]
            seen.add(panel["title"])
        else:
            assert unit != "bps", panel["title"]
    assert seen == {"InfiniBand", "NICs"}
