"""The agent as the live page and `once` look at it."""

from agent.assembly import Agent, Hardware
from agent.backends.processes import uptime
from exporters.live.view import View


def view_of(agent: Agent, hardware: Hardware) -> View:
    """What they may ask."""
    return View(
        diagnosis=agent.diagnosis,
        latest=lambda: agent.poller.latest,
        system=lambda: agent.recognise(agent.gpus.fleet),
        uptime=lambda: uptime(hardware.host.files),
        clock=agent.clock,
        simulated=hardware.simulated,
    )
