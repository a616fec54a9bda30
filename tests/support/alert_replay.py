"""A simulated machine, scraped every second, as the input of `promtool test rules`.

The rules are scaled down by thirty, so that a window of 15 minutes is 30 scrapes; nothing
else of them differs from what users get. The series are those of the default set. The agent's clock
runs at its usual speed.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from agent.config.settings import Settings
from agent.faults.thresholds import AlertThresholds
from agent.model import Snapshot
from alerts.build import rules
from exporters.default_set import DefaultSet
from exporters.prometheus import by_metric, without_single_links
from tests.support.alert_input import TARGET
from tests.support.machines import Played

SCALE = 1 / 30
RECORD = re.compile(r"[a-z_]+:[a-zA-Z0-9_:]+")

Series = dict[str, list[str]]


@cache
def used() -> frozenset[str]:
    """The metrics that the rules ask for: the others need not be replayed."""
    return frozenset(re.findall(r"\bdgx_[a-z0-9_]+", "".join(rules(Settings()).values())))


def record(machine: Played, seconds: int, wanted: frozenset[str]) -> Series:
    """Return the series of its first seconds: one value a second, a gap where there is none."""
    series, default = Series({"up": []}), DefaultSet()
    for moment in machine.until(seconds):
        scrape(moment.snapshot, series, wanted, default)
    return series


def scrape(
    snapshot: Snapshot | None, into: Series, wanted: frozenset[str], default: DefaultSet
) -> None:
    """Append one value to each series of the default set; of no one, where the scrape fails, none
    but `up`."""
    at = len(into["up"])
    into["up"].append("1" if snapshot else "0")
    for name, value in _scraped(snapshot, wanted, default) if snapshot else ():
        values = into.setdefault(name, [])
        values += ["_"] * (at - len(values))
        values.append(value)


def _scraped(
    snapshot: Snapshot, wanted: frozenset[str], default: DefaultSet
) -> Iterator[tuple[str, str]]:
    families = without_single_links(by_metric(snapshot.samples(snapshot.at)))
    for name, samples in default.choose(families, snapshot.at / SCALE).items():
        for metric, labels, value in samples if name in wanted else ():
            named = zip(metric.labels, labels, strict=True)
            yield notation(metric.name, *TARGET.items(), *named), sys.intern(repr(value))
    default.answered("prometheus")


@cache
def notation(name: str, *labels: tuple[str, str]) -> str:
    """A series as promtool writes it."""
    inside = ", ".join(f"{label}={json.dumps(value)}" for label, value in labels)
    return f"{name}{{{inside}}}"


def values(points: list[str], length: int) -> str:
    """Points as promtool writes them, with runs of the same folded; then stale for the rest."""
    folded: list[str] = []
    start = 0
    for at in range(1, len(points) + 1):
        if at == len(points) or points[at] != points[start]:
            folded.append(_run(points[start], at - start))
            start = at
    return " ".join([*folded, *(["stale"] if len(points) < length else [])])


def _run(point: str, times: int) -> str:
    if point == "_":
        return f"_x{times}"
    return point if times == 1 else f"{point}+0x{times - 1}"


def _stale_gaps(points: list[str]) -> list[str]:
    """Prometheus marks a series stale at the first scrape that does not have it."""
    return [
        "stale" if p == "_" and at and points[at - 1] != "_" else p for at, p in enumerate(points)
    ]


PATIENT = Settings(AlertThresholds(silent_for="30m"))
"""Time below which a scale leaves less than the second between two ticks."""

UNASKED = "dgx-report.yaml"
"""Records that the report alone asks for: a third of the time that the rules take."""


@cache
def faster(scale: float) -> Mapping[str, str]:
    """The files of rules at a scale."""
    files = rules(Settings() if scale == SCALE else PATIENT, scale)
    return {name: text for name, text in files.items() if name != UNASKED}


def firing(series: Series, at: int, folder: Path, scale: float = SCALE) -> set[str]:
    """The names of the alerts that fire so many seconds after the start."""
    expr = 'group by (alertname) (ALERTS{alertstate="firing"})'
    said = Replay(folder, faster(scale), evaluated=8).answer(series, expr, at)
    return set(re.findall(r'alertname=\\?"(\w+)\\?"', said))


@dataclass(frozen=True)
class Replay:
    """Files of rules in a folder. Points are `every` seconds apart; rules are evaluated each
    `evaluated` seconds: four are two minutes of a user's at the usual scale."""

    folder: Path
    files: Mapping[str, str]
    every: int = 1
    evaluated: int = 4

    def answer(self, series: Series, expr: str, at: int) -> str:
        """Return the output of promtool for a query so many seconds after the start; empty if it
        finds nothing."""
        for name, text in self.files.items():
            (self.folder / name).write_text(text)
        up = series["up"]
        named = {notation("up", *TARGET.items()): up}
        named |= {name: points for name, points in series.items() if name != "up"}
        test = {
            "rule_files": sorted(self.files),
            "evaluation_interval": f"{self.evaluated}s",
            "tests": [
                {
                    "interval": f"{self.every}s",
                    "input_series": [
                        {"series": name, "values": values(_stale_gaps(points), len(up))}
                        for name, points in named.items()
                    ],
                    "promql_expr_test": [{"expr": expr, "eval_time": f"{at}s", "exp_samples": []}],
                }
            ],
        }
        return run_promtool(self.folder, test)


def run_promtool(folder: Path, *tests: Mapping[str, object]) -> str:
    """Return the output of `promtool test rules` for these tests of the rules in a folder; empty if
    they pass."""
    names = [f"test{number}.yaml" for number in range(len(tests))]
    for name, test in zip(names, tests, strict=True):
        (folder / name).write_text(json.dumps({"group_eval_order": turns(), **test}))
    command = ["promtool", "test", "rules", *names]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def judged(
    folder: Path,
    alerts: Iterable[str],
    every: float,
    tests: Iterable[Mapping[str, object]],
    change: Callable[[str], str] = str,
) -> str:
    """Return the faults that promtool finds in tests of these alerts, whose rules are evaluated
    every so many seconds; empty if there are none. `change` gets the text of the rules."""
    (folder / "rules.yaml").write_text(change(rules_of(alerts, texts=False)))
    interval = f"{every}s"
    content = {"rule_files": ["rules.yaml"], "evaluation_interval": interval, "tests": [*tests]}
    return run_promtool(folder, content)


@cache
def rule_groups() -> list[dict[str, Any]]:
    """The groups of rules as users get them."""
    texts = rules(Settings()).values()
    return [group for text in texts for group in yaml.safe_load(text)["groups"]]


@cache
def turns() -> list[str]:
    """The names of the groups, those that record first: promtool takes them in a random order, and
    what is recorded later is late or too old for an alert."""
    return [one["name"] for one in sorted(rule_groups(), key=lambda g: "alert" in g["rules"][0])]


def rules_of(alerts: Iterable[str], *, texts: bool) -> str:
    """The rules of these alerts, with or without their texts, and the recording rules that they
    read: promtool evaluates all of a file, a hundred times in a day of samples."""
    records = {r["record"]: r["expr"] for g in rule_groups() for r in g["rules"] if "record" in r}
    wanted = set(alerts)
    exprs = [r["expr"] for g in rule_groups() for r in g["rules"] if r.get("alert") in wanted]
    while found := set(RECORD.findall(" ".join(exprs))) & records.keys() - wanted:
        wanted |= found
        exprs = [records[name] for name in found]
    kept = [
        {
            **group,
            "rules": [
                {key: value for key, value in rule.items() if texts or key != "annotations"}
                for rule in group["rules"]
                if (rule.get("alert") or rule["record"]) in wanted
            ],
        }
        for group in rule_groups()
    ]
    return json.dumps({"groups": [group for group in kept if group["rules"]]})
