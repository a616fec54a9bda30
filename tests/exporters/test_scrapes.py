"""Many scrapes at once: one rendering, no one waits for another's, and no work for no one."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from exporters.scrapes import MANY, WHILE, Scrapes
from tests.support.exposition import OM, A, ExpositionBench, power, reading, snapshot


def watts(tick: int) -> bytes:
    return f'dgx_gpu_power_watts{{gpu="0",uuid="GPU-a"}} {tick}.0\n'.encode()


class Clients:
    """Scrapes of a bench whose power is the number of the tick."""

    def __init__(self) -> None:
        self.bench = ExpositionBench()
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


def run_async(coroutine: Callable[[Clients], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(coroutine(Clients()), 30))


def test_all_who_ask_at_once_share_one_rendering() -> None:
    async def coroutine(clients: Clients) -> None:
        clients.tick()
        assert set(await asyncio.gather(*(clients.ask() for _ in range(50)))) == {
            await clients.ask()
        }
        assert clients.bench.builds == 1

    run_async(coroutine)


def test_who_asks_while_the_next_is_written_gets_the_one_before() -> None:
    async def coroutine(clients: Clients) -> None:
        clients.tick()
        assert watts(1) in await clients.ask()
        clients.tick()
        clients.bench.pause.clear()
        first = asyncio.create_task(clients.ask())
        await asyncio.sleep(0)
        assert watts(1) in await clients.ask(), "at once, though nothing moves"
        assert not first.done()
        clients.bench.pause.set()
        assert watts(2) in await first
        assert watts(2) in await clients.ask()

    run_async(coroutine)


def test_what_is_older_than_a_tick_is_not_served() -> None:
    async def coroutine(clients: Clients) -> None:
        clients.tick()
        await clients.ask()
        clients.tick()
        clients.tick()
        clients.bench.pause.clear()
        both = [asyncio.create_task(clients.ask()) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in both)
        clients.bench.pause.set()
        assert all(watts(3) in text for text in await asyncio.gather(*both))

    run_async(coroutine)


def test_a_crowd_has_its_page_written_ahead_for_a_while() -> None:
    async def coroutine(clients: Clients) -> None:
        clients.tick()
        await asyncio.gather(*(clients.ask() for _ in range(MANY)))
        built = clients.bench.builds
        for _ in range(WHILE + 3):
            clients.tick()
            await clients.settled()
        assert clients.bench.builds == built + WHILE, "and then nobody asks any more"
        clients.tick()
        assert watts(clients.number) in await clients.ask()

    run_async(coroutine)


def test_few_have_nothing_written_ahead() -> None:
    async def coroutine(clients: Clients) -> None:
        for _ in range(5):
            clients.tick()
            for _ in range(MANY - 1):
                await clients.ask()
                await clients.ask(OM)
        await clients.settled()
        assert clients.bench.builds == 10, "once a tick and form"

    run_async(coroutine)


def test_a_rendering_that_fails_fails_for_those_who_asked_and_the_next_is_tried() -> None:
    async def coroutine(clients: Clients) -> None:
        clients.tick()
        whole, clients.scrapes.exposition = clients.scrapes.exposition, Broken()  # type: ignore[assignment]
        failed = await asyncio.gather(*(clients.ask() for _ in range(3)), return_exceptions=True)
        assert [type(error) for error in failed] == [ZeroDivisionError] * 3
        clients.scrapes.exposition = whole
        assert watts(1) in await clients.ask()

    run_async(coroutine)


class Broken:
    """An exposition that cannot be written."""

    def cached(self, accept: str, tick: float) -> None:
        """Nothing yet."""

    last = cached

    def page(self, accept: str) -> None:
        raise ZeroDivisionError
