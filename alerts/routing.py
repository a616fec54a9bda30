"""The Alertmanager configuration: routes, repeat intervals, and inhibitions, with which each fault
results in a single message.

An inhibiting alert must fire before the alert that it silences would be sent. Therefore, the hold
times of rules are staggered: per-second counts and lost data (0 to 2 min), links and requests of
the driver (3 min), lesser errors (5 min), and faults that only wait for a reset (8 min and longer).
tests/alerts/test_inhibitions.py verifies this order.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import yaml

from agent.config.configuration import ConfigError
from agent.faults.hiding import inhibitions
from agent.faults.model import Fault
from agent.faults.thresholds import RuleParameters
from alerts.receivers import Receivers, missing, ways, webhook


class Route(NamedTuple):
    """Route for alerts of a severity, to the receiver that has the name of the severity."""

    severity: str
    wait: str  # wait for alerts of the same rack and cause
    interval: str  # between messages on these alerts
    repeat: str  # before an unresolved message is repeated


ROUTES = (
    Route("critical", "10s", "1m", "4h"),
    Route("warning", "30s", "5m", "12h"),
    Route("info", "1m", "15m", "24h"),
)
GROUPED = ["cluster", "rack", "alertname"]
"""Labels by which alerts with a common cause, such as a hot room, are grouped into one message."""

WATCHDOG = Route("none", "1s", "1m", "1m")


def _route(route: Route, receiver: str, parameters: RuleParameters) -> dict[str, Any]:
    return {
        "receiver": receiver,
        "matchers": [f'severity="{route.severity}"'],
        "group_wait": parameters.over(route.wait),
        "group_interval": parameters.over(route.interval),
        "repeat_interval": parameters.over(route.repeat),
    }


def configuration(r: Receivers, parameters: RuleParameters, faults: Sequence[Fault]) -> str:
    """Return the text of alertmanager.yaml. Raise ConfigError if a receiver is incomplete."""
    wrong = missing(r)
    if wrong:
        raise ConfigError(wrong)
    watchdog = webhook(r.watchdog_url, r.watchdog_token_file) | {"send_resolved": False}
    target = {"webhook_configs": [watchdog]} if r.watchdog_url else {}
    receivers = [
        {"name": route.severity, **ways(r, page=route.severity == "critical")} for route in ROUTES
    ]
    routes = [_route(WATCHDOG, "watchdog", parameters)]
    routes += [_route(route, route.severity, parameters) for route in ROUTES]
    content = {
        "route": {"receiver": "warning", "group_by": GROUPED, "routes": routes},
        "inhibit_rules": [
            {key: list(value) for key, value in rule._asdict().items()}
            for rule in inhibitions(faults)
        ],
        "receivers": [*receivers, {"name": "watchdog", **target}],
    }
    return yaml.dump(content, Dumper=_Plain, sort_keys=False, width=100)


class _Plain(yaml.SafeDumper):
    """Writes YAML without anchors. Receivers with the same settings are repeated."""

    def ignore_aliases(self, _: Any) -> bool:
        return True
