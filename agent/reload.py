"""Another configuration while the agent runs: whole or not at all."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from agent.assembly import Agent
from agent.config import Config
from agent.journal import start_logging
from agent.notify import READY, Supervisor, reloading
from agent.reads import described
from agent.refusal import BadInput
from agent.settings import Settings

log = logging.getLogger(__name__)

UNCHANGEABLE = ("listen",)
"""What is settled at the start: another value needs a restart."""


@dataclass(slots=True, eq=False)
class Reload:
    """Reads the configuration anew each time that it is asked to; `good` tells how that went.

    `others` lets those follow that the agent does not know; it raises BadInput before it changes
    anything.
    """

    agent: Agent
    read: Callable[[], Config]
    others: Callable[[Config], None]
    supervisor: Supervisor
    good: bool = True
    _started_with: Config = field(init=False)
    _asked: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._started_with = self.agent.config

    def ask(self) -> None:
        """Reload soon; asked again meanwhile, once more."""
        self._asked.set()

    async def run(self) -> None:
        """Reload whenever asked, for ever."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            self.supervisor.tell(reloading())
            await self.reload()
            self.supervisor.tell(READY)

    async def reload(self) -> None:
        """Put the configuration as it is now in force, or keep the old one and say why."""
        try:
            settings = await asyncio.to_thread(self._settings)
            self.others(settings.config)
        except Exception as error:  # whatever is wrong with it, the agent goes on as before
            why = str(error) if isinstance(error, BadInput) else described(error)
            log.error('event=reload_failed error="%s"', why)  # noqa: TRY400  (one line)
            self.good = False
            return
        for key in UNCHANGEABLE:
            before, now = getattr(self._started_with, key), getattr(settings.config, key)
            if before != now:
                log.warning('event=needs_a_restart key=%s in_force="%s" new="%s"', key, before, now)
        self.agent.follow(settings)
        start_logging(settings.config.log)
        self.good = True
        log.info("event=reloaded")

    def _settings(self) -> Settings:
        return Settings.of(self.read(), self.agent.product)
