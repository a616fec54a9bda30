"""The status as JSON: an example by hand, which page scripts are tried with too."""

from pathlib import Path

import msgspec

from agent.status.model import Status

EXAMPLE = Path(__file__).with_name("example.json")


def test_the_example_is_a_whole_status() -> None:
    text = EXAMPLE.read_bytes()
    status = msgspec.json.decode(text, type=Status)
    assert msgspec.json.decode(msgspec.json.encode(status)) == msgspec.json.decode(text)
