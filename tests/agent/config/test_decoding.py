"""Decoding of what users write: the error names the innermost wrong value."""

from typing import Annotated, Any, Literal

import pytest
from msgspec import Struct

from agent.config.decoding import Mismatch, TextCheck, decode

Even = Annotated[str, TextCheck(lambda text: int(text) % 2 == 0, "an even number as text")]


class Bolt(Struct, frozen=True):
    """A table in a table."""

    size: Even
    head: Literal["flat", "round"] = "flat"


class Box(Struct, frozen=True):
    """A table."""

    bolts: tuple[Bolt, ...]
    lid: bool | None = None
    most: int = 9
    tags: dict[str, Even] | None = None

    def __post_init__(self) -> None:
        if len(self.bolts) > self.most:
            raise Mismatch("bolts", f"a list of {len(self.bolts)}", f"at most {self.most}")


def test_what_is_right_is_decoded() -> None:
    box = decode({"bolts": [{"size": "2", "head": "round"}], "lid": True}, Box)
    assert box == Box((Bolt("2", "round"),), lid=True)


WRONG: dict[str, tuple[Any, str]] = {
    "no table": (3, "box is 3, expected a table with bolts"),
    "missing": ({}, "box.bolts is missing, expected an array of tables, written as [[box.bolts]]"),
    "unknown": ({"bolts": [], "lit": 1}, "box.lit is not a known key, expected one of bolts, lid"),
    "inside": ({"bolts": [{"size": "2", "x": 1}]}, "box.bolts[0].x is not a known key"),
    "type": ({"bolts": [], "lid": "on"}, "box.lid is 'on', expected true or false"),
    "choice": (
        {"bolts": [{"size": "2"}, {"size": "4", "head": "hex"}]},
        "box.bolts[1].head is 'hex', expected one of flat, round",
    ),
    "check": ({"bolts": [{"size": "3"}]}, "box.bolts[0].size is '3', expected an even number"),
    "check that raises": ({"bolts": [{"size": "x"}]}, "box.bolts[0].size is 'x', expected an even"),
    "together": ({"bolts": [{"size": "2"}], "most": 0}, "box.bolts is a list of 1, expected at mo"),
    "no mapping": ({"bolts": [], "tags": 3}, "box.tags is 3, expected a table"),
    "in a mapping": (
        {"bolts": [], "tags": {"a": "2", "b": "3"}},
        "box.tags.b is '3', expected an even number as text",
    ),
    "type in a mapping": (
        {"bolts": [], "tags": {"a": None}},
        "box.tags.a is None, expected an even number as text",
    ),
    "no name": ({1: 2, "bolts": []}, "box.1 is not a known key"),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_innermost_wrong_value_is_reported(case: str) -> None:
    value, said = WRONG[case]
    with pytest.raises(Mismatch) as shown:
        decode(value, Box, "box")
    assert str(shown.value).startswith(said)


def test_text_is_taken_for_numbers_only_where_it_may() -> None:
    assert decode("7", int, "n", strict=False) == 7
    with pytest.raises(Mismatch, match="n is '7', expected a whole number"):
        decode("7", int, "n")
