"""NVLink: payload and wire bytes per GPU and per link, errors, state, the far end, the fabric."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from agent.hardware.device import NvmlDevice, text_of
from agent.hardware.fields import ALL_LINKS, FieldId
from agent.hardware.gpm import FASTEST_NVLINK, NVLINK_UNIT, Gpm, GpmId
from agent.hardware.nvml import ALL_ONES
from agent.model import FINAL, GPU_LABELS, Absent, Metric, Reason, counter, event_counter, gauge
from agent.polling import intervals
from agent.polling.field_rows import FieldRow, FieldRows
from agent.polling.gpu_state import GpuState
from agent.polling.nvlinks import LINK_LABELS, MOST_LINKS, NO_NVLINK, link_state, links_of
from agent.polling.reads import PERMANENT, Read, ReadOutput, ValueRow, ValueRows, refused_read
from agent.ranges import FLAG, Range
from agent.sources.gpu_context import GpuContext
from agent.sources.options import NvlinkConfig
from agent.specs.machine import MachineSpecs

_DATA = "nvmlDeviceGetFieldValues {} (KiB), {}"
_PAYLOAD = "nvmlDeviceGetFieldValues {} (KiB), else {} (bytes), {}"

FASTEST_LINK = 2.5e11
"""Bytes per second that no GPU moves over all its links, or over one."""

TRANSMITTED = counter(
    "dgx_nvlink_transmitted_bytes_total",
    "Payload bytes sent over all NVLinks of the GPU.",
    _PAYLOAD.format(138, 202, "scope all links"),
    GPU_LABELS,
    fastest=FASTEST_NVLINK,
)
RECEIVED = counter(
    "dgx_nvlink_received_bytes_total",
    "Payload bytes received over all NVLinks of the GPU.",
    _PAYLOAD.format(139, 204, "scope all links"),
    GPU_LABELS,
    fastest=FASTEST_NVLINK,
)
WIRE_TRANSMITTED = counter(
    "dgx_nvlink_wire_transmitted_bytes_total",
    "Bytes sent on the wire of all NVLinks of the GPU: payload plus protocol. This is what fills "
    "a link.",
    _DATA.format(140, "scope all links"),
    GPU_LABELS,
    fastest=FASTEST_NVLINK,
)
WIRE_RECEIVED = counter(
    "dgx_nvlink_wire_received_bytes_total",
    "Bytes received on the wire of all NVLinks of the GPU: payload plus protocol.",
    _DATA.format(141, "scope all links"),
    GPU_LABELS,
    fastest=FASTEST_NVLINK,
)
LINK_TRANSMITTED = counter(
    "dgx_nvlink_link_transmitted_bytes_total",
    "Payload bytes sent over one NVLink.",
    _PAYLOAD.format(138, 202, "scope link"),
    LINK_LABELS,
    fastest=FASTEST_LINK,
)
LINK_RECEIVED = counter(
    "dgx_nvlink_link_received_bytes_total",
    "Payload bytes received over one NVLink.",
    _PAYLOAD.format(139, 204, "scope link"),
    LINK_LABELS,
    fastest=FASTEST_LINK,
)
LINK_WIRE_TRANSMITTED = counter(
    "dgx_nvlink_link_wire_transmitted_bytes_total",
    "Bytes sent on the wire of one NVLink: payload plus protocol.",
    _DATA.format(140, "scope link"),
    LINK_LABELS,
    fastest=FASTEST_LINK,
)
LINK_WIRE_RECEIVED = counter(
    "dgx_nvlink_link_wire_received_bytes_total",
    "Bytes received on the wire of one NVLink: payload plus protocol.",
    _DATA.format(141, "scope link"),
    LINK_LABELS,
    fastest=FASTEST_LINK,
)
LINK_UP = gauge(
    "dgx_nvlink_link_up",
    "1 while the NVLink is active or in its low-power state, 0 while it is down.",
    "nvmlDeviceGetNvLinkState",
    LINK_LABELS,
    FLAG,
    step=0,
)
LINK_INFO = gauge(
    "dgx_nvlink_link_info",
    "1 for each NVLink, with what is at its far end: gpu, switch, npu or unknown, and the PCI "
    "address of a GPU there.",
    "nvmlDeviceGetNvLinkRemoteDeviceType, nvmlDeviceGetNvLinkRemotePciInfo",
    (*LINK_LABELS, "remote", "remote_pci_bus_id"),
    FLAG,
)
LINKS = gauge(
    "dgx_nvlink_links",
    "NVLinks of the GPU that are up.",
    "nvmlDeviceGetNvLinkState",
    GPU_LABELS,
    Range(0, MOST_LINKS),
    step=0,
)
LINKS_EXPECTED = gauge(
    "dgx_nvlink_links_expected",
    "NVLinks that the GPU has in this system by its spec sheet; on a system that is not "
    "recognised, the most that were up since the agent started.",
    "agent/specs, else nvmlDeviceGetNvLinkState",
    GPU_LABELS,
    Range(0, MOST_LINKS),
)
ERRORS = event_counter(
    "dgx_nvlink_errors_total",
    "NVLink errors that cost time: replays, recoveries, CRC errors; before Hopper also ECC errors "
    "of data. NVLink 5 (Blackwell) counts other kinds: packets that were malformed, received with "
    "errors or discarded, overrun buffers, recoveries, symbols that stayed wrong.",
    "nvmlDeviceGetFieldValues 161-163 or 206-214 and 221, else nvmlDeviceGetNvLinkErrorCounter",
    (*LINK_LABELS, "kind"),
)

DOWN = 0
KIB = 1024.0
TOTALS = {
    TRANSMITTED: FieldId.NVLINK_DATA_TRANSMITTED,
    RECEIVED: FieldId.NVLINK_DATA_RECEIVED,
    WIRE_TRANSMITTED: FieldId.NVLINK_RAW_TRANSMITTED,
    WIRE_RECEIVED: FieldId.NVLINK_RAW_RECEIVED,
}
PER_LINK = {
    LINK_TRANSMITTED: FieldId.NVLINK_DATA_TRANSMITTED,
    LINK_RECEIVED: FieldId.NVLINK_DATA_RECEIVED,
    LINK_WIRE_TRANSMITTED: FieldId.NVLINK_RAW_TRANSMITTED,
    LINK_WIRE_RECEIVED: FieldId.NVLINK_RAW_RECEIVED,
}
NVLINK5_BYTES = {
    FieldId.NVLINK_DATA_TRANSMITTED: FieldId.NVLINK5_TRANSMITTED,
    FieldId.NVLINK_DATA_RECEIVED: FieldId.NVLINK5_RECEIVED,
}
ERROR_KINDS = {"replay": 0, "recovery": 1, "crc_flit": 2, "crc_data": 3, "ecc_data": 4}
"""Label `kind` to `nvmlNvLinkErrorCounter_t`, on GPUs before Hopper."""

ERROR_FIELDS = {
    "replay": FieldId.NVLINK_REPLAYS,
    "recovery": FieldId.NVLINK_RECOVERIES,
    "crc": FieldId.NVLINK_CRC_ERRORS,
}
"""Label `kind` to field: Ampere and newer. A healthy Hopper link counts data errors that it mends
on the way (kinds 3 and 4 above), so those are no sign of trouble and are left out there."""

NVLINK5_ERRORS = {
    "malformed_packet": FieldId.NVLINK5_MALFORMED_PACKETS,
    "buffer_overrun": FieldId.NVLINK5_BUFFER_OVERRUNS,
    "receive": FieldId.NVLINK5_RECEIVE_ERRORS,
    "receive_remote": FieldId.NVLINK5_REMOTE_ERRORS,
    "receive_general": FieldId.NVLINK5_GENERAL_ERRORS,
    "link_integrity": FieldId.NVLINK5_INTEGRITY_ERRORS,
    "transmit_discard": FieldId.NVLINK5_DISCARDS,
    "recovery": FieldId.NVLINK5_RECOVERIES,
    "recovery_failed": FieldId.NVLINK5_FAILED_RECOVERIES,
    "symbol": FieldId.NVLINK5_SYMBOL_ERRORS,
}
"""The same on Blackwell, which has none of the others."""

REMOTES = {0: "gpu", 1: "npu", 2: "switch"}
"""`nvmlIntNvLinkDeviceType_t`."""

LINK_SPEED = {"pascal": 20e9, "blackwell": 50e9}
USUAL_LINK_SPEED = 25e9
"""Nominal bytes per second of one link and direction, by architecture."""


def link_speed(device: NvmlDevice) -> float:
    """Nominal bytes per second of one link of this GPU, each direction."""
    return LINK_SPEED.get(device.identity.architecture, USUAL_LINK_SPEED)


class LinkReads:
    """State and far end of each link of one GPU."""

    def __init__(self, device: NvmlDevice, links: tuple[int, ...], gpu_context: GpuContext) -> None:
        self._device = device
        self._links = links
        self._gpu_context = gpu_context
        self._most = 0
        self._down: set[int] = set()
        self._came_up = False  # a link that is down does not report its far end

    def read_states(self, out: ReadOutput) -> None:
        up, unknown = 0, []
        for link in self._links:
            try:
                state = link_state(self._device, link) != DOWN
            except Absent as absent:  # an odd link counts as down, and must not silence others
                if absent.reason in FINAL:
                    raise
                out.absent(LINK_UP, absent, str(link))
                unknown.append(absent)
                continue
            out.add(LINK_UP, state, str(link))
            up += state
            self._note(link, up=state)
        if len(unknown) == len(self._links):  # nothing is known of any: not even that it is down
            raise unknown[0]
        self._most = max(self._most, up)
        out.add(LINKS, up)
        specs = self._gpu_context.configuration.current[MachineSpecs]
        system = specs.system_of(self._gpu_context.identities)
        expected = system.nvlink_links if system else None
        out.add(LINKS_EXPECTED, self._most if expected is None else expected)

    def _note(self, link: int, *, up: bool) -> None:
        self._came_up = self._came_up or (up and link in self._down)
        (self._down.discard if up else self._down.add)(link)

    def far_ends_interval(self) -> float:
        """Far ends stay, but those of links that were down when they were asked."""
        return intervals.LINKS if self._came_up else intervals.TOPOLOGY

    def read_far_ends(self, out: ReadOutput) -> None:
        self._came_up = False
        for link in self._links:
            remote, address = far_end(self._device, link)
            out.add(LINK_INFO, 1, str(link), remote, address)


def _errors(device: NvmlDevice, link: int, kind: int) -> float:
    return device.number("NvLinkErrorCounter", link, kind)


def _by_call(links: tuple[int, ...]) -> Iterator[ValueRow[NvmlDevice]]:
    """A row for each link and kind: a link that is down refuses, and must not silence others."""
    for link in links:
        for kind, which in ERROR_KINDS.items():
            yield ValueRow[NvmlDevice](
                ERRORS, partial(_errors, link=link, kind=which), (str(link), kind)
            )


def _by_field(links: tuple[int, ...], kinds: Mapping[str, FieldId]) -> list[FieldRow]:
    return [
        FieldRow((field, link), ERRORS, (str(link), kind))
        for link in links
        for kind, field in kinds.items()
    ]


def _error_read(gpu_context: GpuContext, links: tuple[int, ...]) -> Read:
    """By field where any link answers so: the call costs 0.8 ms a counter on Hopper."""
    device, by_call = gpu_context.device, ValueRows(gpu_context.device, _by_call(links))

    def find() -> Callable[[ReadOutput], None]:
        for kinds in (ERROR_FIELDS, NVLINK5_ERRORS):
            rows = _by_field(links, kinds)
            answers = device.fields([row.question for row in rows])
            refusals = [answer for answer in answers if isinstance(answer, Absent)]
            if len(refusals) < len(answers):
                return FieldRows(device, rows).read
            for refusal in refusals:
                if refusal.reason not in PERMANENT:
                    raise refusal
        return by_call.read

    return gpu_context.found(
        "nvlink", "errors", (ERRORS,), find, intervals.LINKS, again=by_call.ask_again
    )


def far_end(device: NvmlDevice, link: int) -> tuple[str, str]:
    """What is at the other end of a link, and its PCI address if it is a GPU.

    A switch gives all ones, and so does a link that is down. Drivers before 470 do not know the
    kind: a valid address is then taken for a GPU: they support no NVSwitch system known here.
    """
    try:
        remote = REMOTES.get(device.get("NvLinkRemoteDeviceType", link), "unknown")
    except Absent:
        remote = ""
    try:
        info = device.get("NvLinkRemotePciInfo", link)
        address = text_of(info, "busId")
        valid = info.domain not in ALL_ONES and info.bus not in ALL_ONES
    except Absent:
        return remote or "unknown", ""
    if not valid:
        return remote or "unknown", ""
    return remote or "gpu", address if remote in ("", "gpu") else ""


class TotalsInterval:
    """When to read the totals: each second where nothing else shows a burst, or while GPM shows
    the links half full; seldom while they are quiet or the driver refuses."""

    def __init__(self, gpm: Gpm | None, totals: FieldRows, half: float) -> None:
        self._gpm = gpm
        self._totals = totals
        self._half = half  # bytes per second of half the links' speed

    def interval(self) -> float:
        if not self._totals.answered:
            return intervals.LINKS
        if self._gpm is None:
            return intervals.NVLINK_TOTALS_BUSY
        return intervals.NVLINK_TOTALS_BUSY if self._busy() else intervals.NVLINK_TOTALS_QUIET

    def _busy(self) -> bool:
        latest = self._gpm.latest if self._gpm else None
        if latest is None:
            return False
        ids = (GpmId.NVLINK_TRANSMITTED, GpmId.NVLINK_RECEIVED)
        fast = (latest.values.get(which, 0.0) * NVLINK_UNIT for which in ids)
        return any(self._half <= rate <= FASTEST_NVLINK for rate in fast)


class ByteFields:
    """Fields of payload and wire, and their unit; NVLink 5's own where only those answer."""

    def __init__(self, device: NvmlDevice, state: GpuState) -> None:
        asked = [(FieldId.NVLINK_DATA_TRANSMITTED, ALL_LINKS)]
        old, new = device.fields([*asked, (FieldId.NVLINK5_TRANSMITTED, ALL_LINKS)])
        self._newer = isinstance(old, Absent) and not isinstance(new, Absent)
        if len(refused := [a.reason for a in (old, new) if isinstance(a, Absent)]) == 2:
            state.doubtful |= not PERMANENT.issuperset(refused)

    def row(self, metric: Metric, field: FieldId, link: int, labels: tuple[str, ...]) -> FieldRow:
        if self._newer and field in NVLINK5_BYTES:
            return FieldRow((NVLINK5_BYTES[field], link), metric, labels)
        return FieldRow((field, link), metric, labels, KIB)


def _totals(device: NvmlDevice, fields: ByteFields) -> FieldRows:
    rows = [fields.row(metric, field, ALL_LINKS, ()) for metric, field in TOTALS.items()]
    return FieldRows(device, rows)


def _per_link(device: NvmlDevice, fields: ByteFields, links: tuple[int, ...]) -> FieldRows:
    rows = [
        fields.row(metric, field, link, (str(link),))
        for link in links
        for metric, field in PER_LINK.items()
    ]
    return FieldRows(device, rows)


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    """The reads of one GPU."""
    device = gpu_context.device
    links, refused = tuple[int, ...](), NO_NVLINK
    try:
        links = links_of(device, gpu_context.state)
    except Absent as absent:
        if absent.reason in FINAL:
            raise
        refused = absent.without_traceback()
        gpu_context.state.doubt()
    state = (LINK_UP, LINKS, LINKS_EXPECTED)
    everything = (*TOTALS, *PER_LINK, *state, LINK_INFO, ERRORS)
    if not links:
        yield gpu_context.read(
            "nvlink", "none", everything, refused_read(refused), intervals.TOPOLOGY
        )
        return
    own, speed = LinkReads(device, links, gpu_context), len(links) * link_speed(device)
    fields = ByteFields(device, gpu_context.state)
    totals, per_link = _totals(device, fields), _per_link(device, fields, links)
    interval = TotalsInterval(gpu_context.gpm, totals, speed / 2).interval
    yield gpu_context.read(
        "nvlink", "totals", TOTALS, totals.read, interval, run_on_wake=True, together=True
    )

    def read_links(out: ReadOutput) -> None:
        if not gpu_context.configuration.current[NvlinkConfig].per_link:
            raise Absent(Reason.NOT_CONFIGURED, "nvlink.per_link is false")
        per_link.read(out)

    yield gpu_context.read("nvlink", "links", PER_LINK, read_links, intervals.LINKS)
    yield gpu_context.read("nvlink", "states", state, own.read_states, intervals.LINKS)
    yield _error_read(gpu_context, links)
    yield gpu_context.read(
        "nvlink", "far_ends", (LINK_INFO,), own.read_far_ends, own.far_ends_interval
    )
