"""Work that many ask for at once and one thread does once, off the event loop."""

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


def _one_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="render")


@dataclass(slots=True, eq=False)
class SharedWork:
    """One thread, and not one a client: all of them want Python's lock, and so does the tick."""

    _thread: ThreadPoolExecutor = field(default_factory=_one_thread)
    _under_way: dict[Hashable, asyncio.Future[Any]] = field(default_factory=dict)

    def is_under_way(self, key: Hashable) -> bool:
        """Whether somebody asked for it and has not got it yet."""
        return key in self._under_way

    def begin(self, key: Hashable, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Do `work`, unless what has the same key is under way: then that is what comes."""
        under_way = self._under_way.get(key)
        if under_way is None:
            loop = asyncio.get_running_loop()
            under_way = self._under_way[key] = loop.run_in_executor(self._thread, work)
            under_way.add_done_callback(partial(self._end, key))
        return under_way

    def _end(self, key: Hashable, done: asyncio.Future[Any]) -> None:
        del self._under_way[key]
        if not done.cancelled():
            done.exception()  # said to those who wait; where no one does, to no one

    async def of(self, key: Hashable, work: Callable[[], T]) -> T:
        """What `work` returns; who asks for the same key meanwhile gets the same."""
        return await asyncio.shield(self.begin(key, work))
