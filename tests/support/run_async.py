"""Run a coroutine to its end, for a bounded time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


def run_async(coroutine: Callable[[], Coroutine[Any, Any, None]], seconds: float = 60.0) -> None:
    """Raises TimeoutError where it takes longer than this many seconds."""
    asyncio.run(asyncio.wait_for(coroutine(), seconds))
