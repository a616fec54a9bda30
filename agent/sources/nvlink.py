"""NVLinks: payload and wire bytes per GPU and per link, errors, states, and remote devices."""

from collections.abc import Iterator, Mapping
from functools import partial

from agent.hardware.device import ALL_LINKS, NvmlDevice, text_of
from agent.hardware.gpm import NVLINK_UNIT, NVLINK_WAYS
from agent.hardware.nvml import ALL_ONES
from agent.metrics import declared_beside
from agent.model import FINAL, PERMANENT, Absent, Labels, Metric, Reason
from agent.polling import intervals
from agent.polling.reads import GpuRow, GpuRows, Read, ReadOutput
from agent.ranges import FASTEST_NVLINK
from agent.sources.context import GpuContext
from agent.specs.sheets import MachineSpecs

_METRICS = declared_beside(__file__)
TRANSMITTED = _METRICS["dgx_nvlink_transmitted_bytes_total"]
RECEIVED = _METRICS["dgx_nvlink_received_bytes_total"]
WIRE_TRANSMITTED = _METRICS["dgx_nvlink_wire_transmitted_bytes_total"]
WIRE_RECEIVED = _METRICS["dgx_nvlink_wire_received_bytes_total"]
LINK_UP = _METRICS["dgx_nvlink_link_up"]
LINK_INFO = _METRICS["dgx_nvlink_link_info"]
LINKS = _METRICS["dgx_nvlink_links"]
LINKS_EXPECTED = _METRICS["dgx_nvlink_links_expected"]
ERRORS = _METRICS["dgx_nvlink_errors_total"]

_FIELDS = (138, 139, 140, 141)
"""Field IDs for KiB of payload transmitted and received, and KiB with protocol overhead."""

TOTALS = dict(zip((TRANSMITTED, RECEIVED, WIRE_TRANSMITTED, WIRE_RECEIVED), _FIELDS, strict=True))
PER_LINK = {
    _METRICS[str(of).replace("nvlink", "nvlink_link")]: number for of, number in TOTALS.items()
}
NVLINK5_BYTES = {138: 202, 139: 204}  # bytes instead of KiB
KINDS = _METRICS.kinds[ERRORS.name]

REMOTES = {0: "gpu", 1: "npu", 2: "switch"}  # `nvmlIntNvLinkDeviceType_t`
LINK_SPEED = {"pascal": 20e9, "blackwell": 50e9}
USUAL_LINK_SPEED = 25e9  # Nominal bytes per second per link and direction on others


class LinkReads:
    """Builds the reads of a GPU's links: their bytes, states, errors, and remote devices."""

    def __init__(self, gpu_context: GpuContext) -> None:
        self._gpu = gpu_context
        self._device = gpu_context.device
        self.totals = GpuRows(self._device, self._total_rows)
        self._half = 0.0  # half the capacity of the links, in bytes per second per direction
        self._newer: bool | None = None  # whether only NVLink 5 byte fields are supported
        self._most = 0
        self._down: set[int] = set()
        self._came_up = True  # links that are down do not report the remote device

    def _total_rows(self) -> Iterator[GpuRow]:
        links = self._device.links()  # raises Absent if there are no links
        speed = LINK_SPEED.get(self._device.identity.architecture, USUAL_LINK_SPEED)
        self._half = len(links) * speed / 2
        return self._bytes(TOTALS, {ALL_LINKS: ()})

    def totals_interval(self) -> float:
        """Return the interval (s) at which to read byte totals. It is short if the GPU has no GPM
        or while the links are at least half full. Otherwise it is longer."""
        if not self.totals.answered:
            return intervals.LINKS
        if self._gpu.gpm is None:
            return intervals.NVLINK_TOTALS_BUSY
        now = self._gpu.gpm.latest.values if self._gpu.gpm.latest else {}
        rates = [now.get(way, 0.0) * NVLINK_UNIT for way in NVLINK_WAYS]
        busy = any(self._half <= rate <= FASTEST_NVLINK for rate in rates)
        return intervals.NVLINK_TOTALS_BUSY if busy else intervals.NVLINK_TOTALS_QUIET

    def per_link(self, out: ReadOutput) -> None:
        links = self._device.links()
        scopes = {link: (str(link),) for link in links if link not in self._down}
        GpuRows(self._device, partial(self._bytes, PER_LINK, scopes)).read(out)
        for link in self._down.intersection(links):
            for metric in PER_LINK:
                out.absent(metric, Absent(Reason.UNKNOWN, "the link is down"), str(link))

    def _bytes(
        self, fields: Mapping[Metric, int], scopes: Mapping[int, Labels]
    ) -> Iterator[GpuRow]:
        """Yield the GPU rows for payload and wire bytes, with IDs of NVLink 5 if no others work."""
        if self._newer is None:
            asked = _FIELDS[0], NVLINK5_BYTES[138]
            answers = self._device.fields([(field, ALL_LINKS) for field in asked])
            old, new = (isinstance(answer, Absent) for answer in answers)
            self._newer = None if old and new else old
        for scope, labels in scopes.items():
            for metric, field in fields.items():
                if self._newer and field in NVLINK5_BYTES:
                    yield GpuRow(metric, (NVLINK5_BYTES[field], scope), labels)
                else:
                    yield GpuRow(metric, (field, scope), labels, times=1024.0)  # bytes per KiB

    def states(self, out: ReadOutput) -> None:
        up, unknown, links = 0, [], self._device.links()
        for link in links:
            try:
                # active or sleeping; in state 3, a link is active, but its traffic is disabled
                state = self._device.link_state(link) in (1, 2)
            except Absent as absent:  # a link with a failed read counts as down
                if absent.reason in FINAL:
                    raise
                out.absent(LINK_UP, absent, str(link))
                unknown.append(absent)
                continue
            out.add(LINK_UP, state, str(link))
            up += state
            self._came_up |= state and link in self._down
            (self._down.discard if state else self._down.add)(link)
        if len(unknown) == len(links):  # if no state is known, links are not reported as down
            raise unknown[0]
        self._most = max(self._most, up)
        out.add(LINKS, up)
        specs = self._gpu.configuration.current[MachineSpecs]
        system = specs.system_of(self._gpu.identities())
        expected = system.nvlink_links if system else None
        out.add(LINKS_EXPECTED, self._most if expected is None else expected)

    def far_ends_interval(self) -> float:
        """Return the interval (s) of the read `far_ends`, shorter if a link has just come up."""
        return intervals.LINKS if self._came_up else intervals.TOPOLOGY

    def far_ends(self, out: ReadOutput) -> None:
        links = self._device.links()
        self._came_up = False
        for link in links:
            out.add(LINK_INFO, 1, str(link), *far_end(self._device, link))

    def error_rows(self) -> list[GpuRow]:
        """Return a GPU row for each link and kind of error. If any link supports field IDs, use
        field IDs for all, because the getter takes 0.8 ms per counter on Hopper. A link that is
        down refuses every query, so try all links."""
        links = self._device.links()
        for fields in (KINDS["field"], KINDS["nvlink5"]):
            rows = [GpuRow(ERRORS, (f, n), (str(n), k)) for n in links for k, f in fields.items()]
            answers = self._device.fields([(f, n) for n in links for f in fields.values()])
            refusals = [answer for answer in answers if isinstance(answer, Absent)]
            if len(refusals) < len(answers):
                return rows
            for refusal in refusals:
                if refusal.reason not in PERMANENT:
                    raise refusal
        return [
            GpuRow(ERRORS, ("NvLinkErrorCounter", n, which), (str(n), kind))
            for n in links
            for kind, which in KINDS["counter"].items()
        ]


def far_end(device: NvmlDevice, link: int) -> tuple[str, str]:
    """Return the kind of device at the remote end of a link, and its PCI address if it is a GPU.

    NVML sets all bits of the address if the device is a switch or the link is down. Drivers before
    470 do not report the kind, and no known system with NVSwitches supports them. With these
    drivers, every device with a valid address is a GPU.
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
        valid = False
    if not valid:
        return remote or "unknown", ""
    return remote or "gpu", address if remote in ("", "gpu") else ""


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    """Yield the NVLink reads of a GPU. The byte totals of all GPUs are read in the same tick."""
    links, minute = LinkReads(gpu_context), intervals.LINKS
    read, every = partial(gpu_context.read, "nvlink"), links.totals_interval
    yield read("totals", TOTALS, links.totals.read, every, run_on_wake=True, together=True)
    yield read("links", PER_LINK, links.per_link, minute)
    yield read("states", (LINK_UP, LINKS, LINKS_EXPECTED), links.states, minute)
    errors = GpuRows(gpu_context.device, links.error_rows)
    yield read("errors", (ERRORS,), errors.read, minute)
    yield read("far_ends", (LINK_INFO,), links.far_ends, links.far_ends_interval)
