"""Faults of NVLinks and of the NVSwitch fabric."""

from collections.abc import Iterator, Sequence

from agent.faults import places
from agent.faults.model import (
    CRITICAL,
    SAME_GPU,
    SAME_NODE,
    Fault,
    HiddenBy,
    Listed,
    Look,
    Seen,
    gpu_fault,
    node_fault,
)
from agent.faults.promql import grown, increase, of, seconds, spoken
from agent.faults.records import EventRecords
from agent.faults.thresholds import RuleParameters
from agent.faults.windows import Ask
from agent.faults.xids import OF_LINKS
from agent.limits.topology import StrayLinks, wiring
from agent.model import Figure
from agent.sources import fabric, gpu, host, kernel_log, nvlink, system

FABRIC, LINKS_DOWN, MISSING = "DgxFabricFault", "DgxNvlinkDown", "DgxGpuMissing"
LOG = "See `systemctl status nvidia-fabricmanager` and /var/log/fabricmanager.log."

REGISTERED = 3
"""State of a GPU that has joined the fabric."""

COSTLY = "!~crc_data|ecc_data"
"""Kinds of NVLink errors that need attention; data errors that a link corrects itself do not."""

TOPOLOGY = "Compare `nvidia-smi topo -m` with the system's; open a support case."

BY_MISSING = HiddenBy(MISSING, SAME_NODE)
BY_SWITCH = HiddenBy(FABRIC, SAME_NODE, ('sign="switch"',))
BY_MANAGER = HiddenBy(FABRIC, SAME_NODE, ('sign="manager"',))
BY_XID = HiddenBy("DgxGpuXid", SAME_GPU, ('severity="critical"', OF_LINKS))
"""Links that are down have made errors before, and XIDs: a critical XID names the action."""

BY_WORSE = (BY_MISSING, BY_XID, BY_SWITCH, BY_MANAGER, HiddenBy(LINKS_DOWN, SAME_GPU))
"""Inhibitions of links that err."""


def fabric_faults(parameters: RuleParameters) -> tuple[Fault, ...]:
    return (
        *joining(),
        HEALTH_FAULT,
        switch(parameters),
        links_down(),
        link_errors(parameters),
        *wrong_wiring(),
    )


def joining() -> tuple[Fault, ...]:
    """The Fabric Manager, and GPUs that have not joined."""
    return (
        node_fault(
            alert=FABRIC,
            kind="fabric_service",
            severity=CRITICAL,
            when=of(host.FABRIC_MANAGER).equals(0),
            hold="2m",
            labels={"sign": "manager"},
            summary="Fabric Manager is not running",
            sentence=("the Fabric Manager is not running, and the NVSwitches need it",),
            do="No program that uses several GPUs starts. Start it: `systemctl start "
            f"nvidia-fabricmanager`, of the driver's own version. {LOG}",
            hidden_by=(BY_MISSING, BY_SWITCH),
        ),
        gpu_fault(
            alert=FABRIC,
            kind="fabric_state",
            severity=CRITICAL,
            when=of(fabric.FABRIC_STATE) < REGISTERED,
            hold="5m",
            labels={"sign": "state"},
            summary="has not joined the fabric",
            sentence=("it has not joined the NVSwitch fabric: its registration {word}",),
            figure="state",
            words={1: "has not started", 2: "does not end"},
            do="No CUDA program starts on it. Drain the node and run `systemctl restart "
            f"nvidia-fabricmanager`; if it lasts, reset the GPU or reboot. {LOG}",
            hidden_by=(BY_MISSING, BY_SWITCH, BY_MANAGER),
        ),
    )


HEALTH_FAULT = gpu_fault(
    alert=FABRIC,
    kind="fabric_health",
    when=of(fabric.HEALTH).equals(1),
    hold="5m",
    labels={"sign": "health"},
    summary="NVSwitch fabric reports a fault",
    sentence=("the NVSwitch fabric reports a fault of it: {device}",),
    terms={"device": lambda found: found.device.replace("_", " ")},
    device="kind",
    do="Its NVLinks may be slow or cut: `nvidia-smi -q -i GPU` has more under Fabric. If jobs fail "
    f"on it: drain the node, restart the Fabric Manager, and reset the GPU. {LOG}",
    hidden_by=(BY_MISSING, BY_SWITCH, BY_MANAGER, HiddenBy(LINKS_DOWN, SAME_GPU)),
)
"""Kinds of faults of a GPU that the fabric itself reports."""


def switch_records(parameters: RuleParameters) -> EventRecords:
    """Fatal errors of NVSwitches within the window."""
    return EventRecords.of(parameters, kernel_log.SWITCH_ERRORS, severity="fatal")


def switch(parameters: RuleParameters) -> Fault:
    """A fatal error that an NVSwitch reports."""
    window = parameters.thresholds.event_window
    return Fault(
        alert=FABRIC,
        kind="switch_error",
        severity=CRITICAL,
        place=places.SWITCH,
        when=f"{switch_records(parameters).events} > 0",
        look=lambda machine: _fatal(machine, seconds(window)),
        labels={"sign": "switch"},
        summary="fatal NVSwitch error",
        sentence=("{device} had a fatal error, SXid {0}", ", seen {times:once|times}"),
        device="switch",
        names=("sxid",),
        figure="times",
        do="Jobs that use it have failed. Drain the node and reset all GPUs and switches "
        "(`nvidia-smi --gpu-reset`), or reboot; if it comes back, open a support case.",
    )


def _fatal(machine: Look, window: float) -> Iterator[Seen]:
    samples = machine.samples
    for labels, times in sorted(samples.all(kernel_log.SWITCH_ERRORS).items()):
        name, severity, code = labels
        at = samples.value(kernel_log.SWITCH_ERROR_AT, *labels)
        if severity == "fatal" and (at is None or samples.now - at <= window):
            yield Seen(None, name, (Figure("times", times, None, "count"),), (code,))


def links_down() -> Fault:
    """While a GPU is missing, links to it are down too, and only the GPU is reported. If no link
    reports its state, the driver does not respond: then the agent is blind."""
    few = of(nvlink.LINKS_EXPECTED).minus(of(nvlink.LINKS)) > 0
    return gpu_fault(
        alert=LINKS_DOWN,
        kind="links_down",
        severity=CRITICAL,
        when=few.having(of(nvlink.LINK_UP), "uuid").unless(
            of(system.GPUS) < of(system.GPUS_EXPECTED)
        ),
        hold="3m",
        summary="NVLinks are down",
        sentence=("{down:NVLink is|NVLinks are} down", " ({n:~link|links} {names})"),
        figure="down",
        listed=Listed(nvlink.LINK_UP, "link", 0),
        do="Drain the node, run `nvidia-bug-report.sh`, and reset all its GPUs at once "
        "(`nvidia-smi --gpu-reset`, without -i); with NVSwitches restart the Fabric Manager after "
        "it. If links stay down, open a support case.",
        hidden_by=(BY_MISSING, BY_XID, BY_SWITCH, BY_MANAGER),
    )


def link_errors(parameters: RuleParameters) -> Fault:
    """A link that replays and recovers again and again fails in the end."""
    limits = parameters.thresholds
    window, most = limits.nvlink_errors_window, limits.nvlink_errors
    text = increase(nvlink.ERRORS, parameters.over(window), kind=COSTLY)
    return gpu_fault(
        alert="DgxNvlinkErrors",
        kind="link_errors",
        when=grown(nvlink.ERRORS, window, text, kind=COSTLY).sum_without("kind") >= most,
        hold="5m",
        summary="NVLink {{ $labels.link }} errs",
        sentence=(
            f"NVLink {{device}} had {{errors:error|errors}} in the last {spoken(window)} "
            f"(limit {most})",
        ),
        figure="errors",
        device="link",
        do="Jobs go on, slower; a link that goes on like this fails in the end. Look at "
        "`nvidia-smi nvlink -e -i GPU`, and reset the GPU when it is free.",
        hidden_by=BY_WORSE,
    )


WIRED = frozenset(map(Ask, (gpu.INFO, nvlink.LINKS, nvlink.LINK_INFO, nvlink.LINK_UP)))


def wrong_wiring() -> tuple[Fault, Fault]:
    """Links that do not run as the system's sheet says."""
    return (
        Fault(
            kind="stray_links",
            look=_stray,
            reads=WIRED,
            sentence=("NVLink graph: {links:link|links} to a {0}, expected a {1} ({further})",),
            do=TOPOLOGY,
        ),
        Fault(
            kind="wrong_pairs",
            look=_pairs,
            reads=WIRED,
            sentence=("NVLink graph: {pairs}",),
            terms={"pairs": lambda found: _pairs_text(found.figures)},
            do=TOPOLOGY,
        ),
    )


def _stray(machine: Look) -> Iterator[Seen]:
    for wrong in wiring(machine.samples, machine.spec):
        if isinstance(wrong, StrayLinks):
            figures = (Figure("links", len(wrong.links), None, "count"),)
            yield Seen(wrong.gpu, "", figures, (wrong.remote, wrong.expected, *wrong.links))


def _pairs(machine: Look) -> Iterator[Seen]:
    pairs = tuple(
        Figure(f"gpu{wrong.one}-gpu{wrong.other}", wrong.found, wrong.expected, "count")
        for wrong in wiring(machine.samples, machine.spec)
        if not isinstance(wrong, StrayLinks)
    )
    if pairs:
        yield Seen(figures=pairs)


MOST_PAIRS = 4
"""Pairs of GPUs that a sentence names; a machine with wrong wiring throughout has more."""


def _pairs_text(figures: Sequence[Figure]) -> str:
    texts = [
        f"{name} has {f'{found:.0f}' if found else 'no'} {'link' if found == 1 else 'links'}, "
        f"expected {expected:.0f}"
        for name, found, expected, _ in figures[:MOST_PAIRS]
    ]
    more = len(figures) - MOST_PAIRS
    return "; ".join([*texts, *([f"{more} more pairs differ"] if more > 0 else [])])
