"""InfiniBand and RoCE ports: bytes, waiting, errors, link state and rate. One odd port costs none
of the others."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from agent.clock import Clock
from agent.hardware.files import FileTree, names_in, read_int, read_text
from agent.hardware.host import Host
from agent.model import Absent, Metric, ReadKey, Reason, counter, event_counter, gauge, internal
from agent.polling import intervals
from agent.polling.reads import Read, ReadOutput, fixed
from agent.ranges import FASTEST_WIRE
from agent.sources.options import MOST_DEVICES, HostOptions, left_out

MOST_DIGITS = 9
PORT_LABELS = ("device", "port")
RECEIVED = counter(
    "dgx_infiniband_received_bytes_total",
    "Bytes that the port received on all virtual lanes.",
    "/sys/class/infiniband/<device>/ports/<port>/counters/port_rcv_data (4-byte words)",
    PORT_LABELS,
    fastest=FASTEST_WIRE,
)
TRANSMITTED = counter(
    "dgx_infiniband_transmitted_bytes_total",
    "Bytes that the port transmitted on all virtual lanes.",
    "/sys/class/infiniband/<device>/ports/<port>/counters/port_xmit_data (4-byte words)",
    PORT_LABELS,
    fastest=FASTEST_WIRE,
)
WAIT = counter(
    "dgx_infiniband_wait_ticks_total",
    "Ticks of the port's clock in which it had data to transmit but no credits: congestion. The "
    "length of a tick is the vendor's.",
    "/sys/class/infiniband/<device>/ports/<port>/counters/port_xmit_wait",
    PORT_LABELS,
    fastest=FASTEST_WIRE,
)
ERRORS = event_counter(
    "dgx_infiniband_errors_total",
    "Errors of the port by kind; many ports stop counting at 255 or 65535.",
    "/sys/class/infiniband/<device>/ports/<port>/counters, files named after the kind",
    (*PORT_LABELS, "kind"),
)
LINK_UP = gauge(
    "dgx_infiniband_link_up",
    "1 where the port is active and its physical link is up.",
    "/sys/class/infiniband/<device>/ports/<port>/state (4: ACTIVE) and phys_state (5: LinkUp)",
    PORT_LABELS,
)
RATE = internal(
    "dgx_infiniband_rate_bytes_per_second",
    "Negotiated rate of an active port in bytes per second and direction.",
    "/sys/class/infiniband/<device>/ports/<port>/rate (Gb/s)",
    PORT_LABELS,
)

CLASS = "/sys/class/infiniband"
LINK_STATE = 5.0  # seconds between two checks of the links
WORD = 4  # bytes in the unit of the data counters
ACTIVE, PHYSICALLY_UP = 4, 5
FULL = 0xFFFFFFFF  # 32-bit counters of a port do not wrap: they stop here
ERROR_FILES = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)


class Port(NamedTuple):
    """One port of one adapter."""

    device: str
    port: str

    def path(self, name: str) -> str:
        return f"{CLASS}/{self.device}/ports/{self.port}/{name}"


class PortCounter(NamedTuple):
    """One counter of a port: the files that may hold it, the best first, and its unit."""

    metric: Metric
    files: tuple[str, ...]
    unit: int = 1
    kind: tuple[str, ...] = ()


def _data(metric: Metric, name: str) -> PortCounter:
    files = (f"counters/{name}", f"counters_ext/{name}_64")
    return PortCounter(metric, files, WORD)


TRAFFIC = (
    _data(RECEIVED, "port_rcv_data"),
    _data(TRANSMITTED, "port_xmit_data"),
    PortCounter(WAIT, ("counters/port_xmit_wait",)),
)
FAULTS = tuple(
    PortCounter(ERRORS, (f"counters/{name}",), kind=(name.removeprefix("port_"),))
    for name in ERROR_FILES
)


class InfinibandPorts:
    """The ports of this host, listed again each minute; `listed` grows with each listing."""

    def __init__(self, files: FileTree) -> None:
        self._files = files
        self._ports: tuple[Port, ...] = ()
        self._list_at = 0.0
        self.listed = 0
        self.left_out: Absent | None = None

    def at(self, now: float) -> tuple[Port, ...]:
        """The ports at monotonic time `now` (s); raises Absent where there are none."""
        if now >= self._list_at:
            self._list_at = now + intervals.LINKS
            ports = list(self._list())
            self._ports, self.left_out = tuple(ports[:MOST_DEVICES]), left_out(len(ports))
            self.listed += 1
        if not self._ports:
            raise Absent(Reason.MISSING, f"{CLASS} lists no port")
        return self._ports

    def _list(self) -> Iterator[Port]:
        for device in names_in(self._files, CLASS):
            for port in names_in(self._files, f"{CLASS}/{device}/ports"):
                yield Port(device, port)


class PortCounters:
    """A table of counters of every port. A counter that its port refuses rests until the ports are
    listed again: some drivers log every refusal."""

    def __init__(
        self, files: FileTree, ports: InfinibandPorts, table: tuple[PortCounter, ...]
    ) -> None:
        self._files = files
        self._ports = ports
        self._table = table
        self._listed = 0
        self._paths: dict[tuple[Port, PortCounter], str] = {}
        self._refused: dict[tuple[Port, PortCounter], Absent] = {}

    def read(self, out: ReadOutput) -> None:
        ports = self._ports.at(out.at)
        if self._listed != self._ports.listed:
            self._begin_anew(ports)
        for port in ports:
            for row in self._table:
                self._read_one(port, row, out)
        if self._ports.left_out is not None:
            out.absent(self._table[0].metric, self._ports.left_out)

    def _begin_anew(self, ports: tuple[Port, ...]) -> None:
        self._listed = self._ports.listed
        self._refused.clear()
        self._paths = {key: path for key, path in self._paths.items() if key[0] in ports}

    def _read_one(self, port: Port, row: PortCounter, out: ReadOutput) -> None:
        refused = self._refused.get((port, row))
        value: float | Absent
        try:
            value = refused if refused is not None else self._raw(port, row) * row.unit
        except Absent as absent:
            value = absent
        out.add(row.metric, value, *port, *row.kind)

    def _raw(self, port: Port, row: PortCounter) -> int:
        """From the file that answered before; a first failure of that file is forgiven."""
        path = self._paths.pop((port, row), None)
        value = _value(self._files, path) if path else self._search(port, row)
        if path:
            self._paths[port, row] = path
        return value

    def _search(self, port: Port, row: PortCounter) -> int:
        """From the first file that answers; where none does, the first one's reason stands."""
        for path in map(port.path, row.files):
            try:
                value = _value(self._files, path)
            except Absent as absent:
                self._refused.setdefault((port, row), absent.without_traceback())
            else:
                self._refused.pop((port, row), None)
                self._paths[port, row] = path
                return value
        raise self._refused[port, row].without_traceback()


def _value(files: FileTree, path: str) -> int:
    value = read_int(files, path)
    if value == FULL:
        raise Absent(Reason.UNKNOWN, f"{path} is full at {FULL}, expected a counter that moves")
    return value


class PortFacts:
    """One fact of every port; a port that does not report it costs only itself."""

    def __init__(
        self,
        files: FileTree,
        ports: InfinibandPorts,
        metric: Metric,
        fact: Callable[[FileTree, Port], float],
    ) -> None:
        self._files = files
        self._ports = ports
        self._metric = metric
        self._fact = fact

    def read(self, out: ReadOutput) -> None:
        for port in self._ports.at(out.at):
            try:
                out.add(self._metric, self._fact(self._files, port), *port)
            except Absent as absent:
                out.absent(self._metric, absent, *port)
        if self._ports.left_out is not None:
            out.absent(self._metric, self._ports.left_out)


def _state(files: FileTree, path: str) -> int:
    """The number before the colon, as in `4: ACTIVE`."""
    text = read_text(files, path)
    number = text.partition(":")[0]
    if not number.isdecimal() or len(number) > MOST_DIGITS:
        raise Absent(Reason.UNKNOWN, f"{path} holds {text!r:.60}, expected <number>: <state>")
    return int(number)


def link_up(files: FileTree, port: Port) -> float:
    """1 or 0."""
    active = _state(files, port.path("state")) == ACTIVE
    return float(active and _state(files, port.path("phys_state")) == PHYSICALLY_UP)


def rate(files: FileTree, port: Port) -> float:
    """Bytes per second and direction; a port that is down shows a rate that no one agreed on."""
    if not link_up(files, port):
        raise Absent(Reason.UNKNOWN, f"{port.path('rate')} has no meaning while the port is down")
    text = read_text(files, port.path("rate"))
    number, _, unit = text.partition(" ")
    known = number.replace(".", "", 1).isdecimal() and len(number) <= MOST_DIGITS
    if not known or not unit.startswith("Gb/sec"):
        raise Absent(Reason.UNKNOWN, f"{port.path('rate')} holds {text!r:.60}, expected <n> Gb/sec")
    return float(number) * 1e9 / 8


def reads(host: Host, _clock: Clock, options: HostOptions) -> Iterator[Read]:
    """The reads of the host's InfiniBand ports."""
    files, ports = host.files, InfinibandPorts(host.files)
    plan: tuple[
        tuple[str, tuple[Metric, ...], Callable[[ReadOutput], None], Callable[[], float]], ...
    ] = (
        (
            "counters",
            (RECEIVED, TRANSMITTED, WAIT),
            PortCounters(files, ports, TRAFFIC).read,
            options.every,
        ),
        ("errors", (ERRORS,), PortCounters(files, ports, FAULTS).read, fixed(intervals.LINKS)),
        ("links", (LINK_UP,), PortFacts(files, ports, LINK_UP, link_up).read, fixed(LINK_STATE)),
        ("rates", (RATE,), PortFacts(files, ports, RATE, rate).read, fixed(intervals.LINKS)),
    )
    for part, metrics, run, every in plan:
        yield Read(ReadKey("infiniband", part), metrics, run, every, varies=True)
