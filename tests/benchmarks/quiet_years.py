"""Years of healthy nodes through the rules as users get them: how often would somebody be paged?

    python -m tests.benchmarks.quiet_years --years 6           # every system
    python -m tests.benchmarks.quiet_years --years 0.04 --check 7

One node of each system (`quiet_node.py` says what healthy is), scraped every two minutes: a real
VictoriaMetrics holds the series, `vmalert -replay` evaluates every rule with its `for`, and what
fired as critical or warning is a page. `--check` gives the first days of each node to promtool
too, and compares. Prints each page, and pages a node and year with their 95 % interval; exits 1
for any.
"""

import json
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from math import log, sqrt
from pathlib import Path
from random import Random

import yaml

from agent.config.settings import Settings
from agent.simulator import models
from alerts.build import rules
from tests.benchmarks.quiet_node import EVERY, START, QuietNode, Timeline, lines
from tests.support.alert_input import notation
from tests.support.alert_replay import RECORD, UNASKED, run_promtool
from tests.support.prometheus import free_port, wait_for

YEAR, DAY = 365.25 * 86_400, 86_400
PAGES = ("critical", "warning")
Fired = tuple[str, str, str]  # instance, alert, its other labels


def nodes(days: float, systems: Sequence[str], seed: int) -> Iterator[QuietNode]:
    """One healthy node of each system."""
    for name in systems:
        line = Timeline(round(days * DAY / EVERY), Random(f"{seed} {name}"))
        yield QuietNode(f"{name}:9935", name, line)


@contextmanager
def victoria(folder: Path) -> Iterator[str]:
    """The address of an empty VictoriaMetrics."""
    address = f"127.0.0.1:{free_port()}"
    words = ["victoria-metrics", f"-httpListenAddr={address}", "-retentionPeriod=100y"]
    words += [f"-storageDataPath={folder / 'store'}", "-search.latencyOffset=0s"]
    words += ["-search.disableCache", "-search.maxQueryDuration=10m"]
    words += ["-search.maxPointsPerTimeseries=100000", "-loggerLevel=ERROR"]
    with subprocess.Popen(words) as server:
        try:
            wait_for(f"http://{address}/health")
            yield f"http://{address}"
        finally:
            server.terminate()


def post(address: str, path: str, body: bytes = b"") -> None:
    with urllib.request.urlopen(urllib.request.Request(address + path, body, method="POST")):
        pass


def load(address: str, node: QuietNode) -> int:
    """Samples of the node that the server took in."""
    taken, batch = 0, []
    for line in lines(node):
        batch.append(line)
        taken += line.count(b",") // 2
        if len(batch) == 20:
            post(address, "/api/v1/import", b"".join(batch))
            batch = []
    post(address, "/api/v1/import", b"".join(batch))
    return taken


def parts(files: Mapping[str, str]) -> Iterator[str]:
    """Rules without texts (a replay has no `query` for them): files of which each reads the records
    of those before it alone."""
    every = [group for text in files.values() for group in yaml.safe_load(text)["groups"]]
    left = [(group["name"], rule) for group in every for rule in group["rules"]]
    while left:
        unknown = {rule["record"] for _, rule in left if "record" in rule}
        ready: dict[str, list[object]] = {}
        for name, rule in left:
            rule.pop("annotations", None)
            if not unknown & set(RECORD.findall(rule["expr"])) - {rule.get("record")}:
                ready.setdefault(name, []).append(rule)
        assert ready, f"a circle of {unknown}"
        left = [(name, rule) for name, rule in left if rule not in ready.get(name, ())]
        named = ({"name": n, "interval": f"{EVERY}s", "rules": found} for n, found in ready.items())
        yield json.dumps({"groups": list(named)})


def evaluate(address: str, files: Mapping[str, str], folder: Path, end: float) -> None:
    """Replay rules over all the time; records come before what reads them."""
    since, until = (datetime.fromtimestamp(at, UTC).isoformat()[:19] + "Z" for at in (START, end))
    for text in parts(files):
        (folder / "rules.json").write_text(text)
        words = ["vmalert", f"-rule={folder / 'rules.json'}", f"-datasource.url={address}"]
        words += [f"-remoteWrite.url={address}", f"-evaluationInterval={EVERY}s"]
        words += [f"-replay.timeFrom={since}", f"-replay.timeTo={until}"]
        words += ["-replay.maxDatapointsPerQuery=30000", "-replay.rulesDelay=0s"]
        words += [f"-datasource.queryStep={EVERY}s", "-replay.disableProgressBar"]
        words += ["-loggerLevel=WARN", "-external.url=http://x"]
        words += ["-remoteWrite.flushInterval=100ms", "-remoteWrite.maxQueueSize=10000000"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        post(address, "/internal/force_flush")


def fired(address: str) -> dict[Fired, list[float]]:
    """Return the times of the evaluations at which each alert fired."""
    match = urllib.parse.urlencode({"match[]": 'ALERTS{alertstate="firing"}'})
    found: dict[Fired, list[float]] = {}
    with urllib.request.urlopen(f"{address}/api/v1/export?{match}") as answer:
        for line in answer:
            one = json.loads(line)
            found.setdefault(_key(one["metric"]), []).extend(at / 1000 for at in one["timestamps"])
    return {key: sorted(at) for key, at in found.items() if key[1] != "DgxWatchdog"}


def _key(labels: Mapping[str, str]) -> Fired:
    names = {"__name__", "alertstate", "alertname", "instance", "job", "alertgroup"}
    rest = " ".join(f"{k}={v}" for k, v in sorted(labels.items()) if k not in names)
    return labels.get("instance", ""), labels["alertname"], rest


def by_promtool(node: QuietNode, files: Mapping[str, str], folder: Path, days: float) -> set[Fired]:
    """Return the alerts that promtool finds to fire within the first days of a node."""
    steps = round(days * DAY / EVERY)
    series = []
    for (name, labels), points in node.series():
        inside = ", ".join(f"{k}={json.dumps(v)}" for k, v in labels)
        series.append({"series": f"{name}{{{inside}}}", "values": notation(points[:steps])})
    alerts = 'ALERTS{alertstate="firing", alertname!="DgxWatchdog"}'
    asked = f"count_over_time({alerts}[{steps * EVERY}s])"
    for name, text in files.items():
        (folder / name).write_text(text)
    expr = {"expr": asked, "eval_time": f"{(steps - 1) * EVERY}s", "exp_samples": []}
    tests = [{"interval": f"{EVERY}s", "input_series": series, "promql_expr_test": [expr]}]
    content = {"rule_files": sorted(files), "evaluation_interval": f"{EVERY}s", "tests": tests}
    said = run_promtool(folder, content)
    found = set()
    for part in said.partition("got:")[2].split("}")[:-1]:
        pairs = (pair.partition("=") for pair in part.partition("{")[2].split(", "))
        found.add(_key({name: json.loads(value) for name, _, value in pairs}))
    assert found or not said, said
    return found


def spans(times: Sequence[float]) -> Iterator[tuple[float, float]]:
    """From when to when it fired, without a gap."""
    begun = last = times[0]
    for at in times[1:]:
        if at - last > EVERY:
            yield begun, last
            begun = at
        last = at
    yield begun, last


def judge(days: float, systems: Sequence[str], seed: int, check: float) -> tuple[int, int]:
    """Pages, and rules on which promtool and vmalert differ."""
    files = {n: t for n, t in rules(Settings()).items() if n != UNASKED}
    began, found = time.monotonic(), list(nodes(days, systems, seed))
    with tempfile.TemporaryDirectory() as place, victoria(Path(place)) as address:
        samples = sum(load(address, node) for node in found)
        post(address, "/internal/force_flush")
        took = time.monotonic() - began
        print(
            f"{len(found)} nodes, {days:.1f} days: {samples:.3g} samples in {took:.0f} s",
            flush=True,
        )
        evaluate(address, files, Path(place), START + days * DAY)
        times = fired(address)
    differ = 0
    for node in found if check else ():
        with tempfile.TemporaryDirectory() as place:
            theirs = by_promtool(node, files, Path(place), check)
        until = START + check * DAY
        mine = {key for key, at in times.items() if key[0] == node.name and at[0] < until}
        differ += len(theirs ^ mine)
        for key in sorted(theirs ^ mine):
            print(f"only {'promtool' if key in theirs else 'vmalert'}: {' '.join(key)}")
    pages = 0
    counted: Counter[str] = Counter()
    for key, at in sorted(times.items()):
        worst = next((s for s in (*PAGES, "info") if f"severity={s}" in key[2]), "")
        each = list(spans(at))
        counted[f"{worst} {key[1]}"] += len(each)
        if worst in PAGES:
            pages += len(each)
            for first, last in each:
                hours, lasted = (first - START) / 3600, (last - first) / 60
                print(f"PAGE {key[0]} {key[1]} {key[2]} after {hours:.2f} h for {lasted:.0f} min")
    print("fired: " + ", ".join(f"{n} x {what}" for what, n in sorted(counted.items())))
    print(f"{time.monotonic() - began:.0f} s")
    return pages, differ


def most(pages: int, years: float) -> float:
    """The upper end of the 95 % interval of a rate, a node and year (Poisson, one-sided)."""
    if pages == 0:
        return -log(0.05) / years
    return (pages + 1.96 * sqrt(pages) + 2) / years


def main() -> int:
    parser = ArgumentParser(prog="python -m tests.benchmarks.quiet_years")
    parser.add_argument("systems", nargs="*", default=list(models.ALL))
    parser.add_argument("--years", type=float, default=6.0, help="node-years, all nodes together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", type=float, default=0.0, help="days for promtool too")
    asked = parser.parse_args()
    days = asked.years * YEAR / DAY / len(asked.systems)
    pages, differ = judge(days, asked.systems, asked.seed, asked.check)
    print(
        f"{pages} pages in {asked.years:g} node-years: {pages / asked.years:.2f} a node and year, "
        f"at most {most(pages, asked.years):.2f} with 95 %"
    )
    return int(bool(pages or differ))


if __name__ == "__main__":
    sys.exit(main())
