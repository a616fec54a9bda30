"""Agents that do not answer, or only sometimes, or start again and again."""

from collections.abc import Iterator
from functools import partial

from agent.faults import places
from agent.faults.model import CRITICAL, SAME_NODE, WARNING, Fault, HiddenBy, node_fault
from agent.faults.promql import spoken
from agent.faults.thresholds import RuleParameters

DOWN = "DgxAgentDown"
JOB = "dgx-telemetry"
"""The job label, by convention."""

UP = f'up{{job="{JOB}"}}'
"""Prometheus' own metric: 1 if the last scrape succeeded."""

IN_SERVICE = f'up{{job="{JOB}", drained=""}}'
"""Selector without drained nodes: `dgx-telemetry inventory` gives them the label."""

SILENT = f"{IN_SERVICE} == 0"

RARE = "5m"
"""Window without a successful scrape: three fail in this and `silent_for`, if a range of
`silent_for` does not hold two scrapes. One or two may fail by chance."""


def agent_down(parameters: RuleParameters) -> Iterator[Fault]:
    """The agent, or its machine, does not answer, or only sometimes; or no agent is scraped."""
    hold = parameters.thresholds.silent_for
    over = parameters.over(hold)
    usual = partial(Fault, alert=DOWN, severity=CRITICAL)
    yield usual(
        place=places.NODE,
        when=f"{SILENT} and (count_over_time({IN_SERVICE}[{over}]) >= 2 "
        f"or max_over_time({IN_SERVICE}[{parameters.over(RARE)}]) == 0)",
        hold=hold,
        labels={"sign": "silence"},
        summary="agent does not answer",
        sentence=(f"the agent has not answered for {spoken(hold)}: nothing is known of its GPUs",),
        do="See if the machine answers (`ping`, its BMC). If it is up, jobs may go on: run "
        "`systemctl status dgx-telemetry` there.",
        hidden_by=BY_RACK,
    )
    yield usual(
        when=f"absent({UP})",
        hold=hold,
        labels={"sign": "no_target"},
        summary="Prometheus has no agent to ask",
        sentence=(
            'Prometheus has had no target of the job "{{{{ $labels.job }}}}" for ' + spoken(hold),
        ),
        do="No GPU is watched. Look at Status, Target health of Prometheus, then at its scrape "
        "configuration and service discovery.",
    )
    yield sometimes(parameters)


BY_RACK = (HiddenBy("DgxNodeMissing", ("cluster", "rack")),)


def sometimes(parameters: RuleParameters) -> Fault:
    """A target that fails now and then, and answers in between: one outage does not count."""
    scrapes = f"{IN_SERVICE}[{parameters.over(SOMETIMES)}]"
    return Fault(
        alert=DOWN,
        place=places.NODE,
        severity=WARNING,
        when=f"avg_over_time({scrapes}) < {SELDOM:g} and changes({scrapes}) >= {TURNS}",
        hold=RARE,
        labels={"sign": "sometimes"},
        summary="agent answers only sometimes",
        sentence=(
            f"the agent answered {{share:whole}} of the scrapes in the last {spoken(SOMETIMES)}",
        ),
        figure="share",
        do="Look at the network, at the load of the machine, and at the scrape timeout; "
        "then at `journalctl -u dgx-telemetry`.",
        hidden_by=(*BY_RACK, HiddenBy(DOWN, SAME_NODE, ('sign="silence"',))),
    )


SOMETIMES, SELDOM, TURNS = "30m", 0.75, 6
"""Window, share of its scrapes that succeed, below which an agent answers only sometimes, and
changes between success and failure in it: three outages; a reboot is one outage."""

MOST_STARTS = 4
"""Starts of the agent within an hour: a person who installs it starts it twice or three times."""


def restarting(parameters: RuleParameters) -> Fault:
    """The agent starts again and again, and all windows begin anew each time."""
    starts = f'changes(process_start_time_seconds{{job="{JOB}"}}[{parameters.over("1h")}])'
    return node_fault(
        alert="DgxAgentRestarting",
        when=f"{starts} >= {MOST_STARTS}",
        summary="agent starts again and again",
        sentence=(f"the agent started {{starts:once|times}} within an hour (limit {MOST_STARTS})",),
        figure="starts",
        do="Look at `journalctl -u dgx-telemetry` for the reason: an error, too little memory, a "
        "watchdog.",
    )
