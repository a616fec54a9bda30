"""What the user may leave out of the host's sources."""

from dataclasses import dataclass

DEFAULT_IGNORE_DISKS = r"^(loop|ram|zram|sr|fd|dm-)\d+"
DEFAULT_IGNORE_NETWORKS = (
    r"^(lo$|veth|docker|br-|cali|cni|flannel|virbr|ifb|dummy|tun|tap|kube-|nodelocaldns|lxc)"
)


@dataclass(frozen=True, slots=True)
class HostOptions:
    """Regular expressions, searched in device names; a device that matches is left out."""

    ignore_disks: str = DEFAULT_IGNORE_DISKS
    ignore_networks: str = DEFAULT_IGNORE_NETWORKS
