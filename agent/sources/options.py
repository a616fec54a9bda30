"""What the user may choose of sources."""

from collections.abc import Callable
from dataclasses import dataclass, field

from agent.config.settings import Configuration, Section, Settings
from agent.polling import intervals
from agent.polling.reads import fixed

EACH_TICK = fixed(intervals.TICK)


@dataclass(frozen=True, slots=True)
class HostOptions:
    """The settings, and the interval (s) of the counters that tell what starves a GPU. A reload
    changes settings at any moment: sources look here at each read."""

    configuration: Configuration = field(default_factory=Configuration)
    every: Callable[[], float] = EACH_TICK

    @property
    def settings(self) -> Settings:
        """Those in force."""
        return self.configuration.current


class NvlinkConfig(Section, frozen=True):
    """Whether bytes are counted link by link: of 8 GPUs with 18 links those are 576 series, which
    tell a slow link from its neighbours. Totals, errors and the state of each link always are."""

    table = "nvlink"
    per_link: bool = True
