"""Every alert fires and rests as in its case however its machine is scraped: relabelled, renamed,
scraped twice, by an agent that restarts, seldom, or with every third scrape failing; and no rule
fails on any machine."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agent.catalogue import METRICS
from agent.diagnosis.accounting import UNOBSERVED_SECONDS
from agent.faults.promql import HELD, seconds
from agent.sources import gpu
from agent.sources.agent_health import LAST_TICK
from tests.alerts.test_rules import ALERTS, TABLES
from tests.support import alert_input
from tests.support.alert_cases import Table
from tests.support.alert_input import NOT_SCRAPED, SCRAPE, TARGET, Case, Series, named, of_gpu
from tests.support.alert_replay import judged
from tests.support.nightly import NIGHTLY

pytestmark = pytest.mark.promtool

S = alert_input.SYSTEMS[0]
LONGER = 240
"""Seconds, beside its `for`, in which an alert that fires may do so in another way too."""

BETWEEN_RESTARTS = 300
OF_HARDWARE = re.compile(
    r"dgx_(gpu_ecc|gpu_remapped|gpu_retired|nvlink|infiniband|pcie_replays|gpu_energy)"
)
"""Counters that a restart of the agent leaves as they are."""

GROWS = rf"\w+_total\b|{LAST_TICK}"
SHORT = frozenset(
    {"back again", "no longer exported", "seen three times"} | {"half of a rack, since a minute"}
)
"""Alerts that depend on less than two minutes of data: a scrape every two minutes misses it."""

Change = Callable[[Case, int], Series]


class Way(NamedTuple):
    """Way of scraping a machine. `change` gets a case, and the sample from which it differs."""

    name: str
    change: Change
    without: frozenset[str] = frozenset()  # titles of cases, and alerts
    once: bool = False  # of two targets one alerts


def continued(series: Series, longer: float, every: int) -> Series:
    """The same for longer: gauges stay, counters go on as fast as they last did."""
    found: Series = {}
    for name, points in series.items():
        more = round(longer / every)
        last, before = points[-1], points[-2] if len(points) > 1 else points[-1]
        grows = last is not None and before is not None and re.match(GROWS, name)
        step = last - before if grows else 0.0  # type: ignore[operator]
        added = [None if last is None else last + step * (n + 1) for n in range(more)]
        if name.startswith("up{"):  # answered as often as before
            added = (points[-3:] * more)[:more]
        found[name] = [*points, *added]
    return found


def hold_of(case: Case) -> float:
    """Seconds for which the rules of what fires hold."""
    return max(
        seconds(rule.hold)
        for rule in ALERTS
        for labels in case.fires
        if rule.alert == case.alert
        and {**rule.labels, "severity": str(rule.severity)}.items() <= labels.items()
    )


def own(name: str) -> bool:
    """Of the machine that changes; cases of fleets have others."""
    return f'instance="{TARGET["instance"]}"' in name


def labelled(name: str, series: Iterable[str]) -> str:
    """With a label of the owner's that no series of the case has."""
    label = "room" if any('rack="' in other for other in series) else "rack"
    return f'{name.removesuffix("}")}, {label}="r9"}}'


def changing(renaming: Callable[[str, Iterable[str]], str]) -> Change:
    """From one sample on the series of the machine have other labels."""

    def change(case: Case, at: int) -> Series:
        found: Series = {}
        for name, points in case.series.items():
            if own(name):
                found[renaming(name, case.series)] = [*[None] * at, *points[at:]]
            found[name] = [*points[:at], *[None] * (len(points) - at)] if own(name) else points
        return found

    return change


def twice(renaming: Callable[[str, Iterable[str]], str]) -> Change:
    """Both scrapes say which GPU it is that the agent has, and since when the agent runs."""

    def change(case: Case, _: int) -> Series:
        ticks = [p for n, p in case.series.items() if n.startswith(LAST_TICK.name) and own(n)]
        there = [None if tick is None else 1.0 for tick in (ticks or [[]])[0]]
        of_gpus = [of_gpu(UNOBSERVED_SECONDS, S, 0)]
        if not any(name.startswith(f"{gpu.INFO}{{") for name in case.series):
            of_gpus.append(of_gpu(gpu.INFO, S, 0))
        known: Series = dict.fromkeys((*of_gpus, named("process_start_time_seconds")), there)
        if not any(name.startswith("up{") and own(name) for name in case.series):
            known[named("up")] = [0.0 if tick is None else 1.0 for tick in there]
        mine = {n: p for n, p in (known | case.series).items() if own(n)}
        return {**case.series, **mine, **{renaming(n, case.series): p for n, p in mine.items()}}

    return change


def renamed(name: str, _: Iterable[str]) -> str:
    return name.replace(TARGET["instance"], "renamed:9935")


def other_job(name: str, _: Iterable[str]) -> str:
    return name.replace(f'job="{TARGET["job"]}"', 'job="again"')


def thrice(case: Case, at: int) -> Series:
    return twice(renamed)(case._replace(series=twice(labelled)(case, at)), at)


def failing(
    points: alert_input.Points, name: str, missing: Callable[[int], bool]
) -> alert_input.Points:
    silent = 0.0 if name.startswith("up{") else None
    return [silent if missing(at) and p is not None else p for at, p in enumerate(points)]


def restarted(case: Case, _: int) -> Series:
    """A scrape fails every five minutes, and what the agent counts itself begins at 0."""
    apart = max(5, BETWEEN_RESTARTS // case.every)  # of long windows, scraped every two minutes: 10
    found: Series = {}
    for name, points in case.series.items():
        if not own(name):
            found[name] = points
            continue
        counts = re.match(r"\w+_total\b", name) and not OF_HARDWARE.match(name)
        base, begun = 0.0, []
        for at, point in enumerate(points):
            if at and at % apart == 0:
                base = next((p for p in points[at - 1 :: -1] if p is not None), 0.0)
            begun.append(point - base if counts and point is not None else point)
        found[name] = failing(begun, name, lambda at: at > 0 and at % apart == 0)
    return found


def some_fail(apart: int, phase: int) -> Change:
    """One scrape of so many fails."""

    def change(case: Case, _: int) -> Series:
        return {
            name: failing(points, name, lambda at: at % apart == phase) if own(name) else points
            for name, points in case.series.items()
        }

    return change


def each(apart: int, phase: int = 0) -> Change:
    def change(case: Case, _: int) -> Series:
        step = max(1, apart // case.every)
        return {
            name: [p if at % step == phase % step else NOT_SCRAPED for at, p in enumerate(points)]
            for name, points in case.series.items()
        }

    return change


TWO_TARGETS = frozenset({"DgxRulesFailing", "DgxNodeMissing"})
"""Of Prometheus itself; and what was taken out of the inventory was two targets."""

FAILS = frozenset({"each third scrape"})
"""Its scrapes fail by themselves: with more of them it is silent."""
SOMETIMES = frozenset({"DgxAgentDown"})
"""Of a target that answers only sometimes, as each does of which a third of the scrapes fails."""

IN_STEP = frozenset({"scraped every 5 s, over a quarter"})
"""Each evaluation, 15 s apart, would meet a scrape that fails."""

MANY_OF_PORT = "symbol_error, many", "link_error_recovery, many"

WAYS = (
    # the count of a quarter of an hour begins again, that of a day is information meanwhile
    Way("relabelled", changing(labelled), frozenset({"more than may be", *MANY_OF_PORT})),
    # the old name was taken out of the inventory
    Way("renamed", changing(renamed), frozenset({"DgxNodeMissing"})),
    Way("twice, another label", twice(labelled)),
    Way("twice, another name", twice(renamed), TWO_TARGETS, once=True),
    Way("twice, another job", twice(other_job), TWO_TARGETS, once=True),
    Way("thrice", thrice, TWO_TARGETS),
    Way("restarts", restarted, FAILS),
    *(Way(f"a third fails, from {n}", some_fail(3, n), SOMETIMES | IN_STEP) for n in range(3)),
    Way("every 60 s", each(60), SHORT),
    Way("every 120 s", each(120), SHORT),
    Way("every 120 s, from 45 s", each(120, 3), SHORT),
)


def tried(case: Case, way: Way, scrapes: int) -> dict[str, Any]:
    """One test of promtool's: the alerts that fire, whatever labels the way gave them. It ends with
    an evaluation where rules are evaluated each so many scrapes."""
    series = alert_input.with_ticks(case)
    length = max(map(len, series.values()))
    series = {n: [*p, *[None] * (length - len(p))] for n, p in series.items()}
    at = length // 2
    if case.fires:
        at = 2 if way.name == "renamed" else length
        series = continued(series, LONGER + hold_of(case), case.every)
        length = max(map(len, series.values()))
    before = (1 - length) % scrapes
    changed = way.change(case._replace(series=series), at)
    found = {n: [*[NOT_SCRAPED] * before, *p] for n, p in changed.items()}
    dropped = ("instance", "job", "room" if any('rack="' in name for name in series) else "rack")
    # What fires for longer than in its case has errors for a day as well, as information.
    other = "" if any(labels.get("sign") == "slow" for labels in case.fires) else ', sign!="slow"'
    alerts = f'ALERTS{{alertname="{case.alert}", alertstate="firing"{other}}}'
    fixed = {"alertname": case.alert, "alertstate": "firing"}
    wanted = Counter(
        "{" + ", ".join(f"{k}={json.dumps(v)}" for k, v in sorted(rest.items())) + "}"
        for labels in case.fires
        for rest in [{k: v for k, v in {**fixed, **labels}.items() if v and k not in dropped}]
    )
    counted = "count" if way.once else "group"
    mark = f"# {case.title}, {way.name}"  # promtool repeats the expression where it fails
    return {
        "name": f"{case.alert}: {case.title}, {way.name}",
        "interval": f"{case.every}s",
        "input_series": [
            {"series": n, "values": alert_input.notation(p)} for n, p in found.items()
        ],
        "promql_expr_test": [
            {
                "expr": f"{counted} without ({', '.join(dropped)}) ({alerts}) {mark}",
                "eval_time": f"{(before + length - 1) * case.every}s",
                "exp_samples": [
                    {"labels": labels, "value": many if way.once else 1}
                    for labels, many in sorted(wanted.items())
                ],
            }
        ],
    }


def test_what_is_left_out_exists() -> None:
    known = {name for table in TABLES for case in table(S) for name in (case.alert, case.title)}
    assert not {name for way in WAYS for name in way.without} - known


def in_turn() -> list[Any]:
    """Each table in each way; in the short form, but for days of samples, in one of them,
    in turn."""
    found = []
    for number, table in enumerate(TABLES):
        names = [{case.alert, case.title} for case in table(S)]
        seldom = any(case.every > HELD for case in table(S))  # too seldom to know a twin
        ways = [
            way
            for way in WAYS
            if not ((way.once and seldom) or all(name & way.without for name in names))
        ]
        for at, way in enumerate(ways):
            title = f"{table.name}-{way.name}"
            short = number % len(ways) == at and not table.name.endswith("_long")
            marks = () if short else (NIGHTLY,)
            found.append(pytest.param(table, way, id=title, marks=marks))
    return found


@pytest.mark.parametrize(("table", "way"), in_turn())
def test_every_case_holds(
    table: Table, way: Way, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Evaluated as often as the machine is scraped; in the short form each minute, as are long
    windows."""
    often = request.config.getoption("--nightly")
    cases = [case for case in table(S) if not {case.alert, case.title} & way.without]
    every = min(case.every for case in cases)
    # promtool ignores the intervals of groups: the record of owners, 15 s apart, keeps a minute
    apart = SCRAPE if often and every <= SCRAPE else 4 * SCRAPE
    evaluated = apart if every <= HELD else every
    tests = (tried(case, way, max(1, evaluated // case.every)) for case in cases)
    assert judged(tmp_path, {case.alert for case in cases}, evaluated, tests) == ""


@pytest.mark.parametrize(
    ("gpu_of_other", "started", "goes", "alerts"),
    [(0, 1.0, False, 1), (0, 2.0, False, 2), (1, 1.0, False, 2), (0, 1.0, True, 1)],
    ids=["a second name", "started again", "another machine", "the first name goes"],
)
def test_a_second_name_alone_is_silent(
    gpu_of_other: int, started: float, *, goes: bool, alerts: int, tmp_path: Path
) -> None:
    series: Series = {}
    targets = (0, 1.0, 20 if goes else 80), (gpu_of_other, started, 80)
    for second, (number, start, ends) in enumerate(targets):
        mine = {
            of_gpu(UNOBSERVED_SECONDS, S, number): 1.0,
            of_gpu(METRICS["dgx_gpu_row_remap_failure"], S, number): 1.0,
            named("process_start_time_seconds"): start,
            named(LAST_TICK): 1.0,
            named("up"): 1.0,
        }
        for name, value in mine.items():
            series[renamed(name, ()) if second else name] = [value] * ends
    asked = 'count(ALERTS{alertname="DgxGpuRowRemapFailure"})'
    samples = [{"labels": "{}", "value": alerts}]
    expr = {"expr": asked, "eval_time": f"{79 * SCRAPE}s", "exp_samples": samples}
    test = {
        "interval": f"{SCRAPE}s",
        "input_series": [
            {"series": n, "values": alert_input.notation(p)} for n, p in series.items()
        ],
        "promql_expr_test": [expr],
    }
    assert judged(tmp_path, {"DgxGpuRowRemapFailure"}, SCRAPE, [test]) == ""
