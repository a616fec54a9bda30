"""One message for one fault: what silences an alert is there before that alert is sent."""

import re
from collections.abc import Iterator

import pytest

from agent.config.settings import Settings
from agent.polling import intervals
from alerts.build import groups
from alerts.inhibitions import (
    AGENT_BLIND,
    AGENT_DOWN,
    ECC,
    GPU_MISSING,
    NODE_MISSING,
    REMAP_FAILURE,
    RULES,
    XID,
)
from alerts.model import Alert
from alerts.routing import ROUTES
from alerts.values import seconds
from tests.support.alert_input import SCRAPE

ALERTS = [rule for part in groups(Settings()) for rule in part.rules if isinstance(rule, Alert)]
WAIT = {route.severity: seconds(route.wait) for route in ROUTES}

READ = {
    XID: 0.0,
    GPU_MISSING: 0.0,
    NODE_MISSING: 0.0,
    "DgxFabricFault switch": 0.0,
    "DgxFabricFault manager": intervals.MANAGER,
    "DgxPcieDegraded": intervals.PCIE_LINK,
}
"""How late (s) the metric of what silences may be: nothing is late that is read each tick; the rest
is read each minute."""

TOGETHER = {
    (REMAP_FAILURE, ECC),  # of one read
    ("DgxGpuHot", "DgxGpuThrottled"),  # told for the share of a quarter of an hour
}
"""Pairs that keep their order by themselves."""


def matches(matcher: str, alert: Alert) -> bool:
    """Whether an alert may have what is asked; labels that its series bring are taken for fit."""
    found = re.fullmatch(r'(\w+)(!=|=~|=)"(.*)"', matcher)
    assert found is not None, matcher
    label, how, value = found.groups()
    labels = {"alertname": alert.name, "severity": alert.severity, **alert.labels}
    if label == "xid" and alert.name == XID:
        listed = re.findall(r'xid=~"([\d|]+)"', alert.expr)
        own = "|".join(listed) or {"nvlink5": "144|145|146|147|148|149|150"}.get(
            alert.labels.get("sign", ""), ""
        )
        return any(re.fullmatch(value, code) for code in own.split("|"))
    if label not in labels:
        return label in ("kind", "uuid")
    same = re.fullmatch(value, labels[label]) if how == "=~" else labels[label] == value
    return bool(same) != (how == "!=")


def pairs() -> Iterator[tuple[Alert, Alert]]:
    """Each alert that silences another; where a node or its driver is gone nothing is read."""
    for sources, targets, _ in RULES:
        for source in ALERTS:
            gone = (
                source.name in (AGENT_DOWN, AGENT_BLIND) or source.labels.get("sign") == "no_driver"
            )
            if gone or not all(matches(m, source) for m in sources):
                continue
            if source.name == GPU_MISSING and any("alertname!=" in m for m in targets):
                continue  # of one GPU, whatever it was
            for target in ALERTS:
                if target is not source and all(matches(m, target) for m in targets):
                    yield source, target


PAIRS = {f"{s.name} {s.labels} {t.name} {t.labels}": (s, t) for s, t in pairs()}


@pytest.mark.parametrize("pair", PAIRS)
def test_what_silences_comes_first(pair: str) -> None:
    source, target = PAIRS[pair]
    if (source.name, target.name) in TOGETHER:
        return
    sign = f"{source.name} {source.labels.get('sign', '')}".strip()
    latest = (
        READ.get(sign, READ.get(source.name, intervals.LINKS)) + 2 * SCRAPE + seconds(source.hold)
    )
    earliest = seconds(target.hold) + WAIT[target.severity]
    assert latest <= earliest
