"""Many scrapes at once: one rendering, nobody waits for another's, and no work for nobody."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from exporters.scrapes import MANY, WHILE, Scrapes
from tests.support.exposition import OM, A, Bench, power, reading, snapshot


def watts(tick: int) -> bytes:
    return f'dgx_gpu_power_watts{{gpu="0",uuid="GPU-a"}} {tick}.0\n'.encode()


class Crowd:
    """Scrapes of a bench whose power is the number of the tick."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.scrapes = Scrapes(self.bench.exposition)
        self.number = 0

    def tick(self) -> None:
        self.number += 1
        self.bench.snapshot = snapshot(
            reading("gpu", power(A, float(self.number))), tick=self.number
        )
        self.scrapes.tick(self.bench.snapshot)

    async def ask(self, accept: str = "") -> bytes:
        return (await self.scrapes.answer(accept, gzip=False))[0]

    async def settled(self) -> None:
        """Until nothing is being written."""
        async with asyncio.timeout(10):
            while self.scrapes.work._under_way:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


def play(story: Callable[[Crowd], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(story(Crowd()), 30))


def test_all_who_ask_at_once_share_one_rendering() -> None:
    async def story(crowd: Crowd) -> None:
        crowd.tick()
        assert set(await asyncio.gather(*(crowd.ask() for _ in range(50)))) == {await crowd.ask()}
        assert crowd.bench.builds == 1

    play(story)


def test_who_asks_while_the_next_is_written_gets_the_one_before() -> None:
    async def story(crowd: Crowd) -> None:
        crowd.tick()
        assert watts(1) in await crowd.ask()
        crowd.tick()
        crowd.bench.pause.clear()
        first = asyncio.create_task(crowd.ask())
        await asyncio.sleep(0)
        assert watts(1) in await crowd.ask(), "at once, though nothing moves"
        assert not first.done()
        crowd.bench.pause.set()
        assert watts(2) in await first
        assert watts(2) in await crowd.ask()

    play(story)


def test_what_is_older_than_a_tick_is_not_served() -> None:
    async def story(crowd: Crowd) -> None:
        crowd.tick()
        await crowd.ask()
        crowd.tick()
        crowd.tick()
        crowd.bench.pause.clear()
        both = [asyncio.create_task(crowd.ask()) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in both)
        crowd.bench.pause.set()
        assert all(watts(3) in text for text in await asyncio.gather(*both))

    play(story)


def test_a_crowd_has_its_page_written_ahead_for_a_while() -> None:
    async def story(crowd: Crowd) -> None:
        crowd.tick()
        await asyncio.gather(*(crowd.ask() for _ in range(MANY)))
        built = crowd.bench.builds
        for _ in range(WHILE + 3):
            crowd.tick()
            await crowd.settled()
        assert crowd.bench.builds == built + WHILE, "and then nobody asks any more"
        crowd.tick()
        assert watts(crowd.number) in await crowd.ask()

    play(story)


def test_few_have_nothing_written_ahead() -> None:
    async def story(crowd: Crowd) -> None:
        for _ in range(5):
            crowd.tick()
            for _ in range(MANY - 1):
                await crowd.ask()
                await crowd.ask(OM)
        await crowd.settled()
        assert crowd.bench.builds == 10, "once a tick and form"

    play(story)


def test_a_rendering_that_fails_fails_for_those_who_asked_and_the_next_is_tried() -> None:
    async def story(crowd: Crowd) -> None:
        crowd.tick()
        whole, crowd.scrapes.exposition = crowd.scrapes.exposition, Broken()  # type: ignore[assignment]
        failed = await asyncio.gather(*(crowd.ask() for _ in range(3)), return_exceptions=True)
        assert [type(error) for error in failed] == [ZeroDivisionError] * 3
        crowd.scrapes.exposition = whole
        assert watts(1) in await crowd.ask()

    play(story)


class Broken:
    """An exposition that cannot be written."""

    def cached(self, accept: str) -> None:
        """Nothing yet."""

    last = cached

    def page(self, accept: str) -> None:
        raise ZeroDivisionError
