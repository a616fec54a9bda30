"""The Alertmanager configuration: routes, repeat intervals, and alerts that silence others: one
message per fault.

An alert that silences another must be there before that is sent. So the rules hold in steps: counts
of every second and lost data (0 to 2 min), links and the driver's requests (3 min), lesser errors
(5 min), faults that only wait for a reset (8 min and more). tests/alerts/test_inhibitions.py holds
them to it.
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
    """Route of the alerts of a severity to their receiver, which is named after it."""

    severity: str
    wait: str  # for more of the same rack and cause before the first message
    interval: str  # between two messages about them
    repeat: str  # until a message without a reaction is sent again


ROUTES = (
    Route("critical", "10s", "1m", "4h"),
    Route("warning", "30s", "5m", "12h"),
    Route("info", "1m", "15m", "24h"),
)
GROUPED = ["cluster", "rack", "alertname"]
"""A single message for a common cause: a switch with four nodes behind it, a room that gets hot."""

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
    """Return the text of alertmanager.yaml; raises ConfigError for an incomplete receiver."""
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
    """YAML without anchors: receivers with equal settings are written out."""

    def ignore_aliases(self, _: Any) -> bool:
        return True
