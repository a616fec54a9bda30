"""Bytes of an open page; `python -m tests.benchmarks.tick` measures its CPU time."""

import asyncio

import pytest

from exporters.live.feed import Client, Feed
from tests.support.live_machines import watched

TICK = {"k40": 2_200, "dgx-1-v100": 10_000, "dgx-h100": 12_000, "sixteen": 20_500}
"""Bytes that a tick may take at most; a machine in trouble says more than one that is busy."""

MACHINE = 60_000
HISTORY_OF_A_SECOND = 7_000
"""Of sixteen GPUs, each of which starves for several causes at once."""


@pytest.mark.parametrize("name", TICK)
async def test_a_tick_is_small(name: str) -> None:
    machine = await asyncio.to_thread(lambda: watched(f"{name}:starved-disk").run(6))
    feed, client = Feed(machine.view), Client()
    feed(await asyncio.to_thread(machine.tick))
    await feed.join(client)
    found = {event.split(b"\n", 1)[0]: len(event) for event in feed.news(client)}
    print(name, found)
    assert found[b"event: tick"] <= TICK[name]
    assert found[b"event: machine"] <= MACHINE
    assert found[b"event: history"] <= HISTORY_OF_A_SECOND
