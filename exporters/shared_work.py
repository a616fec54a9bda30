"""Work that many ask for at once and one thread does once, off the event loop."""

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class SharedWork:
    """One thread, and not one a client: all of them want Python's lock, and so does the tick."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="render")
        self._under_way: dict[Hashable, asyncio.Future[Any]] = {}

    async def of(self, key: Hashable, work: Callable[[], T]) -> T:
        """What `work` returns; a client that asks for the same key meanwhile gets the same."""
        done: asyncio.Future[T] | None = self._under_way.get(key)
        if done is None:
            done = asyncio.get_running_loop().run_in_executor(self._thread, work)
            self._under_way[key] = done
            done.add_done_callback(lambda done: self._end(key, done))
        return await asyncio.shield(done)

    def _end(self, key: Hashable, done: asyncio.Future[Any]) -> None:
        del self._under_way[key]
        if not done.cancelled():
            done.exception()  # raised in each that waits; if none does any more, it is dropped
