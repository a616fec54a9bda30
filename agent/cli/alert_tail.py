"""Prints alerts of the stack's Alertmanager as they begin and end."""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from agent.ranges import ranges
from agent.stack.http import answer

ACTIVE = "/api/v2/alerts?active=true&silenced=false&inhibited=false"
STATUS = "/api/v2/status"
EVERY = 2.0
"""Seconds between two checks."""

QUIET = "none"
"""Severity of the watchdog, which always fires: no news."""

Alert = Mapping[str, Any]


async def tail_alerts(port: int, say: Callable[[str], None]) -> None:
    """Say each alert once when it arrives, and once when it is over."""
    before: dict[str, Alert] = {}
    since = ""
    while True:
        status, alerts = await _asked(port, STATUS), await _asked(port, ACTIVE)
        if status is not None and alerts is not None:
            now = by_name(alerts)
            same = status["uptime"] == since  # one that was started again knows of nothing yet
            for line in lines(now[one] for one in now.keys() - before.keys()):
                say(f"alert: {line}")
            for line in lines(before[one] for one in before.keys() - now.keys()) if same else ():
                say(f"over: {line}")
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


def by_name(alerts: Iterable[Alert]) -> dict[str, Alert]:
    """Those that are news, by their fingerprint."""
    return {a["fingerprint"]: a for a in alerts if a["labels"].get("severity") != QUIET}


def lines(alerts: Iterable[Alert]) -> Iterator[str]:
    """One line an alert; those of several GPUs of a node share the text of the first."""
    alike: dict[tuple[str, ...], list[Alert]] = {}
    for alert in sorted(alerts, key=_gpu):
        labels = alert["labels"]
        key = [labels.get(name, "") for name in ("alertname", "severity", "instance", "sign")]
        alike.setdefault((*key, "" if _gpu(alert) >= 0 else alert["fingerprint"]), []).append(alert)
    for (name, severity, *_), group in alike.items():
        annotations = group[0]["annotations"]
        gpus = f"GPUs {ranges(map(_gpu, group))}; " if len(group) > 1 else ""
        text = annotations.get("description") or annotations.get("summary", "")
        yield f"{name} ({severity}) {gpus}{text}"


def _gpu(alert: Alert) -> int:
    number = alert["labels"].get("gpu", "")
    return int(number) if number.isdecimal() else -1
