"""Alert thresholds, and the parameters of the alerting rules. Every threshold is configurable, and
is defined here with its source. Durations use the Prometheus format (15m, 1h). A window covers at
least four scrapes, which are 15 s apart, so that a missed scrape has no effect.
"""

import re
from typing import Annotated, ClassVar, Literal, NamedTuple

from msgspec import Meta, Struct, field, structs

from agent.config.decoding import Mismatch, Share, TextCheck, shown, unknown
from agent.config.settings import Section
from agent.faults.model import Fault, Group, alert_names
from agent.faults.promql import seconds, span

SHORTEST, LONGEST = 60.0, 86_400.0
"""Minimum and maximum duration in seconds: the time of four scrapes, and a day."""

Duration = Annotated[
    str,
    TextCheck(
        lambda text: SHORTEST <= seconds(text) <= LONGEST,
        "a duration from 1m to 1d, such as 15m or 1h",
    ),
]
HOLD = TextCheck(lambda text: seconds(text) <= LONGEST, "a duration from 0s to 1d, such as 5m")

OF_ALERT, OF_MESSAGE = (
    rf"(?!.*\{{\{{(?! ?{of}\.[a-zA-Z_][a-zA-Z0-9_]* ?\}}\}}))"
    for of in (r"\$(labels|externalLabels)", r"\.(Common|Group)Labels")
)
"""Prefixes of patterns for texts that Prometheus or Alertmanager take for templates. They reject
all template syntax but the value of a label, because one error makes a whole file unusable."""


def _text(pattern: str, expected: str, template: str = OF_ALERT) -> Meta:
    return Meta(pattern=rf"\A{template}{pattern}\Z", description=expected)


WORD = r"[^\s\x00-\x1f\x7f]+"
HOST = r"([\w.-]+|\[[\da-fA-F:.]+\])(:\d{1,5})?"
RunbookPlace = Annotated[str, _text(WORD, "a URL or a path without space or broken template")]
Url = Annotated[
    str,  # everyone can read this value, so it must not contain a password
    _text(
        rf"(https?://{HOST}([/?#]\S*)?)?",
        "an http or https URL without a name, password, or broken template, or empty",
    ),
]
SecretFile = Annotated[str, _text(r"(/[^\x00-\x1f]+)?", "the absolute path of a file, or empty")]
COMMON = "without templates other than {{.CommonLabels.NAME}}, or empty"
Email = Annotated[str, _text(r"([^\x00-\x1f]+@[^\x00-\x1f]+)?", f"an address {COMMON}", OF_MESSAGE)]
Smarthost = Annotated[str, _text(r"(\S+:[1-9]\d{0,4})?", "HOST:PORT of a mail server, or empty")]
Word = Annotated[str, _text(f"({WORD})?", f"one word {COMMON}", OF_MESSAGE)]
Degrees = Annotated[float, Meta(ge=-20, le=50, description="degrees from -20 to 50")]
Errors = Annotated[int, Meta(ge=1, le=1_000_000, description="a whole number from 1 to 1000000")]


class AlertThresholds(Section, frozen=True):
    """Thresholds of alerts and findings. Shares are fractions (0-1) of the observed time."""

    table = "alerts"
    # Sum of all known causes. A quarter of 15 minutes is more than three minutes of loading
    # followed by computation. A lasting loss is reported at a lower share: a tenth of 6 hours, or
    # of a day if GPM reports exact shares.
    starved_share: Share = 0.25
    starved_window: Duration = "15m"
    starved_hours_share: Share = 0.10
    starved_hours: Duration = "6h"
    starved_day_share: Share = 0.10
    starved_day: Duration = "24h"
    # Share of starved_window with exposed communication, which costs as much as starvation.
    exposed_share: Share = 0.25
    # Nine tenths of half an hour: a coffee break is no waste, but an evening is.
    held_share: Share = 0.90
    held_window: Duration = "30m"
    # For a GPU that is allocated to a job without a process on the GPU. The job may first spend
    # half an hour on building or loading.
    unused_window: Duration = "30m"
    # Same as for starved GPUs: a quarter of the job's time is lost, for whatever reason.
    throttled_share: Share = 0.25
    throttled_window: Duration = "15m"
    # A tenth, because the duration of steps varies with their data by a few per cent.
    slower_share: Share = 0.10
    slower_window: Duration = "10m"
    # For a node compared with the median node of its job; healthy nodes differ by less than this.
    slower_node_share: Share = 0.04
    # Half of the time: a path with bursts is well used, but a path that is saturated for minutes is
    # a bottleneck.
    saturated_share: Share = 0.50
    saturated_window: Duration = "10m"
    # Degrees below the end of the operating range that the GPU reports; 0 by default.
    hot_margin: Degrees = 0.0
    # How long an event (XID, uncorrected ECC error) is shown: long enough to notice it.
    event_window: Duration = "30m"
    # A failing link recovered 505 times in five days, that is, four times per hour, before it
    # failed; a healthy link has no replays. This number of errors within the window fires an alert.
    nvlink_errors: Errors = 5
    nvlink_errors_window: Duration = "1h"
    # Half of the time under load, because an idle link may use a lower generation.
    loaded_share: Share = 0.50
    # DCGM warns at ten corrected errors per minute; a healthy GPU corrects a few per day.
    ecc_corrected: Errors = 600
    ecc_corrected_window: Duration = "1h"
    # gpud's definition of flapping: down and up again three times within twelve hours.
    infiniband_downs: Errors = 3
    infiniband_downs_window: Duration = "12h"
    # How long the agent may be unreachable or unable to read before an alert fires.
    silent_for: Duration = "2m"
    # URL or path of the sections of RUNBOOK.md, which every agent serves; Prometheus fills in the
    # template.
    runbook: RunbookPlace = "http://{{$labels.instance}}/runbook.html"
    # Grafana URL for links from alerts to dashboards of GPUs and nodes; Grafana's default address.
    grafana: Url = "http://localhost:3000"


OWN_LABELS = {"alertname", "severity", "sign", "instance", "job"}
"""Labels that a site cannot set, because they distinguish alerts or are used for routing."""


class AlertPatch(Struct, frozen=True, forbid_unknown_fields=True):
    """A site's changes to the rules of one alert, for example in `[alerts.DgxGpuStarved]`."""

    enabled: bool = True
    hold: str | None = field(default=None, name="for")
    severity: Literal["critical", "warning", "info"] | None = None
    labels: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in self.labels.items():
            if not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_]*", name) or name in OWN_LABELS:
                expected = f"the name of a label other than {', '.join(sorted(OWN_LABELS))}"
                raise Mismatch("labels", f"{shown(name)} is not {expected}")
            if not value.isprintable() or not re.match(f"{OF_ALERT}.", value):
                expected = "a printable text without templates other than {{ $labels.NAME }}"
                raise Mismatch("labels", f"{name} is {shown(value)}, not {expected}")
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
    """A site's changes to alerting rules, by alert name. They do not affect findings."""

    table = "alerts"
    subtables: ClassVar[str] = "patches"
    patches: dict[str, AlertPatch] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.patches:
            if name not in alert_names():
                raise unknown(name, sorted(alert_names()))

    def applied_to(self, group: Group) -> Group:
        """Return the group with the changes applied, and without rules that the site disabled."""
        patched = [(one, self.patches.get(one.alert, AlertPatch())) for one in group.faults]
        faults = [patch.applied_to(one) for one, patch in patched if patch.enabled]
        return structs.replace(group, faults=faults)


class RuleParameters(NamedTuple):
    """Thresholds, and the factor by which each range and `for` in a rule is multiplied. The factor
    is 1 in production, and less than 1 for a test stack with a faster clock."""

    thresholds: AlertThresholds
    scale: float = 1.0

    def over(self, text: str) -> str:
        return text if self.scale == 1.0 else span(seconds(text) * self.scale)
