"""What the user may choose of the host's sources."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from agent import beats
from agent.reads import fixed

DEFAULT_IGNORE_DISKS = r"^(loop|ram|zram|sr|fd|dm-)\d+"
DEFAULT_IGNORE_NETWORKS = (
    r"^(lo$|veth|docker|br-|cali|cni|flannel|virbr|ifb|dummy|tun|tap|kube-|nodelocaldns|lxc)"
)

EACH_TICK = fixed(beats.TICK)


@dataclass(slots=True, eq=False)
class HostOptions:
    """Regular expressions, searched in device names: a device that matches is left out; whether
    the jobs on each GPU are exported by name; and the beat (s) of the counters that tell what
    starves a GPU. A reload changes them at any moment: sources look here at each read."""

    ignore_disks: str = DEFAULT_IGNORE_DISKS
    ignore_networks: str = DEFAULT_IGNORE_NETWORKS
    job_info: bool = False
    every: Callable[[], float] = EACH_TICK

    @property
    def ignored_disks(self) -> re.Pattern[str]:
        """Compiled anew only where it has changed: `re` keeps what it compiled."""
        return re.compile(self.ignore_disks)

    @property
    def ignored_networks(self) -> re.Pattern[str]:
        """As above."""
        return re.compile(self.ignore_networks)
