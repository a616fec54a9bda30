"""NICs: bytes in both directions, link state, and negotiated speed."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial

from agent.config.settings import Section
from agent.hardware.files import FileTree, names_in, read_int, read_text
from agent.hardware.host import Host
from agent.metrics import declared_beside
from agent.model import Absent, Metric, ReadKey, Reason
from agent.polling import intervals
from agent.polling.reads import Read, ReadOutput, fixed
from agent.sources.context import HostOptions, Listing, bounded, is_virtual


class NetworkConfig(Section, frozen=True):
    """Settings for NICs. Interfaces whose names match the pattern `ignore` are not reported."""

    table = "network"
    ignore: re.Pattern[str] = re.compile(
        r"^(lo$|veth|docker|br-|cali|cni|flannel|virbr|ifb|dummy|tun|tap|kube-|nodelocaldns|lxc)"
    )


_METRICS = declared_beside(__file__)
RECEIVED = _METRICS["dgx_network_received_bytes_total"]
TRANSMITTED = _METRICS["dgx_network_transmitted_bytes_total"]
LINK_UP = _METRICS["dgx_network_link_up"]
SPEED = _METRICS["dgx_network_speed_bytes_per_second"]

NET = "/sys/class/net"
Fact = Callable[[FileTree, str], float]


def nics(files: FileTree, names: Iterable[str], options: HostOptions) -> list[str]:
    """Return the NICs among the interfaces. A NIC has a `device` entry in sysfs. Virtual
    interfaces, such as bridges, send through NICs and are omitted. In a container, no interface may
    have a device, so return all. If `ignore` is configured, return all that do not match it."""
    ignore = options.settings[NetworkConfig].ignore
    # "bonding_masters" is a control file in the directory of devices.
    named = [name for name in names if name != "bonding_masters" and not ignore.search(name)]
    if ignore != NetworkConfig().ignore:
        return named
    named = [name for name in named if not is_virtual(files, f"{NET}/{name}")]
    return [name for name in named if names_in(files, f"{NET}/{name}/device")] or named


def _counters(host: Host, options: HostOptions) -> Callable[[ReadOutput], None]:
    listing = Listing(lambda names: sorted(nics(host.files, names, options)))

    def read(out: ReadOutput) -> None:
        stats = host.psutil.net_io_counters(pernic=True, nowrap=False)
        devices = listing.at(out.at, stats, options.settings[NetworkConfig].ignore)
        none = "/proc/net/dev lists no NIC that is not ignored"
        for device in bounded(out, RECEIVED, devices, "network.ignore", none=none):
            out.add(RECEIVED, stats[device].bytes_recv, device)
            out.add(TRANSMITTED, stats[device].bytes_sent, device)

    return read


def facts(host: Host, options: HostOptions, metric: Metric, fact: Fact, out: ReadOutput) -> None:
    devices = nics(host.files, names_in(host.files, NET), options)
    none = f"{NET} lists no NIC that is not ignored"
    for device in bounded(out, metric, devices, "network.ignore", none=none):
        out.ask(metric, partial(fact, host.files, device), device)


def link_up(files: FileTree, device: str) -> float:
    """Return 1 if the link is up, and 0 otherwise. If the driver does not report the operational
    state, the carrier determines the result."""
    path = f"{NET}/{device}/operstate"
    state = read_text(files, path)
    if state in {"up", "down", "dormant", "lowerlayerdown", "notpresent", "testing"}:
        return float(state == "up")
    if state != "unknown":
        raise Absent(Reason.UNKNOWN, f"{path} holds {state!r:.60}, expected a state of a link")
    return float(read_int(files, f"{NET}/{device}/carrier") == 1)


def speed(files: FileTree, device: str) -> float:
    """Return the negotiated speed in bytes per second per direction, converted from Mbit/s."""
    path = f"{NET}/{device}/speed"
    try:
        megabits = read_int(files, path)
    except Absent as absent:
        if absent.reason is not Reason.FAILED:
            raise
        # the kernel returns this error for a NIC that is down or reports no speed
        raise Absent(Reason.UNKNOWN, str(absent)) from absent
    if megabits in (-1, 0, 0xFFFF, 0xFFFFFFFF):  # drivers use them for an unknown speed
        why = f"reports no speed ({megabits} Mbit/s)"
        with suppress(Absent):
            why = why if link_up(files, device) else "has no link"
        raise Absent(Reason.UNKNOWN, f"{device} {why}")
    return megabits * 1e6 / 8


def reads(host: Host, options: HostOptions) -> Iterator[Read]:
    key, run = ReadKey("network", "counters"), _counters(host, options)
    yield Read(key, (RECEIVED, TRANSMITTED), run, options.every, varies=True)
    for part, metric, fact, every in (
        ("links", LINK_UP, link_up, intervals.LINK_STATE),
        ("speeds", SPEED, speed, intervals.LINKS),
    ):
        run = partial(facts, host, options, metric, fact)
        yield Read(ReadKey("network", part), (metric,), run, fixed(every))
