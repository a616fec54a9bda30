"""InfiniBand and RoCE ports: bytes, wait time, errors, link state, and rate. If one port cannot be
read, the others are still reported."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from agent.hardware.files import FileTree, names_in, read_int, read_text
from agent.hardware.host import Host
from agent.metrics import declared_beside
from agent.model import Absent, Metric, ReadKey, Reason
from agent.polling import intervals
from agent.polling.reads import Read, ReadOutput, fixed
from agent.sources.context import HostOptions, Listing, bounded, is_virtual

CLASS = "/sys/class/infiniband"
_METRICS = declared_beside(__file__)
RECEIVED = _METRICS["dgx_infiniband_received_bytes_total"]
TRANSMITTED = _METRICS["dgx_infiniband_transmitted_bytes_total"]
WAIT = _METRICS["dgx_infiniband_wait_ticks_total"]
ERRORS = _METRICS["dgx_infiniband_errors_total"]
PORT_UP = _METRICS["dgx_infiniband_link_up"]
RATE = _METRICS["dgx_infiniband_rate_bytes_per_second"]

WORD = 4  # bytes per unit of the data counters
ACTIVE, PHYSICALLY_UP = 4, 5
FULL = 0xFFFFFFFF  # 32-bit port counters stop at this value instead of wrapping


class PortCounter(NamedTuple):
    """A port counter: its metric, its file, and the factor from the file's to the metric's unit."""

    metric: Metric
    file: str
    unit: int = 1
    kind: tuple[str, ...] = ()


Port = tuple[str, str]  # adapter name and port number

TRAFFIC = (
    PortCounter(RECEIVED, "port_rcv_data", WORD),
    PortCounter(TRANSMITTED, "port_xmit_data", WORD),
    PortCounter(WAIT, "port_xmit_wait"),
)
FAULTS = tuple(
    PortCounter(ERRORS, file, kind=(kind,)) for kind, file in _METRICS.kinds[ERRORS.name].items()
)


class InfinibandPorts:
    """Reads the counters of all ports. The ports are listed every minute. A counter that cannot be
    read is skipped until the next listing, because some drivers log every failed read."""

    def __init__(self, files: FileTree) -> None:
        self._files = files
        self._folders = Listing(self._find)
        self._refused: dict[tuple[Port, PortCounter], Absent] = {}
        self._answered: set[tuple[Port, PortCounter]] = set()

    def _find(self, _: object) -> list[str]:
        self._refused.clear()
        return [
            f"{CLASS}/{device}/ports/{port}"
            for device in names_in(self._files, CLASS)
            if not is_virtual(self._files, f"{CLASS}/{device}")
            for port in names_in(self._files, f"{CLASS}/{device}/ports")
        ]

    def _at(self, out: ReadOutput, metric: Metric) -> Iterator[tuple[Port, str]]:
        """Yield each port and its sysfs directory. Raise Absent if there are no ports."""
        folders = self._folders.at(out.at)
        for folder in bounded(out, metric, folders, none=f"{CLASS} lists no port"):
            *_, device, _, port = folder.split("/")
            yield (device, port), folder

    def read(self, out: ReadOutput, table: tuple[PortCounter, ...]) -> None:
        for port, folder in self._at(out, table[0].metric):
            for row in table:
                out.ask(row.metric, partial(self._value, port, folder, row), *port, *row.kind)

    def links(self, out: ReadOutput) -> None:
        """Read the state and the rate of each port in one read, so that they are consistent."""
        for port, folder in self._at(out, PORT_UP):
            out.ask(PORT_UP, partial(link_up, self._files, folder), *port)
            out.ask(RATE, partial(rate, self._files, folder), *port)

    def _value(self, port: Port, folder: str, row: PortCounter) -> int:
        key = port, row
        if key in self._refused:
            raise self._refused[key].without_traceback()
        try:
            value = _count(self._files, f"{folder}/counters/{row.file}") * row.unit
        except Absent as absent:
            if key not in self._answered:  # tolerate one failure after a success
                self._refused[key] = absent.without_traceback()
            self._answered.discard(key)
            raise
        self._answered.add(key)
        return value


def _count(files: FileTree, path: str) -> int:
    value = read_int(files, path)
    if value == FULL:
        raise Absent(Reason.UNKNOWN, f"{path} is full at {FULL}, expected a counter that moves")
    return value


def _state(files: FileTree, path: str) -> int:
    """Return the number before the colon in a file, for example 4 for `4: ACTIVE`."""
    text = read_text(files, path)
    number = text.partition(":")[0]
    if number not in map(str, range(8)):
        raise Absent(Reason.UNKNOWN, f"{path} holds {text!r:.60}, expected <number>: <state>")
    return int(number)


def link_up(files: FileTree, folder: str) -> float:
    """Return 1 if the port is active and physically up, and 0 otherwise."""
    active = _state(files, f"{folder}/state") == ACTIVE
    return float(active and _state(files, f"{folder}/phys_state") == PHYSICALLY_UP)


def rate(files: FileTree, folder: str) -> float:
    """Return the rate in bytes per second per direction. Raise Absent if the port is down, because
    its rate has not been negotiated."""
    path = f"{folder}/rate"
    if not link_up(files, folder):
        raise Absent(Reason.UNKNOWN, f"{path} has no meaning while the port is down")
    text = read_text(files, path)
    number, _, unit = text.partition(" ")
    known = number.replace(".", "", 1).isdecimal() and len(number) <= 9
    if not known or not unit.startswith("Gb/sec"):
        raise Absent(Reason.UNKNOWN, f"{path} holds {text!r:.60}, expected <n> Gb/sec")
    return float(number) * 1e9 / 8


def reads(host: Host, options: HostOptions) -> Iterator[Read]:
    ports, minute = InfinibandPorts(host.files), fixed(intervals.LINKS)
    traffic, faults = partial(ports.read, table=TRAFFIC), partial(ports.read, table=FAULTS)
    key, metrics = ReadKey("infiniband", "counters"), (RECEIVED, TRANSMITTED, WAIT)
    yield Read(key, metrics, traffic, options.every, varies=True)
    yield Read(ReadKey("infiniband", "errors"), (ERRORS,), faults, minute)
    links = fixed(intervals.LINK_STATE)
    yield Read(ReadKey("infiniband", "links"), (PORT_UP, RATE), ports.links, links)
