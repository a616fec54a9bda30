"""Prints alerts of the stack's Alertmanager as they begin and end."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from agent.stack.http import answer

ACTIVE = "/api/v2/alerts?active=true&silenced=false&inhibited=false"
STATUS = "/api/v2/status"
EVERY = 2.0
"""Seconds between two checks."""

QUIET = "none"
"""Severity of the watchdog, which always fires: no news."""

Alert = Mapping[str, Any]


async def report_arrivals(port: int, say: Callable[[str], None]) -> None:
    """Say each alert once when it arrives, and once when it is over."""
    before: dict[str, str] = {}
    since = ""
    while True:
        status, alerts = await _asked(port, STATUS), await _asked(port, ACTIVE)
        if status is not None and alerts is not None:
            now = told(alerts)
            same = status["uptime"] == since  # one that was started anew knows of nothing yet
            for fingerprint in now.keys() - before.keys():
                say(f"alert: {now[fingerprint]}")
            for fingerprint in before.keys() - now.keys() if same else ():
                say(f"over: {before[fingerprint]}")
            before = now if same else {**before, **now}
            since = status["uptime"]
        await asyncio.sleep(EVERY)


async def _asked(port: int, path: str) -> Any:
    """The answer, or None where there is no whole one."""
    status, body = await answer(port, path)
    try:
        return json.loads(body) if status == 200 else None
    except ValueError:
        return None


def told(alerts: list[Alert]) -> dict[str, str]:
    """One line an alert, by its fingerprint."""
    return {
        alert["fingerprint"]: _line(alert["labels"], alert["annotations"])
        for alert in alerts
        if alert["labels"].get("severity") != QUIET
    }


def _line(labels: Mapping[str, str], annotations: Mapping[str, str]) -> str:
    text = annotations.get("description") or annotations.get("summary", "")
    return f"{labels.get('alertname')} ({labels.get('severity')}) {text}"
