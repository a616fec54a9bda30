"""Alerts for those who look after the hardware: GPUs and their memory."""

from agent.model import Metric, Reason
from agent.sources import ecc, system, temperature, xid
from agent.sources.agent_health import ABSENT_VALUES
from alerts import places
from alerts.health import (
    ecc_growth,
    ecc_rising,
    fabric_fault,
    not_answering,
    nvlink_fault,
    pages_pending,
    pcie_replays,
    recovery_needed,
    switch_fault,
)
from alerts.host import (
    chassis_fault,
    disk_failing,
    infiniband_errors,
    infiniband_flapping,
    raid_degraded,
)
from alerts.links import link_degraded, nvlink_down, nvlink_errors, pcie_degraded
from alerts.model import Alert, Group
from alerts.parameters import RuleParameters
from alerts.promql import LOST, NODE, REMEMBERED, events, pick
from alerts.words import COUNT, WHOLE, look_up, sum_of
from alerts.words import GPU as ONE_GPU
from alerts.words import NODE as MACHINE
from alerts.xids import HAD, xid_error

LOST_DATA, TOLD = "=~48|95|140", "40m"
"""XIDs that tell of lost data, and for how long they do: longer than the counters' own window."""

REPLACE = (
    "Drain the node, read its XID errors (dmesg -T | grep -i xid) and reboot it after its jobs "
    "have ended or saved a checkpoint: a lost GPU cannot be reset. If it does not come back, open "
    "a support case."
)
ONE = ("instance", "job", "uuid")


def gpu_missing(parameters: RuleParameters) -> tuple[Alert, ...]:
    """Named, where the agent saw it go; counted, where it never saw it; all, without a driver."""
    name = "DgxGpuMissing"
    no_driver = pick(ABSENT_VALUES, metric=str(system.GPUS), reason=Reason.NO_DRIVER)
    counts = [look_up(m, WHOLE, "instance", "job") for m in (system.GPUS, system.GPUS_EXPECTED)]
    answer = f"{counts[0]} of {counts[1]} GPUs answer."
    few = f"({counts[0]} of {counts[1]} answer)"
    return (
        Alert(
            name,
            LOST,
            "critical",
            f"missing {few}",
            f"{ONE_GPU} is gone: {answer} {REPLACE}",
            hold="1m",
            labels={"sign": "lost"},
            place=places.GPU,
        ),
        Alert(
            name,
            f"{system.GPUS_EXPECTED} - {system.GPUS} > 0 unless on ({NODE}) {LOST}",
            "critical",
            f"GPUs missing {few}",
            f"{COUNT} GPUs of {MACHINE} are missing: {answer} {REPLACE}",
            hold="1m",
            labels={"sign": "fewer"},
            place=places.NODE,
        ),
        Alert(
            name,
            f"last_over_time({system.GPUS_EXPECTED}[{parameters.over(REMEMBERED)}]) > 0 "
            f"and on ({NODE}) {no_driver}",
            "critical",
            "no GPU answers",
            f"0 of {COUNT} GPUs of {MACHINE} answer: there is no driver any more. Look at "
            "nvidia-smi and at the kernel's log (dmesg); load the driver or reboot.",
            hold="5m",
            labels={"sign": "no_driver"},
            place=places.NODE,
        ),
    )


def ecc_uncorrected(parameters: RuleParameters) -> Alert:
    """Data was lost, and no XID error of late has told so."""
    window = parameters.thresholds.event_window
    grown = ecc_growth(parameters.over(window), "uncorrected")
    seen_before = events(
        xid.ERRORS, parameters.over(TOLD), parameters.over(REMEMBERED), HAD, xid=LOST_DATA
    )
    return Alert(
        "DgxGpuEccUncorrected",
        f"{grown} > 0 unless on ({NODE}, uuid) ({seen_before})",
        "critical",
        "uncorrected memory errors, data lost",
        f"{ONE_GPU} had {COUNT} uncorrected ECC errors in the last {window} (limit 0). Results of "
        "the job are in doubt: stop it, reset the GPU; if errors come back, open a support case.",
        place=places.GPU,
    )


def row_remap_failure(_: RuleParameters) -> Alert:
    """The spare rows are used up."""
    return Alert(
        "DgxGpuRowRemapFailure",
        f"{ecc.REMAP_FAILURE} > 0",
        "critical",
        "a broken memory row cannot be replaced",
        f"{ONE_GPU} reports {COUNT} failure to replace a broken row by a spare one (limit 0). "
        "Drain the node and open a support case: the GPU qualifies for replacement.",
        place=places.GPU,
    )


def gpu_hot(parameters: RuleParameters) -> tuple[Alert, Alert]:
    """Core or memory at the limit that the GPU itself states."""
    margin = parameters.thresholds.hot_margin
    memory, most = temperature.MEMORY_TEMPERATURE, pick(temperature.LIMIT, limit="memory")
    limits = {
        "core": sum_of(temperature.TEMPERATURE, temperature.MARGIN, WHOLE, *ONE),
        "memory": look_up(temperature.LIMIT, WHOLE, *ONE, limit="memory"),
    }

    def alert(sensor: str, left: str, degrees: Metric) -> Alert:
        return Alert(
            "DgxGpuHot",
            f"{left} <= {margin:g}",
            "critical",
            "at its temperature limit",
            f"The {sensor} of {ONE_GPU} is at {look_up(degrees, WHOLE, *ONE)} °C, its limit is "
            f"{limits[sensor]} °C. Look after the cooling: fans, inlet temperature, dust; compare "
            "with its neighbours.",
            hold="2m",
            labels={"sensor": sensor},
            place=places.GPU,
        )

    return (
        alert("core", str(temperature.MARGIN), temperature.TEMPERATURE),
        alert("memory", f"{most} - ignoring (limit) {memory}", memory),
    )


def hardware(parameters: RuleParameters) -> Group:
    """What somebody must repair, reset or cool."""
    return Group(
        "dgx-hardware",
        (
            *gpu_missing(parameters),
            *xid_error(parameters),
            *nvlink_fault(parameters),
            ecc_uncorrected(parameters),
            row_remap_failure(parameters),
            *not_answering(parameters),
            recovery_needed(parameters),
            pages_pending(parameters),
            *ecc_rising(parameters),
            *gpu_hot(parameters),
            *fabric_fault(parameters),
            switch_fault(parameters),
            nvlink_down(parameters),
            nvlink_errors(parameters),
            *pcie_degraded(parameters),
            pcie_replays(parameters),
            link_degraded(parameters),
            *infiniband_errors(parameters),
            infiniband_flapping(parameters),
            raid_degraded(parameters),
            disk_failing(parameters),
            chassis_fault(parameters),
        ),
    )
