"""One message for one fault: what silences an alert is there before that alert is sent."""

import re
from collections.abc import Iterator

from agent.config.settings import Settings
from agent.faults.hiding import inhibitions
from agent.faults.model import Fault
from agent.faults.promql import seconds
from agent.polling import intervals
from agent.sources.disk import ARRAY_STATE
from alerts.build import alerts_of, groups
from alerts.receivers import ROUTES
from tests.support.alert_input import SCRAPE
from tests.support.each import of_each

ALERTS = alerts_of(groups(Settings()))
RULES = inhibitions(ALERTS)
WAIT = {route["severity"]: seconds(route["group_wait"]) for route in ROUTES.values()}

READ = {
    "DgxGpuXid": 0.0,
    "DgxGpuMissing": 0.0,
    "DgxNodeMissing": 0.0,
    "DgxFabricFault switch": 0.0,
    "DgxFabricFault manager": intervals.MANAGER,
    "DgxPcieDegraded": intervals.PCIE_LINK,
    "DgxRaidDegraded dead": ARRAY_STATE,
}
"""Delay (s) of an inhibiting alert's metric: none if it is read every tick; the rest is read every
minute."""

TOGETHER = {
    ("DgxGpuXid", "DgxGpuEccUncorrected"),  # whose rule leaves it to that XID
    ("DgxGpuRowRemapFailure", "DgxGpuEccUncorrected"),  # of one read
    ("DgxGpuHot", "DgxGpuThrottled"),  # reported for the share of a quarter of an hour
    ("DgxClockStepped", "DgxClockStepped"),  # the fourth step comes after the first
}
"""Pairs that keep their order by themselves."""


def matches(matcher: str, alert: Fault) -> bool:
    """Return whether the alert may have the labels asked for; labels from its series count as a
    match."""
    found = re.fullmatch(r'(\w+)(!=|=~|=)"(.*)"', matcher)
    assert found is not None, matcher
    label, how, value = found.groups()
    labels = {"alertname": alert.alert, "severity": str(alert.severity), **alert.labels}
    if label == "xid" and alert.alert == "DgxGpuXid":
        listed = re.findall(r'xid=~"(.+?)"', alert.expr)
        own = (
            listed[0]
            if listed
            else {"nvlink5": "14[4-9]|150"}.get(alert.labels.get("sign", ""), "")
        )
        codes = [code for code in map(str, range(200)) if re.fullmatch(own, code)]
        return any(re.fullmatch(value, code) for code in codes)
    if label not in labels:
        return label in ("kind", "uuid")
    same = re.fullmatch(value, labels[label]) if how == "=~" else labels[label] == value
    return bool(same) != (how == "!=")


def pairs() -> Iterator[tuple[Fault, Fault]]:
    """Each alert that silences another; where a node or its driver is gone nothing is read."""
    for rule in RULES:
        sources, targets = rule.source_matchers, rule.target_matchers
        for source in ALERTS:
            gone = (
                source.alert in ("DgxAgentDown", "DgxAgentBlind")
                or source.labels.get("sign") == "no_driver"
            )
            if gone or not all(matches(m, source) for m in sources):
                continue
            if source.alert == "DgxGpuMissing" and any("alertname!=" in m for m in targets):
                continue  # of one GPU, whatever it was
            for target in ALERTS:
                if target is not source and all(matches(m, target) for m in targets):
                    yield source, target


@of_each([*pairs()])
def test_what_silences_comes_first(pair: tuple[Fault, Fault]) -> None:
    source, target = pair
    if (source.alert, target.alert) in TOGETHER:
        return
    sign = f"{source.alert} {source.labels.get('sign', '')}".strip()
    latest = (
        READ.get(sign, READ.get(source.alert, intervals.LINKS)) + 2 * SCRAPE + seconds(source.hold)
    )
    earliest = seconds(target.hold) + WAIT[target.severity]
    assert latest <= earliest
