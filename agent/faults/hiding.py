"""Faults that hide others: one table, for Alertmanager's inhibitions and for the findings."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from agent.faults.model import Fault, HiddenBy
from agent.model import Finding, Reason

OUR_ALERTS = 'alertname=~"Dgx.+"'
OF_WORK = 'alertname=~"DgxGpu.+|DgxNvlink.+|DgxPcie.+|DgxJob.+"'


LOST = f'reason="{Reason.LOST}"'


class Inhibition(NamedTuple):
    """An alert of the source hides those of the target if all labels of `equal` are the same; as
    Alertmanager writes it."""

    source_matchers: tuple[str, ...]
    target_matchers: tuple[str, ...]
    equal: tuple[str, ...]

    @classmethod
    def of(cls, by: HiddenBy, target: tuple[str, ...]) -> "Inhibition":
        return cls((f'alertname="{by.alert}"', *by.having), target, by.same)


OF_ALL = (
    # A node that does not answer: all that was known of it is old. The watchdog has no instance.
    Inhibition.of(
        HiddenBy.parsed('DgxAgentDown{sign="silence"} on (cluster, instance)'),
        ('alertname!="DgxAgentDown"', OUR_ALERTS, 'severity!="none"'),
    ),
    # A GPU that is lost: its faults of the last minutes matter no more.
    Inhibition.of(
        HiddenBy.parsed('DgxGpuMissing{uuid!=""} on (cluster, instance, uuid)'),
        ('alertname!="DgxGpuMissing"', OUR_ALERTS),
    ),
    # A driver that hangs: all its reports are old. If an XID says why, the XID's alert is sent.
    Inhibition.of(
        HiddenBy.parsed('DgxAgentBlind{sign=~"driver|sources"} on (cluster, instance)'),
        (OF_WORK, 'severity!="critical"'),
    ),
)
"""Inhibitions of whole nodes and GPUs; others stand with the fault that they hide."""

OF_FINDINGS = (
    Inhibition.of(
        HiddenBy.parsed("DgxGpuMissing on (cluster, instance)"),
        ('alertname="DgxAgentBlind"', LOST),
    ),
)
"""The same for findings without an alert."""


def inhibitions(faults: Sequence[Fault]) -> tuple[Inhibition, ...]:
    """Return all inhibitions among the alerts of these faults."""
    rules = list(OF_ALL)
    for name in sorted({fault.alert for fault in faults}):
        same = [fault for fault in faults if fault.alert == name]
        for by in dict.fromkeys(by for fault in same for by in hiders(fault)):
            hidden = [fault for fault in same if by in hiders(fault)]
            signs = "|".join(fault.labels["sign"] for fault in hidden if len(hidden) < len(same))
            only = (f'sign=~"{signs}"',) if signs else ()
            rules.append(Inhibition.of(by, (f'alertname="{name}"', *only, *by.only)))
    return tuple(rules)


def hiders(fault: Fault) -> tuple[HiddenBy, ...]:
    return fault.rule.hiders if fault.rule else ()


MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"(.*)"')


def matches(matchers: Sequence[str], labels: Mapping[str, str]) -> bool:
    """Return whether an alert with these labels matches, by Alertmanager's rules."""
    for text in matchers:
        found = MATCHER.fullmatch(text)
        assert found, text
        name, how, word = found.groups()
        value = labels.get(name, "")
        same = value == word if how in ("=", "!=") else bool(re.fullmatch(word, value))
        if same == how.startswith("!"):
            return False
    return True


def hides(rules: Sequence[Inhibition], one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Return whether an alert with labels `one` hides an alert with labels `other`."""
    return any(
        all(one.get(label, "") == other.get(label, "") for label in rule.equal)
        and matches(rule.source_matchers, one)
        and matches(rule.target_matchers, other)
        for rule in rules
    )


def alert_labels(fault: Fault, finding: Finding) -> dict[str, str]:
    """Return the labels of a finding's alert, without those of its target."""
    gpu = finding.gpu
    return {
        "alertname": fault.alert,
        "severity": finding.severity.value,
        **fault.labels,
        **({"gpu": str(gpu.index), "uuid": gpu.uuid} if gpu else {}),
        **dict(finding.labels),
    }
