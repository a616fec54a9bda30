"""Faults of the monitoring itself: missing data is a fault too."""

import os
from collections import Counter
from collections.abc import Iterator
from functools import partial

from agent.faults import places
from agent.faults.gpus import DRIVER_HANGS, NVML, of_silent
from agent.faults.model import (
    CRITICAL,
    INFO,
    SAME_NODE,
    Fault,
    HiddenBy,
    Look,
    Seen,
    node_fault,
)
from agent.faults.promql import (
    NODE,
    Condition,
    Recording,
    grown,
    increase,
    of,
    pick,
    seconds,
    span,
    spoken,
)
from agent.faults.settings import SETTINGS_FAULTS
from agent.faults.silence import agent_down, restarting
from agent.faults.thresholds import RuleParameters
from agent.limits import paths
from agent.model import Figure, Reason
from agent.sources import chassis, disk, kernel_log, system
from agent.sources.agent_health import (
    ABSENT_VALUES,
    CLOCK_STEPS,
    LAST_TICK,
    SHORT_OF_PROCESSORS,
    SOURCE_UP,
)

BLIND = "DgxAgentBlind"
LOG = "Run `dgx-telemetry check` there (Absent values); see `journalctl -u dgx-telemetry`."
BY_XID = (HiddenBy("DgxGpuXid", SAME_NODE, ('xid=~"119|120"',)),)
"""Inhibition of a hung driver by an XID that says why it hangs."""

blind = partial(Fault, alert=BLIND, place=places.NODE, hidden_by=BY_XID)

TO_ROOT = "denied to root"
ABSENT: dict[str, str] = {
    Reason.UNSUPPORTED: "not supported by this hardware",
    Reason.DRIVER: "requires a newer driver",
    Reason.DENIED: "requires root",
    TO_ROOT: "permission denied, even as root",
    Reason.MIG: "not available in MIG mode",
    Reason.LOST: "the GPU is lost",
    Reason.STALLED: "the read timed out",
    Reason.NOT_ANSWERING: "the GPU does not respond",
    Reason.FAILED: "the read failed",
    Reason.MISSING: "not present",
    Reason.NO_DRIVER: "no NVIDIA driver",
    Reason.CRASHED: "NVML crashed",
    Reason.RELEASED: "the driver is released",
    Reason.UNKNOWN: "no usable value returned",
    Reason.IMPLAUSIBLE: "impossible value returned",
    Reason.NOT_ENOUGH: "not enough data yet",
    Reason.TOO_SHORT: "steps too short for the sampling interval",
    Reason.IRREGULAR: "no regular rhythm",
    Reason.FLAT: "power hardly varies",
    Reason.LEFT_OUT: "too many devices",
    Reason.NOT_CONFIGURED: "off or not set in the configuration",
}
"""Reasons of absent values in every view: phrases that follow `no value: `."""

TO_SEE: tuple[str, ...] = (
    *(Reason.STALLED, Reason.FAILED, Reason.LOST, Reason.DENIED),
    *(TO_ROOT, Reason.NO_DRIVER, Reason.CRASHED),
)
"""Reasons that need attention; the others are normal for this hardware."""

OPTIONAL = {
    *(chassis.FAULT.name, disk.FAULT.name),
    *(kernel_log.READABLE.name, kernel_log.SWITCH_ERRORS.name),
}
"""Metrics that many machines do not have, or keep for root: absent without harm."""


def monitoring_faults(parameters: RuleParameters) -> tuple[Fault, ...]:
    """Return the faults of the parts that must work for any alert to be reliable."""
    return (
        *agent_down(parameters),
        restarting(parameters),
        driver_hangs(parameters),
        sources_down(parameters),
        *reads_nothing(parameters),
        SHORT,
        *OF_CONFIGURATION,
        values_absent(later(parameters)),
        *clock_stepped(parameters),
        rules_failing(parameters),
        Fault(  # if it stops arriving, the way of all alerts is broken
            alert="DgxWatchdog",
            severity="none",
            when="vector(1)",
            summary="Alerts arrive",
            sentence=("This alert always fires",),
            do="Its receiver must raise the alarm when it stops coming.",
        ),
    )


NO_DRIVER = of(ABSENT_VALUES, metric=str(system.GPUS), reason=Reason.NO_DRIVER)
SOURCES_DOWN = "instance_source:dgx_agent_source_up:down"


NVML_NONE = f'label_replace({NO_DRIVER}, "source", "{NVML}", "", "")'
SOURCES = Recording(
    SOURCES_DOWN,
    f"({SOURCE_UP} == 0) unless on ({NODE}, source) {NVML_NONE}",
    held=True,
)
"""Sources that do not deliver. Without a driver there is nothing to see."""


LATER = 30.0
"""Seconds by which the agent's silence, and an XID that says why the driver hangs, come first."""

STANDS = 2.25
"""Multiple of `silent_for` in which two scrapes at least find the same tick."""


def later(parameters: RuleParameters) -> str:
    return span(seconds(parameters.thresholds.silent_for) + LATER)


def driver_hangs(parameters: RuleParameters) -> Fault:
    """All calls of the driver hang."""
    return blind(
        kind="driver_hangs",
        severity=CRITICAL,
        when=DRIVER_HANGS,
        hold=later(parameters),
        labels={"sign": "driver"},
        summary="driver does not respond",
        sentence=("the NVIDIA driver does not respond",),
        do="Drain the node. If `time nvidia-smi` ends, the driver only starts slowly: "
        "`nvidia-smi -pm 1`. If it hangs, or `dmesg` has XID 119 or 120: reboot the node.",
    )


def sources_down(parameters: RuleParameters) -> Fault:
    """The agent answers, and some sources do not. If the driver hangs, nothing else is reported."""
    return blind(
        kind="source_down",
        when=f"{SOURCES_DOWN} unless on ({NODE}) ({DRIVER_HANGS})",
        look=_sources_down,
        hold=later(parameters),
        labels={"sign": "sources"},
        summary="agent cannot read {{ $labels.source }}",
        sentence=("the agent cannot read its source {device}: alerts on its values cannot fire",),
        device="source",
        do=LOG,
    )


def reads_nothing(parameters: RuleParameters) -> tuple[Fault, Fault]:
    """The agent answers, but has no new data."""
    hold = later(parameters)
    expired = f"sum without (metric, reason) ({pick(ABSENT_VALUES, reason=Reason.STALLED)})"
    stood = span(STANDS * seconds(parameters.thresholds.silent_for))
    ticks = f"{LAST_TICK}[{parameters.over(stood)}]"
    return (
        blind(
            when=f"{expired} > 0 unless on ({NODE}) {SOURCES_DOWN}",
            hold=hold,
            labels={"sign": "values"},
            summary="a read of the agent hangs",
            sentence=("{values:value is|values are} missing: a read of the agent hangs",),
            figure="values",
            do=f"{LOG} After a recent XID 119 or 120 in `dmesg -T` drain and reboot the node.",
        ),
        blind(
            when=f"changes({ticks}) == 0 and count_over_time({ticks}) >= 2",
            hold=parameters.thresholds.silent_for,
            labels={"sign": "ticks"},
            summary="agent reads nothing new",
            sentence=(
                f"the agent answers, but has read nothing for {spoken(stood)}: all values are old",
            ),
            do=f"Restart it: `systemctl restart dgx-telemetry`. {LOG}",
        ),
    )


def _driver_released(look: Look) -> Iterator[Seen]:
    gpus = look.samples.absence(system.GPUS)
    if look.samples.value(SOURCE_UP, NVML) and gpus and gpus.reason is Reason.RELEASED:
        yield Seen(names=(gpus.detail,))


def _sources_down(look: Look) -> Iterator[Seen]:
    if DRIVER_HANGS.rows(look.samples):
        return
    gpus = look.samples.absence(system.GPUS)
    no_driver = gpus is not None and gpus.reason is Reason.NO_DRIVER
    for (source,), up in sorted(look.samples.all(SOURCE_UP).items()):
        if not up and not (source == NVML and no_driver):
            yield Seen(device=source)


def _values_absent(machine: Look) -> Iterator[Seen]:
    if DRIVER_HANGS.rows(machine.samples):
        return  # one fault, one finding
    absent = {(a.reason, a.metric.name) for a in machine.absences if not of_silent(a)}
    late = Reason.STALLED if SHORT_ITSELF.rows(machine.samples) else None  # the agent: it says so
    denied = Reason.DENIED if os.geteuid() else TO_ROOT
    counts = Counter(
        denied if reason is Reason.DENIED else reason
        for reason, metric in absent
        if metric not in OPTIONAL and reason is not late
    )
    for why in TO_SEE:
        if counts[why]:
            figures = (Figure("metrics", counts[why], None, "count"),)
            yield Seen(figures=figures, names=(str(why),), labels=(("reason", str(why)),))


def values_absent(hold: str) -> Fault:
    """Some values have a reason that needs attention; the alert is about values owed by a late
    read."""
    return Fault(
        alert=BLIND,
        kind="values_absent",
        look=_values_absent,
        hold=hold,
        fires=lambda found: hold if found.names == (Reason.STALLED,) else "",
        sentence=("{metrics:metric has|metrics have} no value: {why}",),
        names=("reason",),
        terms={"why": lambda found: ABSENT[found.names[0]]},
        do="See which, and why, under `Absent values` of `dgx-telemetry check`.",
    )


MANY_STEPS = 4
"""Clock steps in six hours: after a boot the time service may set the clock up to three times
(chrony's own `makestep 1 3`)."""


def clock_stepped(parameters: RuleParameters) -> tuple[Fault, Fault]:
    """The clock was set, and timestamps before and after do not fit each other: one correction is
    known, and no fault; a clock that is set again and again has no time service."""
    window = parameters.thresholds.event_window

    def steps(span: str) -> Condition:
        return grown(CLOCK_STEPS, span, increase(CLOCK_STEPS, parameters.over(span))).rounded()

    do = "Check that the time service runs and reaches its servers: `timedatectl`, `chronyc "
    do += "tracking`."
    usual = partial(node_fault, alert="DgxClockStepped", figure="times", do=do)
    often = usual(
        kind="clock_stepped_often",
        when=steps("6h") >= MANY_STEPS,
        labels={"sign": "often"},
        summary="clock is set again and again",
        sentence=(
            f"the wall clock was set {{times:once|times}} in the last 6 h (limit {MANY_STEPS}): "
            "times in logs and graphs differ",
        ),
    )
    once = usual(
        kind="clock_stepped",
        severity=INFO,
        when=steps(window) > 0,
        labels={"sign": "once"},
        hidden_by=(HiddenBy("DgxClockStepped", SAME_NODE, ('sign="often"',)),),
        summary="clock was set",
        sentence=(
            f"the wall clock was set {{times:once|times}} in the last {spoken(window)}: times in "
            "logs and graphs before and after differ",
        ),
    )
    return once, often


def rules_failing(parameters: RuleParameters) -> Fault:
    """Rules of this project that cannot be evaluated: their alerts cannot fire."""
    over = parameters.over("10m")
    counted = 'prometheus_rule_evaluation_failures_total{rule_group=~".*dgx-.+"}'
    in_vmalert = " or ".join(
        f'max_over_time(vmalert_{kind}_rules_error{{group=~"dgx-.+"}}[{over}])'
        for kind in ("alerting", "recording")
    )
    instance = "{{{{ $labels.instance }}}}"
    group = '{{{{ with $labels.rule_group }}}}{{{{ reReplaceAll ".*;" "" . }}}}{{{{ end }}}}'
    group += "{{{{ with $labels.group }}}}{{{{ . }}}}{{{{ end }}}}"
    return Fault(
        alert="DgxRulesFailing",
        when=f"increase({counted}[{over}]) > 0 or ({in_vmalert}) > 0",
        summary="{{ $labels.instance }} cannot evaluate rules",
        sentence=(
            f"{instance} could not evaluate rules of the group {group}, {{failures:once|times}} in "
            "the last 10 min: their alerts cannot fire",
        ),
        figure="failures",
        do="See the error at http://{{ $labels.instance }}/rules (vmalert: in its log).",
    )


WAITING = 0.25  # Seconds per second: readings are then so late
SHORT_ITSELF = of(SHORT_OF_PROCESSORS) >= WAITING
SHORT = Fault(
    kind="short_of_processors",
    severity=INFO,
    when=SHORT_ITSELF,
    sentence=("the agent waits {wait:.1f} s in each second for a processor: readings come late",),
    figure="wait",
    unit="seconds",
    limit=WAITING,
    do="See with top who uses the processors, and if limits of its cgroup hold the agent back.",
)

OF_CONFIGURATION = (
    Fault(
        kind="driver_released",
        severity=INFO,
        look=_driver_released,
        sentence=("no GPU is watched: {0}",),
        do="Remove that file after the upgrade.",
    ),
    *SETTINGS_FAULTS,
    Fault(
        kind="limit_unused",
        look=lambda machine: [
            Seen(device=labels[1], names=(labels[0], labels[-1]))
            for metric, labels, reason, _ in machine.absences
            if metric is paths.LIMIT and reason is Reason.MISSING
        ],
        sentence=("[[limit]] names {0} {device} {1}, which is not here",),
        names=("path", "direction"),
        do="Correct the [[limit]] in the configuration.",
    ),
    Fault(
        kind="log_closed",
        severity=INFO,
        look=lambda machine: [
            Seen(names=(closed.detail,))
            for closed in [machine.samples.absence(kernel_log.READABLE)]
            if closed
        ],
        sentence=("the kernel's log cannot be read: {0}",),
        do="Run this as root of the host, or let its unit hand over /dev/kmsg, as `install` does.",
    ),
)
"""Faults of settings that are refused, or name a missing device, and of files that the agent may
not or could not read."""
