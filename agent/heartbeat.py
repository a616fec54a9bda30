"""What the service manager hears of the agent: that it lives, that it is ready, and how it is."""

from collections.abc import Callable
from dataclasses import dataclass

from agent.assembly import Agent
from agent.model import Snapshot
from agent.notify import READY, WATCHDOG, Supervisor, status


@dataclass(slots=True, eq=False)
class Heartbeat:
    """A listener of the poller: no tick, no sign of life.

    The first tick makes the agent ready, whether or not the driver has answered by then: a driver
    that hangs is told by an alert, and must not hold up the start for ever.
    """

    supervisor: Supervisor
    sentence: Callable[[], str]
    _ready: bool = False
    _said: str = ""

    def __call__(self, _: Snapshot) -> None:
        """One beat, and with it what is new."""
        news = [WATCHDOG] if self.supervisor.watchdog else []
        if not self._ready:
            news.append(READY)
        sentence = self.sentence()
        if sentence != self._said:
            news.append(status(sentence))
        self._ready, self._said = True, sentence
        self.supervisor.tell(*news)


def condition(agent: Agent) -> str:
    """How the agent is, in one sentence."""
    awaited = agent.poller.waiting_for()
    if awaited:
        return f"Waiting for {awaited}."
    if agent.poller.stuck:
        return f"A call to {', '.join(sorted(agent.poller.stuck))} hangs; the rest is served."
    fleet = agent.gpus.fleet
    if not fleet.connected:
        return f"No GPU is watched: {fleet.why_not}."
    system = agent.recognise(fleet)
    of = f" of {system.title}" if system else ""
    if fleet.lost:
        return f"{fleet.answering} of {len(fleet.gpus)} GPUs{of} answer."
    return f"Watching {fleet.answering} GPU{'s' * (fleet.answering != 1)}{of}."
