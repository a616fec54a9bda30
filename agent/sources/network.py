"""NICs: bytes in each direction, link state, negotiated speed."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial

from agent.config.settings import Section
from agent.hardware.files import FileTree, names_in, read_int, read_text
from agent.hardware.host import Host
from agent.model import Absent, Metric, ReadKey, Reason, counter, gauge, internal
from agent.polling import intervals
from agent.polling.reads import Read, ReadOutput, fixed
from agent.ranges import FASTEST_WIRE
from agent.sources.context import HostOptions, bounded


class NetworkConfig(Section, frozen=True):
    """Interfaces whose name matches `ignore` are left out."""

    table = "network"
    ignore: re.Pattern[str] = re.compile(
        r"^(lo$|veth|docker|br-|cali|cni|flannel|virbr|ifb|dummy|tun|tap|kube-|nodelocaldns|lxc)"
    )


RECEIVED = counter(
    "dgx_network_received_bytes_total",
    "Bytes that the NIC received.",
    "psutil.net_io_counters(pernic=True).bytes_recv, of /proc/net/dev",
    ("device",),
    fastest=FASTEST_WIRE,
)
TRANSMITTED = counter(
    "dgx_network_transmitted_bytes_total",
    "Bytes that the NIC transmitted.",
    "psutil.net_io_counters(pernic=True).bytes_sent, of /proc/net/dev",
    ("device",),
    fastest=FASTEST_WIRE,
)
LINK_UP = gauge(
    "dgx_network_link_up",
    "1 if the NIC can pass packets, 0 if it is down or has no carrier.",
    "/sys/class/net/<device>/operstate, or carrier if that is unknown",
    ("device",),
)
SPEED = internal(
    "dgx_network_speed_bytes_per_second",
    "Negotiated speed of the NIC in bytes per second and direction.",
    "/sys/class/net/<device>/speed (Mbit/s)",
    ("device",),
)

NET = "/sys/class/net"
Fact = Callable[[FileTree, str], float]
LINK_STATE = 5.0  # seconds between two checks of the link
NOT_A_DEVICE = "bonding_masters"  # a control file among the devices
BYTES_PER_MEGABIT = 1e6 / 8
NO_SPEED = frozenset({-1, 0, 0xFFFF, 0xFFFFFFFF})  # what drivers say when they do not know


def nics(files: FileTree, names: Iterable[str], options: HostOptions) -> list[str]:
    """The NICs among interfaces: those of a device, for what the kernel makes up (bridges, ends of
    containers) sends over these. Where none has a device, as in a container, all are; where the
    owner says what to ignore, that alone decides."""
    ignore = options.settings[NetworkConfig].ignore
    named = [name for name in names if name != NOT_A_DEVICE and not ignore.search(name)]
    if ignore != NetworkConfig().ignore:
        return named
    return [name for name in named if names_in(files, f"{NET}/{name}/device")] or named


class InterfaceCounters:
    """Bytes of every NIC; names are matched against what to ignore only when they change."""

    def __init__(self, host: Host, options: HostOptions) -> None:
        self._host = host
        self._options = options
        self._ignored = options.settings[NetworkConfig].ignore
        self._seen: frozenset[str] = frozenset()
        self._devices: list[str] = []
        self._left_out: Absent | None = None

    def read(self, out: ReadOutput) -> None:
        stats = self._host.psutil.net_io_counters(pernic=True, nowrap=False)
        ignored = self._options.settings[NetworkConfig].ignore
        if stats.keys() != self._seen or ignored != self._ignored:
            self._ignored, self._seen = ignored, frozenset(stats)
            counted = nics(self._host.files, stats, self._options)
            self._devices, self._left_out = bounded(counted, "network.ignore")
        if not self._devices:
            raise Absent(Reason.MISSING, "/proc/net/dev lists no NIC that is not ignored")
        for device in self._devices:
            of = stats[device]
            out.add(RECEIVED, of.bytes_recv, device)
            out.add(TRANSMITTED, of.bytes_sent, device)
        if self._left_out is not None:
            out.absent(RECEIVED, self._left_out)


def facts(host: Host, options: HostOptions, metric: Metric, fact: Fact, out: ReadOutput) -> None:
    devices = nics(host.files, names_in(host.files, NET), options)
    if not devices:
        raise Absent(Reason.MISSING, f"{NET} lists no NIC that is not ignored")
    for device in bounded(devices, "network.ignore")[0]:
        out.ask(metric, partial(fact, host.files, device), device)


def link_up(files: FileTree, device: str) -> float:
    """1 or 0; drivers that never report an operational state still know their carrier."""
    state = read_text(files, f"{NET}/{device}/operstate")
    if state != "unknown":
        return float(state == "up")
    return float(read_int(files, f"{NET}/{device}/carrier") == 1)


def speed(files: FileTree, device: str) -> float:
    """Bytes per second and direction, from the Mbit/s that the driver negotiated."""
    path = f"{NET}/{device}/speed"
    try:
        megabits = read_int(files, path)
    except Absent as absent:
        if absent.reason is not Reason.FAILED:
            raise
        # the kernel answers so for a NIC that is down or that has no notion of speed
        raise Absent(Reason.UNKNOWN, str(absent)) from absent
    if megabits in NO_SPEED:
        why = f"reports no speed ({megabits} Mbit/s)"
        with suppress(Absent):
            why = why if link_up(files, device) else "has no link"
        raise Absent(Reason.UNKNOWN, f"{device} {why}")
    return megabits * BYTES_PER_MEGABIT


def reads(host: Host, options: HostOptions) -> Iterator[Read]:
    counters = InterfaceCounters(host, options)
    links, speeds = (
        partial(facts, host, options, *one) for one in ((LINK_UP, link_up), (SPEED, speed))
    )
    key, both = ReadKey("network", "counters"), (RECEIVED, TRANSMITTED)
    yield Read(key, both, counters.read, options.every, varies=True)
    yield Read(ReadKey("network", "links"), (LINK_UP,), links, fixed(LINK_STATE))
    yield Read(ReadKey("network", "speeds"), (SPEED,), speeds, fixed(intervals.LINKS))
