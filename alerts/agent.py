"""Alerts for whoever runs the monitoring: missing data is news too."""

from agent.model import Reason
from agent.sources import system
from agent.sources.agent_health import ABSENT_VALUES, CLOCK_STEPS, CONFIG_OK, LAST_TICK, SOURCE_UP
from alerts import places
from alerts.model import Alert, Group
from alerts.parameters import RuleParameters
from alerts.promql import NODE, increase, pick
from alerts.words import COUNT, list_of
from alerts.words import NODE as MACHINE

JOB = "dgx-telemetry"
"""The job label, by convention."""

UP = f'up{{job="{JOB}"}}'
"""Prometheus' own: 1 where the last scrape succeeded."""

IN_SERVICE = f'up{{job="{JOB}", drained=""}}'
"""Of nodes that nobody took out: `dgx-telemetry inventory` gives the others the label."""

NVML = "nvml"
"""The source that is down where there is no driver."""

LOG = "Look at journalctl -u dgx-telemetry and at dgx-telemetry check on the machine."


def agent_down(parameters: RuleParameters) -> tuple[Alert, Alert]:
    """The agent, or its machine, does not answer; or nobody asks any."""
    hold = parameters.thresholds.silent_for
    return (
        Alert(
            "DgxAgentDown",
            f"{IN_SERVICE} == 0",
            "critical",
            "agent does not answer",
            f"The agent on {MACHINE} has not answered for {hold} (limit {hold}): nothing is "
            "known of its GPUs. Look whether the machine is up, then at systemctl status "
            "dgx-telemetry.",
            hold=hold,
            labels={"sign": "silence"},
            place=places.NODE,
        ),
        Alert(
            "DgxAgentDown",
            f"absent({UP})",
            "critical",
            "Prometheus has no agent to ask",
            f'Prometheus has had no target of the job "{{{{ $labels.job }}}}" for {hold} (limit '
            f"{hold}). Look at its scrape configuration and its service discovery.",
            hold=hold,
            labels={"sign": "no_target"},
        ),
    )


def agent_blind(parameters: RuleParameters) -> tuple[Alert, ...]:
    """The agent answers, and knows nothing new. A machine without a driver has nothing to see."""
    name, summary = "DgxAgentBlind", "agent reads nothing new"
    hold = parameters.thresholds.silent_for
    no_driver = pick(ABSENT_VALUES, metric=str(system.GPUS), reason=Reason.NO_DRIVER)
    nvml = f'label_replace({no_driver}, "source", "{NVML}", "", "")'
    down = f"({SOURCE_UP} == 0) unless on ({NODE}, source) {nvml}"
    sources = f"count by ({NODE}) ({down})"
    expired = f"sum by ({NODE}) ({pick(ABSENT_VALUES, reason=Reason.STALLED)})"
    names = list_of(SOURCE_UP, "source", "== 0", "instance", "job")
    before = f"{LAST_TICK} offset {parameters.over(hold)}"
    hang = f"A hung driver needs a reboot; see dmesg. {LOG}"

    def alert(sign: str, expr: str, text: str) -> Alert:
        return Alert(name, expr, "warning", summary, text, hold, {"sign": sign}, places.NODE)

    return (
        alert(
            "sources",
            sources,
            f"{COUNT} sources of the agent on {MACHINE} do not deliver:{names} (limit 0). {hang}",
        ),
        alert(
            "values",
            f"{expired} > 0 unless on ({NODE}) {sources}",
            f"{COUNT} values of the agent on {MACHINE} have expired: a read hangs (limit 0). "
            f"{hang}",
        ),
        alert(
            "ticks",
            # Two scrapes that told the same: a range that holds only one tells nothing.
            f"{LAST_TICK} == {before} and timestamp({LAST_TICK}) > timestamp({before})",
            f"The agent on {MACHINE} answers, and has not read the machine for {hold} (limit "
            f"{hold}). Restart it: systemctl restart dgx-telemetry. {LOG}",
        ),
    )


def reload_failed(_: RuleParameters) -> Alert:
    """The agent goes on with its old configuration."""
    return Alert(
        "DgxAgentReloadFailed",
        f"{CONFIG_OK} == 0",
        "warning",
        "new configuration refused, the old one holds",
        f"The agent on {MACHINE} was given a configuration that it refused (successful: {COUNT}, "
        "limit 1), and goes on with the old one. journalctl -u dgx-telemetry names key and line; "
        "mend it, and systemctl reload dgx-telemetry.",
        hold="1m",
        place=places.NODE,
    )


def clock_stepped(parameters: RuleParameters) -> Alert:
    """Timestamps before and after do not fit each other."""
    window = parameters.thresholds.event_window
    return Alert(
        "DgxClockStepped",
        f"round({increase(CLOCK_STEPS, parameters.over(window))}) > 0",
        "warning",
        "clock was set",
        f"The clock of {MACHINE} was set {COUNT} times in the last {window} (limit 0): timestamps "
        "before and after do not fit. Look with timedatectl and chronyc tracking whether the time "
        "service runs and reaches its servers.",
        place=places.NODE,
    )


def watchdog(_: RuleParameters) -> Alert:
    """Always fires: where it stops arriving, the way of all alerts is broken."""
    return Alert(
        "DgxWatchdog",
        "vector(1)",
        "none",
        "Alerts arrive",
        "This alert always fires. Its receiver must raise the alarm when it stops coming.",
    )


def monitoring(parameters: RuleParameters) -> Group:
    """What must work for any alert to be believed."""
    return Group(
        "dgx-agent",
        (
            *agent_down(parameters),
            *agent_blind(parameters),
            reload_failed(parameters),
            clock_stepped(parameters),
            watchdog(parameters),
        ),
    )
