"""The agent as the live page and `once` look at it."""

from socket import gethostname

from agent.cli.assembly import Agent, Hardware
from agent.faults.thresholds import AlertThresholds
from agent.hardware.processes import uptime
from exporters.live.view import View


def view_of(agent: Agent, hardware: Hardware) -> View:
    """What they may ask."""
    return View(
        diagnosis=agent.diagnosis,
        samples=agent.poller.samples,
        latest=lambda: agent.poller.latest,
        system=lambda: agent.recognise(agent.gpus.inventory),
        uptime=lambda: uptime(hardware.host.files),
        now=agent.clock.monotonic,
        jobs=lambda: agent.jobs.current,
        thresholds=lambda: agent.settings[AlertThresholds],
        simulated=hardware.simulated,
        host=gethostname(),
    )
