"""Thresholds of alerts, and the parameters of a set of rules. Every threshold stands here once,
with its source; each is configuration.

Durations are written as Prometheus writes them (15m, 1h). A window is at least four scrapes of 15
s, so that a missed scrape changes nothing.
"""

import re
from dataclasses import replace as replaced
from typing import Annotated, ClassVar, Literal, NamedTuple

from msgspec import Meta, Struct, field, structs

from agent.config.decoding import Mismatch, Share, TextCheck, shown, unknown
from agent.config.settings import Section
from agent.faults.model import Fault, Group, alert_names
from agent.faults.promql import seconds, span

SHORTEST, LONGEST = 60.0, 86_400.0
"""Seconds: four scrapes of 15 s; a day."""


Duration = Annotated[
    str,
    TextCheck(
        lambda text: SHORTEST <= seconds(text) <= LONGEST,
        "a duration from 1m to 1d, such as 15m or 1h",
    ),
]
HOLD = TextCheck(lambda text: seconds(text) <= LONGEST, "a duration from 0s to 1d, such as 5m")


def _text(pattern: str, expected: str) -> Meta:
    return Meta(pattern=rf"\A{pattern}\Z", description=expected)


WORD = r"[^\s\x00-\x1f\x7f]+"
HOST = r"([\w.-]+|\[[\da-fA-F:.]+\])(:\d{1,5})?"
RunbookPlace = Annotated[str, _text(WORD, "a URL or a path without spaces")]
Url = Annotated[
    str,  # everybody may read the configured text: no password in it
    _text(
        rf"(https?://{HOST}([/?#]\S*)?)?",
        "an http or https URL without a name or password in it, or empty",
    ),
]
SecretFile = Annotated[str, _text(r"(/[^\x00-\x1f]+)?", "the absolute path of a file, or empty")]
Email = Annotated[str, _text(r"([^\x00-\x1f]+@[^\x00-\x1f]+)?", "an e-mail address, or empty")]
Smarthost = Annotated[str, _text(r"(\S+:[1-9]\d{0,4})?", "HOST:PORT of a mail server, or empty")]
Word = Annotated[str, _text(f"({WORD})?", "one word, or empty")]
Degrees = Annotated[float, Meta(ge=-20, le=50, description="degrees from -20 to 50")]
Errors = Annotated[int, Meta(ge=1, le=1_000_000, description="a whole number from 1 to 1000000")]


class AlertThresholds(Section, frozen=True):
    """Shares are 0-1 of the time observed."""

    table = "alerts"
    # All known causes together. A quarter of the time of 15 minutes: loading for three minutes and
    # then computing stays below it. A loss that lasts is reported at less: a tenth of 6 hours, and
    # of a day if GPM reports shares to the point.
    starved_share: Share = 0.25
    starved_window: Duration = "15m"
    starved_hours_share: Share = 0.10
    starved_hours: Duration = "6h"
    starved_day_share: Share = 0.10
    starved_day: Duration = "24h"
    # Of the starved_window: communication that nothing hides, if it costs as much as a cause.
    exposed_share: Share = 0.25
    # Nine tenths of half an hour: a coffee break is no waste, an evening is.
    held_share: Share = 0.90
    held_window: Duration = "30m"
    # Given to a job without a process on it: half an hour of building or loading may come first.
    unused_window: Duration = "30m"
    # As for starving: a quarter of the time is lost for the job, whatever the reason.
    throttled_share: Share = 0.25
    throttled_window: Duration = "15m"
    # A tenth: steps vary by a few per cent with their data.
    slower_share: Share = 0.10
    slower_window: Duration = "10m"
    # Of a node against the median node of its job: less than this, nodes differ by themselves.
    slower_node_share: Share = 0.04
    # Half the time: a path that carries bursts is well used, a path that is full for minutes
    # limits.
    saturated_share: Share = 0.50
    saturated_window: Duration = "10m"
    # Degrees left to the end of the operating range, as the GPU itself states it: none.
    hot_margin: Degrees = 0.0
    # How long an event (XID, uncorrected ECC) is shown: long enough to be read, and over by itself.
    event_window: Duration = "30m"
    # A failing link was seen to recover 505 times in five days, four times an hour, before it died;
    # a healthy link does not replay at all. So many within the window alert.
    nvlink_errors: Errors = 5
    nvlink_errors_window: Duration = "1h"
    # Half the time at work: a link at rest may run at a lower generation.
    loaded_share: Share = 0.50
    # DCGM warns at ten corrected errors a minute; a sound GPU corrects a few a day.
    ecc_corrected: Errors = 600
    ecc_corrected_window: Duration = "1h"
    # gpud's flapping: down and up again three times within twelve hours.
    infiniband_downs: Errors = 3
    infiniband_downs_window: Duration = "12h"
    # How long the agent may be silent, or blind, before it alerts.
    silent_for: Duration = "2m"
    # Place of the sections of RUNBOOK.md: a URL, or a path. Every agent serves them; the template
    # is Prometheus' own.
    runbook: RunbookPlace = "http://{{$labels.instance}}/runbook.html"
    # Address of Grafana: alerts link to the board of their GPU or node. Grafana's own default.
    grafana: Url = "http://localhost:3000"


LABEL = re.compile(r"[a-zA-Z][a-zA-Z0-9_]*")
OWN_LABELS = {"alertname", "severity", "sign", "instance", "job"}
"""Labels that distinguish alerts, or route them."""


class AlertPatch(Struct, frozen=True, forbid_unknown_fields=True):
    """Changes by a site to the rules of an alert: `[alerts.DgxGpuStarved]`."""

    enabled: bool = True
    hold: str | None = field(default=None, name="for")
    severity: Literal["critical", "warning", "info"] | None = None
    labels: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in self.labels.items():
            if not LABEL.fullmatch(name) or name in OWN_LABELS:
                expected = f"the name of a label other than {', '.join(sorted(OWN_LABELS))}"
                raise Mismatch("labels", f"{shown(name)} is not {expected}")
            if not value.isprintable() or not value:
                raise Mismatch("labels", f"{name} is {shown(value)}, not a printable text")
        if self.hold is not None:
            HOLD.check(self.hold, "for")

    def applied_to(self, fault: Fault) -> Fault:
        return structs.replace(
            fault,
            hold=self.hold or fault.hold,
            severity=self.severity or fault.severity,
            labels={**fault.labels, **self.labels},
        )


class AlertPatches(Section, frozen=True):
    """Patches by the name of the alert; `check` and the page keep their own judgement."""

    table = "alerts"
    subtables: ClassVar[str] = "patches"
    patches: dict[str, AlertPatch] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.patches:
            if name not in alert_names():
                raise unknown(name, sorted(alert_names()))

    def applied_to(self, group: Group) -> Group:
        """The group with its rules patched, and without those that the site dropped."""
        rules = []
        for rule in group.rules:
            patch = self.patches.get(rule.alert) if isinstance(rule, Fault) else None
            if patch is None or not isinstance(rule, Fault):
                rules.append(rule)
            elif patch.enabled:
                rules.append(patch.applied_to(rule))
        return replaced(group, rules=rules)


class RuleParameters(NamedTuple):
    """Thresholds, and the factor by which every range and `for` is multiplied: 1 for users, less
    for a stack that is tested on a faster clock."""

    thresholds: AlertThresholds
    scale: float = 1.0

    def over(self, text: str) -> str:
        return text if self.scale == 1.0 else span(seconds(text) * self.scale)
