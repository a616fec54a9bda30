"""What the service manager hears of the agent: that it lives, that it is ready, and how it is."""

from collections.abc import Callable
from dataclasses import dataclass

from agent.model import Snapshot
from agent.polling.inventory import GpuInventory
from agent.polling.poller import Poller
from agent.service.sd_notify import READY, WATCHDOG, NotifySocket, status
from agent.specs import SystemSpec


@dataclass(slots=True, eq=False)
class StatusNotifier:
    """A listener of the poller: no tick, no sign of life.

    The first tick makes the agent ready, whether or not the driver has answered by then: a driver
    that hangs is reported by an alert, and must not hold up the start for ever.
    """

    notify_socket: NotifySocket
    sentence: Callable[[], str]
    _ready: bool = False
    _said: str = ""

    def __call__(self, _: Snapshot) -> None:
        news = [WATCHDOG] if self.notify_socket.watchdog else []
        if not self._ready:
            news.append(READY)
        sentence = self.sentence()
        if sentence != self._said:
            news.append(status(sentence))
        self._ready, self._said = True, sentence
        self.notify_socket.send(*news)


def condition(poller: Poller, inventory: GpuInventory, system: SystemSpec | None) -> str:
    awaited = poller.waiting_for()
    if awaited:
        return f"Waiting for {awaited}."
    if poller.stuck:
        return f"A call to {', '.join(sorted(poller.stuck))} hangs; the rest is served."
    if not inventory.connected:
        return f"No GPU is watched: {inventory.why_not}."
    of = f" of {system.title}" if system else ""
    if inventory.lost:
        return f"{inventory.answering} of {len(inventory.gpus)} GPUs{of} answer."
    return f"Watching {inventory.answering} GPU{'s' * (inventory.answering != 1)}{of}."
