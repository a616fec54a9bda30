"""Applies changed settings to a running agent. It is a separate module because it imports asyncio,
which imports OpenSSL. The agent needs its settings to decide whether to import OpenSSL."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from agent.config.settings import Configuration, Settings
from agent.errors import BadInput, Failure, LogEvent, log


@dataclass(slots=True, eq=False)
class Reload:
    """Reloads the settings when `asked` is set. `good` is true if the last reload was successful.

    `read` returns the new settings, or raises BadInput if they are invalid. It runs on a separate
    thread, because it reads files. `follow` is called with the new settings after they have taken
    effect. Each reload runs inside a context manager that `under_way` returns.
    """

    configuration: Configuration
    read: Callable[[], Settings]
    follow: Callable[[Settings], None]
    under_way: Callable[[], AbstractContextManager[None]] = nullcontext
    good: bool = True
    _started_with: Settings = field(init=False)
    asked: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._started_with = self.configuration.current

    async def run(self) -> None:
        """Reload the settings after each request. This coroutine runs forever."""
        while True:
            await self.asked.wait()
            self.asked.clear()
            with self.under_way():
                await self.reload()

    async def reload(self) -> None:
        """Apply the new settings. If they are invalid, keep the old ones and log the reason."""
        try:
            settings = await asyncio.to_thread(self.read)
            for key, old, new in settings.needing_restart(self._started_with):
                log.warning(LogEvent("needs_a_restart", key=key, in_force=str(old), new=str(new)))
            self.configuration.current = settings
            self.follow(settings)
        except Exception as error:  # the agent continues with the previous settings
            why = str(error) if isinstance(error, BadInput) else str(Failure.of(error))
            log.error(LogEvent("reload_failed", error=why))
            self.good = False
        else:
            self.good = True
            log.info(LogEvent("reloaded"))
