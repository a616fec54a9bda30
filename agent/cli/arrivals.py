"""Prints alerts of the stack's Alertmanager as they begin and end."""

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from agent.model import ranges
from agent.stack.http import answer

ACTIVE = "/api/v2/alerts?active=true&silenced=false&inhibited=false"
STATUS = "/api/v2/status"
EVERY = 2.0
"""Seconds between two checks."""

QUIET = "none"
"""Severity of the watchdog, which always fires: no news."""

OF_ONE = ("gpu", "uuid", "pci_bus_id", "serial", "link", "culprit")
"""Labels that say which GPU it is, or which part of it."""

DIGITS = re.compile(r"[0-9]+")

Alert = Mapping[str, Any]


async def report_arrivals(port: int, say: Callable[[str], None]) -> None:
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
    """One line an alert; GPUs of a node of which the same is shown, but for figures, share one."""
    alike: dict[tuple[str, ...], list[Alert]] = {}
    for alert in sorted(alerts, key=_gpu):
        alike.setdefault(_gist(alert), []).append(alert)
    for group in alike.values():
        first, labels = _text(group[0]), group[0]["labels"]
        if len(group) > 1:
            gpus = f"GPUs {ranges(map(_gpu, group))}"
            first = (
                f"{gpus}: {first}" if _place(labels) not in first else _of_all(first, labels, gpus)
            )
        yield f"{labels.get('alertname')} ({labels.get('severity')}) {first}"


def _of_all(text: str, labels: Mapping[str, str], gpus: str) -> str:
    """The text of one GPU as that of all; its figures stay its own, which is said."""
    return f"{text.replace(_place(labels), gpus, 1)} (Figures of GPU {labels['gpu']}.)"


def _place(labels: Mapping[str, str]) -> str:
    """How descriptions name a GPU."""
    return f"GPU {labels.get('gpu')} ({labels.get('uuid')})"


def _gist(alert: Alert) -> tuple[str, ...]:
    """What alerts of several GPUs have in common where they are one piece of news."""
    labels = {name: value for name, value in alert["labels"].items() if name not in OF_ONE}
    text = _text(alert).replace(_place(alert["labels"]), "")
    if not alert["labels"].get("gpu", "").isdecimal():
        return (alert["fingerprint"],)
    return *(f"{name}={value}" for name, value in sorted(labels.items())), DIGITS.sub("", text)


def _gpu(alert: Alert) -> int:
    number = alert["labels"].get("gpu", "")
    return int(number) if number.isdecimal() else -1


def _text(alert: Alert) -> str:
    annotations = alert["annotations"]
    return str(annotations.get("description") or annotations.get("summary", ""))
