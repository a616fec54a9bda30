"""Alerts for links that are down, broken, or slower than they should be."""

from agent.limits import paths
from agent.sources import activity, nvlink, pcie, system
from alerts import places
from alerts.model import Alert
from alerts.parameters import RuleParameters
from alerts.promql import GPU, NODE, increase, pick
from alerts.words import COUNT, WHOLE, list_of, look_up
from alerts.words import GPU as ONE_GPU

COSTLY = "!~crc_data|ecc_data"
"""Kinds of NVLink errors that are trouble; data errors that a link mends on the way are not."""

ONE = ("instance", "job", "uuid")


def nvlink_down(_: RuleParameters) -> Alert:
    """While a GPU is missing, links to it are down too: then the GPU is what is told. Where no link
    tells its state, because the driver answers no more, the agent is blind."""
    down = list_of(nvlink.LINK_UP, "link", "== 0", *ONE)
    most = look_up(nvlink.LINKS_EXPECTED, WHOLE, *ONE)
    return Alert(
        "DgxNvlinkDown",
        f"{nvlink.LINKS} < {nvlink.LINKS_EXPECTED} and on ({NODE}, uuid) {nvlink.LINK_UP} "
        f"unless on ({NODE}) "
        f"({system.GPUS} < {system.GPUS_EXPECTED})",
        "critical",
        "NVLinks down",
        f"{ONE_GPU} has {COUNT} of {most} NVLinks up (down:{down}). Drain the node and reset the "
        "GPU; if the links stay down, look at the NVSwitches and the Fabric Manager, and open a "
        "support case.",
        hold="3m",
        place=places.GPU,
    )


def nvlink_errors(parameters: RuleParameters) -> Alert:
    """A link that replays and recovers over and over dies in the end."""
    limits = parameters.thresholds
    grown = increase(nvlink.ERRORS, parameters.over(limits.nvlink_errors_window), kind=COSTLY)
    return Alert(
        "DgxNvlinkErrors",
        f"sum without (kind) ({grown}) >= {limits.nvlink_errors}",
        "warning",
        "NVLink errors",
        f"NVLink {{{{ $labels.link }}}} of {ONE_GPU} had {COUNT} errors in the last "
        f"{limits.nvlink_errors_window} (limit {limits.nvlink_errors}). Each costs time; a link "
        "that goes on like this fails in the end. Look at nvidia-smi nvlink -e, plan a reset of "
        "the GPU, and open a support case if the errors come back.",
        hold="5m",
        place=places.NVLINK,
    )


def pcie_degraded(parameters: RuleParameters) -> tuple[Alert, Alert]:
    """Fewer lanes than the slot has; or a lower generation all the while under load: the GPU works,
    or its data fill what the slower link can carry (each generation carries twice the one before).
    """
    name, summary = "DgxPcieDegraded", "PCIe link slower than its slot"
    cure = "Reseat the GPU or its riser; look at lspci -vv (LnkSta), and open a support case."
    over = parameters.over("15m")
    fastest = f"max_over_time({pcie.GENERATION}[{over}])"
    least = parameters.thresholds.loaded_share
    loaded = f"avg_over_time({activity.ACTIVITY}[{over}]) >= {least:g}"
    moved = f"avg_over_time({pick(paths.RATIO, path='pcie')}[{over}])"
    slower = f"2 ^ ({pcie.GENERATION_LIMIT} - {pcie.GENERATION})"
    full = f"{moved} * on ({GPU}) group_left () ({slower}) >= {least:g}"
    lanes, most = (
        look_up(pcie.WIDTH_LIMIT, WHOLE, *ONE),
        look_up(pcie.GENERATION_LIMIT, WHOLE, *ONE),
    )
    return (
        Alert(
            name,
            f"{pcie.WIDTH} < {pcie.WIDTH_LIMIT}",
            "warning",
            summary,
            f"{ONE_GPU} uses {COUNT} of {lanes} PCIe lanes. {cure}",
            hold="5m",
            labels={"sign": "width"},
            place=places.GPU,
        ),
        Alert(
            name,
            f"{fastest} < {pcie.GENERATION_LIMIT} and on ({GPU}) ({loaded} or on ({GPU}) {full})",
            "warning",
            summary,
            f"{ONE_GPU} runs PCIe at generation {COUNT} of {most}, under load. {cure}",
            hold="5m",
            labels={"sign": "generation"},
            place=places.GPU,
        ),
    )


def link_degraded(_: RuleParameters) -> Alert:
    """A port that carries less than its sheet says; a limit that its owner set is no fault."""
    labels = {"path": "=~network|infiniband", "direction": "receive"}
    keys = f"{NODE}, path, device, direction"
    speed, sheet = pick(paths.LIMIT, **labels), pick(paths.SPEC, **labels)
    negotiated = pick(paths.LIMIT_INFO, **labels, origin="hardware")
    most = look_up(paths.SPEC, "humanize", *("instance", "job", "path", "device", "direction"))
    return Alert(
        "DgxLinkDegraded",
        f"{speed} < {sheet} and on ({keys}) {negotiated}",
        "warning",
        "port below its rate",
        "{{ $labels.path }} port {{ $labels.device }} of {{ $labels.instance }} carries "
        f"{{{{ $value | humanize }}}}B/s of {most}B/s. Look at its cable or transceiver, at the "
        "switch's port, and at ethtool or ibstat for the rate.",
        hold="5m",
        place=places.PATH,
    )
