"""Input of the rules, as `promtool test rules` takes it: a sample every 15 s.

A series is a list of values, None where there is none; a case says which alerts must fire at its
end, by their labels, and that no others of that name do.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from math import isnan, nan
from pathlib import Path
from typing import NamedTuple

from agent.catalogue import METRICS
from agent.diagnosis.accounting import UNOBSERVED_SECONDS
from agent.sources.agent_health import LAST_TICK

JOB = "dgx-telemetry"
SCRAPE = 15
"""Seconds between two scrapes."""

TARGET = {"instance": "box:9935", "job": JOB}

NOT_SCRAPED = nan
"""At this time no one asked; where somebody did and there was no value, it is None."""

Points = list[float | None]
Series = dict[str, Points]


class System(NamedTuple):
    """Differences between the systems for which every case is tried."""

    name: str
    uuid: str
    gpus: int
    links: int
    generation: int


DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
FLAGS = {(alert, sign) for alert, sign in DATA["flags"]}
"""Alerts, with their sign, of what is so or is not: there is no figure and no limit to name."""

SYSTEMS = (
    System("dgx-h100", "GPU-83586c64", 8, 18, 5),
    System("dgx-station-v100", "GPU-6652edf7", 4, 4, 3),
)


class Case(NamedTuple):
    """Series, and the labels of the alerts that fire at their end; none where it rests. Points are
    `every` seconds apart."""

    alert: str
    title: str
    series: Series
    fires: tuple[Mapping[str, str], ...] = ()
    every: int = SCRAPE


def scrapes(minutes: float, every: int = SCRAPE) -> int:
    """Samples in so many minutes, one every so many seconds."""
    return round(minutes * 60 / every)


def named(metric: object, /, **labels: str) -> str:
    """A series of the target."""
    inside = ", ".join(f"{k}={json.dumps(v)}" for k, v in {**TARGET, **labels}.items())
    return f"{metric}{{{inside}}}"


def of_gpu(metric: object, system: System, gpu: int = 1, /, **labels: str) -> str:
    """A series of one GPU."""
    return named(metric, gpu=str(gpu), uuid=uuid(system, gpu), **labels)


def uuid(system: System, gpu: int = 1) -> str:
    return f"{system.uuid}-{gpu}"


def on(system: System, severity: str, gpu: int = 1, **labels: str) -> dict[str, str]:
    """Labels of an alert of one GPU."""
    return {"severity": severity, "gpu": str(gpu), "uuid": uuid(system, gpu), **labels}


def steady(value: float, minutes: float) -> Points:
    """The same value all the time."""
    return [value] * (scrapes(minutes) + 1)


def growing(*parts: tuple[float, float], start: float = 0.0, every: int = SCRAPE) -> Points:
    """A counter from `start` that grows so much a second for so many minutes, part by part."""
    points: Points = [start]
    value = start
    for minutes, each_second in parts:
        for _ in range(scrapes(minutes, every)):
            value += each_second * every
            points.append(round(value, 6))
    return points


def notation(points: Points) -> str:
    """Points as promtool writes them: one that ends is marked stale, as Prometheus does."""
    words, there = [], False
    for point in points:
        if point is not None and isnan(point):
            words.append("_")
            continue
        words.append("stale" if point is None and there else "_" if point is None else repr(point))
        there = point is not None
    return " ".join(words)


OF_GPU = re.compile(r'gpu="\d+", uuid="[^"]+"')
TARGET_LABELS = re.compile(r'instance="[^"]*", job="[^"]*"')


def _dropped(series: str) -> bool:
    """Whether a series of a GPU has lost the label that says of which."""
    metric = METRICS.get(series.partition("{")[0])
    return metric is not None and "uuid" in metric.labels and "uuid=" not in series


def with_ticks(case: Case) -> Series:
    """The series of a case, with their targets, the ticks of agents that answer, and the GPUs."""
    series = dict(case.series)
    length = max(map(len, series.values()))
    for target in sorted({t for name in series for t in TARGET_LABELS.findall(name)}):
        there: Points = [1.0] * length
        name = next((n for n in series if n.startswith(f"up{{{target}")), f"up{{{target}}}")
        up = series.setdefault(name, there)
        ticks = [1.7e9 + at * case.every if point else None for at, point in enumerate(up)]
        series.setdefault(f"{LAST_TICK}{{{target}}}", ticks)
        gpus = {gpu for name in case.series for gpu in OF_GPU.findall(name)}
        for gpu in gpus | ({""} if any(map(_dropped, case.series)) else set()):
            of_gpu = f"{target}, {gpu}" if gpu else target
            series.setdefault(f"{UNOBSERVED_SECONDS}{{{of_gpu}}}", [t and 1.0 for t in ticks])
    return series


def group(case: Case, scrapes: int = 1) -> dict[str, object]:
    """One test of a file for promtool; it ends with an evaluation where rules are evaluated each so
    many scrapes."""
    interval = case.every
    series = with_ticks(case)
    length = max(len(points) for points in series.values())
    before = (1 - length) % scrapes
    padded = {
        n: [*[NOT_SCRAPED] * before, *p, *[None] * (length - len(p))] for n, p in series.items()
    }
    wanted = [{"exp_labels": {"severity": "", **TARGET, **labels}} for labels in case.fires]
    return {
        "name": f"{case.alert}: {case.title}",
        "interval": f"{interval}s",
        "input_series": [{"series": n, "values": notation(p)} for n, p in padded.items()],
        "alert_rule_test": [
            {
                "eval_time": f"{(before + length - 1) * interval}s",
                "alertname": case.alert,
                "exp_alerts": [
                    {"exp_labels": {k: v for k, v in a["exp_labels"].items() if v}} for a in wanted
                ],
            }
        ],
    }
