"""Inhibition rules for Alertmanager and for findings, with which a fault hides its consequences."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from agent.faults.conditions import matching
from agent.faults.model import Fault, Finding, HiddenBy
from agent.metrics import beside


class Inhibition(NamedTuple):
    """An Alertmanager rule: a source alert hides target alerts if their labels `equal` match."""

    source_matchers: tuple[str, ...]
    target_matchers: tuple[str, ...]
    equal: tuple[str, ...]

    @classmethod
    def of(cls, by: HiddenBy, target: tuple[str, ...]) -> "Inhibition":
        return cls((f'alertname="{by.alert}"', *by.having), target, by.same)


_TABLES = beside(__file__, "hiding")
OF_ALL, OF_FINDINGS = (
    tuple(Inhibition.of(HiddenBy.parsed(one["by"]), tuple(one["hidden"])) for one in _TABLES[name])
    for name in ("of_all", "of_findings")
)
"""Inhibitions by faults of a whole node or GPU, and inhibitions of findings without an alert."""


def inhibitions(faults: Sequence[Fault]) -> tuple[Inhibition, ...]:
    """Return all inhibitions among the alerts of the given faults."""
    rules = list(OF_ALL)
    for name in sorted({fault.alert for fault in faults}):
        same = [fault for fault in faults if fault.alert == name]
        for by in dict.fromkeys(by for fault in same for by in fault.hiders):
            hidden = [fault for fault in same if by in fault.hiders]
            signs = "|".join({f.labels["sign"]: f for f in hidden if len(hidden) < len(same)})
            only = (f'sign=~"{signs}"',) if signs else ()
            rules.append(Inhibition.of(by, (f'alertname="{name}"', *only, *by.only)))
    return tuple(rules)


@cache
def _matcher(text: str) -> tuple[str, Callable[[str], bool]]:
    found = re.fullmatch(r'(\w+)(=~|!~|!=|=)"(.*)"', text)
    assert found, text
    name, how, word = found.groups()
    return name, matching(how, word)


def matches(matchers: Sequence[str], labels: Mapping[str, str]) -> bool:
    """Return whether the labels of an alert match all matchers, as in Alertmanager."""
    return all(fits(labels.get(name, "")) for name, fits in map(_matcher, matchers))


def hides(rules: Sequence[Inhibition], one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Return whether an alert with labels `one` hides an alert with labels `other`."""
    return any(
        all(one.get(label, "") == other.get(label, "") for label in rule.equal)
        and matches(rule.source_matchers, one)
        and matches(rule.target_matchers, other)
        for rule in rules
    )


def alert_labels(finding: Finding) -> dict[str, str]:
    """Return the labels that the alert for a finding has, without target labels."""
    fault, gpu = finding.fault, finding.gpu
    return {
        "alertname": fault.alert,
        "severity": finding.severity.value,
        **fault.labels,
        **({"gpu": str(gpu.index), "uuid": gpu.uuid} if gpu else {}),
        **dict(finding.labels),
    }
