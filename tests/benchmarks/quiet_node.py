"""A healthy node over weeks, as Prometheus would hold it: a model of what its agent exports.

What never changes comes from the golden exposition of the node's system: the first two of its GPUs,
one of its links, disks and ports each, and six XIDs. What moves is modelled: jobs of all kinds,
restarts of the agent, driver upgrades, reboots, clock corrections, user programs that fail,
scrapes that fail, a Prometheus that is away. A node that is upgraded or reboots is drained in the
inventory, as deploy/fleet asks; no job loses a tenth of its time to a cause that is known.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from agent.catalogue import METRICS
from agent.diagnosis.accounting import STATE, STATE_SECONDS, UNOBSERVED_SECONDS
from agent.diagnosis.job_watch import REFERENCE
from agent.diagnosis.pulses import STEP, STEPS
from agent.limits import paths
from agent.model import GPU_LABELS
from agent.sources import (
    activity,
    agent_health,
    allocation,
    ecc,
    gpu,
    infiniband,
    nvlink,
    pcie,
    process,
    system,
    temperature,
    xid,
)
from agent.sources.agent_health import ABSENT_VALUES, BUILD_INFO, CLOCK_STEPS, LAST_TICK, SOURCE_UP
from tests.support.alert_input import JOB
from tests.support.alert_replay import used
from tests.support.repository import TESTS

REPLAYS = METRICS["dgx_pcie_replays_total"]
EVERY = 120
"""Seconds between two scrapes, and between two evaluations."""

TEMPLATES = {"dgx-h100": "dgx-h200", "dgx-1-v100": "dgx-1-v100-starved"}
"""Systems whose golden file serves where the system's own shows a fault."""

GPUS = 2
FULL = (
    (pcie.GENERATION.name, pcie.GENERATION_LIMIT.name),
    (system.GPUS.name, system.GPUS_EXPECTED.name),
)
OF_USERS = ("13", "31", "43")
SICK = ("dgx_gpu_hung_info", "dgx_nvswitch_errors_total", "dgx_raid_member_failed")
PAIRS = {"busy/none", "idle/none", "held/none", "hung/none", "communicating/nvlink"}
PAIRS |= {f"starved/{cause}" for cause in ("disk", "cpu", "host_thread", "unknown", "peer")}
PAIRS |= {"throttled/power", "throttled/thermal"}
KEPT_PAIRS = {STATE.name: {"hung/none"}, STATE_SECONDS.name: PAIRS}

Labels = tuple[tuple[str, str], ...]
Key = tuple[str, Labels]
Points = list[float | None]
Shares = dict[str, float]

MODELLED = {
    *(STATE_SECONDS, UNOBSERVED_SECONDS, STEP, STEPS, REFERENCE, activity.ACTIVITY),
    *(activity.SM_ACTIVE, allocation.ALLOCATED, agent_health.GPU_READ_SECONDS, process.PROCESSES),
    *(temperature.TEMPERATURE, temperature.MARGIN, temperature.MEMORY_TEMPERATURE),
    *(pcie.GENERATION, REPLAYS, ecc.ERRORS, xid.XID_ERRORS, nvlink.ERRORS, infiniband.ERRORS),
    *(paths.SATURATED, paths.OBSERVED, paths.RATIO, LAST_TICK, CLOCK_STEPS, BUILD_INFO),
    *(SOURCE_UP, ABSENT_VALUES, system.GPUS, system.GPUS_EXPECTED),
}
OF_AGENT = {m.name for m in (STATE_SECONDS, UNOBSERVED_SECONDS, STEPS, xid.XID_ERRORS)} | {
    m.name for m in (paths.SATURATED, paths.OBSERVED, CLOCK_STEPS)
}
"""Counters that begin again with the agent."""


def template(name: str) -> dict[Key, float]:
    """The series of a system that the rules ask for, as its golden exposition has them."""
    wanted = TEMPLATES.get(name, name)
    files = sorted(
        (TESTS / "golden").glob(f"{wanted}*.prom"), key=lambda f: ("training" not in f.name, f.name)
    )
    found: dict[Key, float] = {}
    first: dict[str, str] = {}  # device of each metric and path of the host
    for line in files[0].read_text().splitlines():
        parsed = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)$", line)
        if parsed and parsed[1] in used():
            labels = tuple(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', parsed[2] or ""))
            of = dict(labels)
            device = of.get("device", "") if not of.get("gpu") else ""
            one = first.setdefault(parsed[1] + of.get("path", ""), device) if device else ""
            if device == one and _kept(parsed[1], of):
                found[parsed[1], labels] = float(parsed[3])
    for metric, labels in list(found):  # as on a machine at work, with all that its sheet says
        for now, full in FULL:
            if metric == now and (full, labels) in found:
                found[metric, labels] = found[full, labels]
        if metric == gpu.INFO.name:
            of_gpu = tuple(pair for pair in labels if pair[0] in GPU_LABELS)
            found |= {(xid.XID_ERRORS.name, (*of_gpu, ("xid", code))): 0.0 for code in OF_USERS}
    return found


def _kept(metric: str, labels: dict[str, str]) -> bool:
    """Of what is many times there, one or two."""
    if int(labels.get("gpu") or 0) >= GPUS or labels.get("link", "0") != "0":
        return False
    counts = metric in (paths.SATURATED.name, paths.OBSERVED.name)
    tests: dict[str, Callable[[str], bool]] = {
        "xid": lambda code: code in {"13", "31", "43", "48", "79", "154"},
        "state": lambda state: (
            metric not in KEPT_PAIRS or f"{state}/{labels['cause']}" in KEPT_PAIRS[metric]
        ),
        "limit": lambda limit: limit == "memory",
        "path": lambda path: (
            counts or (path != "nvlink" and labels["direction"] in ("receive", "read"))
        ),
        "source": lambda source: source == "nvml",
    }
    kept = all(test(labels[name]) for name, test in tests.items() if name in labels)
    return kept and metric != ABSENT_VALUES.name


@dataclass
class Timeline:
    """Timeline of one node: its state at each scrape."""

    steps: int
    random: Random
    shares: list[tuple[Shares, Shares]] = field(default_factory=list)  # of GPU 0, of the others
    disk: list[float] = field(default_factory=list)  # share of the time that the disk is full
    away: set[int] = field(default_factory=set)  # no scrape at all: Prometheus is away
    failed: set[int] = field(default_factory=set)  # the scrape fails
    drained: set[int] = field(default_factory=set)  # and the inventory says that it is drained
    released: set[int] = field(default_factory=set)  # the driver is released for an upgrade
    begun: set[int] = field(default_factory=set)  # the agent has restarted
    booted: set[int] = field(default_factory=set)
    stepped: set[int] = field(default_factory=set)  # the clock was set
    versions: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        while len(self.shares) < self.steps:
            weekend = len(self.shares) * EVERY // 86_400 % 7 >= 5
            weights = (6, 2, 1, 2, 12) if weekend else (6, 4, 4, 2, 4)
            kinds = (self._training, self._short_jobs, self._notebook, self._server, self._rest)
            self.random.choices(kinds, weights)[0]()
        self._happenings()

    def _spend(self, one: Shares, others: Shares | None = None, disk: float = 0.0) -> None:
        self.shares.append((one, one if others is None else others))
        self.disk.append(disk)

    def _hours(self, least: float, most: float) -> int:
        return max(1, round(self.random.uniform(least, most) * 3600 / EVERY))

    def _training(self) -> None:
        """A job on all GPUs: it loads, works, and writes a checkpoint every 20 to 60 minutes."""
        draw, between = self.random.uniform, self.random.randint(10, 30)
        lost = {
            "starved/disk": draw(0, 0.02),
            "starved/cpu": draw(0, 0.02),
            "starved/host_thread": draw(0, 0.02),
            "starved/unknown": draw(0, 0.06),
            "communicating/nvlink": draw(0, 0.18),
            "throttled/power": draw(0, 0.05),
        }
        work = {**lost, "busy/none": 1 - sum(lost.values())}
        loads = {"starved/disk": 0.6, "starved/cpu": 0.2, "busy/none": 0.2}
        writes = {"starved/disk": 0.3, "busy/none": 0.7}
        for step in range(self._hours(0.5, 40)):
            early, saving = step == 0, step % between == between - 1
            self._spend(loads if early else writes if saving else work, disk=0.8 * early)

    def _short_jobs(self) -> None:
        """Ten to forty jobs of ten minutes and more, one after the other."""
        for _ in range(self.random.randint(10, 40)):
            for step in range(self.random.randint(5, 15)):
                self._spend(SHORT_LOAD if step == 0 else BUSY)
            for _ in range(self.random.randint(1, 5)):
                self._spend(IDLE)

    def _notebook(self) -> None:
        """Somebody thinks; now and then a cell runs on one GPU."""
        for _ in range(self._hours(0.5, 6)):
            runs = self.random.random() < 0.2
            now = {"busy/none": 0.3, "starved/unknown": 0.7} if runs else {"held/none": 1.0}
            self._spend(now, others=IDLE)

    def _server(self) -> None:
        """Requests come by the hour of the day."""
        for step in range(self._hours(4, 48)):
            work = (
                0.1 + 0.4 * (step * EVERY // 3600 % 24 in range(8, 20)) + self.random.random() / 5
            )
            waits = min(1 - work, self.random.uniform(0, 0.2))
            self._spend(
                {"busy/none": work, "starved/unknown": waits, "idle/none": 1 - work - waits}
            )

    def _rest(self) -> None:
        for _ in range(self._hours(0.2, 12)):
            self._spend(IDLE)

    def _times(self, days: float) -> Iterator[int]:
        """Once in so many days, at random."""
        at = 0.0
        while True:
            at += self.random.expovariate(EVERY / 86_400 / days)
            if at >= self.steps - 30:
                return
            yield int(at)

    def _happenings(self) -> None:
        self.failed |= {n for n in range(self.steps) if self.random.random() < 0.003}
        for at in self._times(30):
            self.away |= set(range(at, at + self.random.randint(3, 25)))
        for at in self._times(7):
            self._restart(at, 1)
        for at in self._times(30):  # an upgrade of the driver with the agent stopped
            self._restart(at, self.random.randint(4, 12), drained=True)
        for at in self._times(60):  # or released
            self.released |= set(range(at, at + self.random.randint(4, 12)))
        for at in self._times(30):
            self._restart(at, self.random.randint(3, 7), drained=True)
            end = min(self.steps - 1, max(self.failed))
            self.booted.add(end)
            if self.random.random() < 0.3:  # the time service corrects what the board's clock said
                self.stepped.add(min(self.steps - 1, at + 8))
        self.stepped |= set(self._times(90))
        upgrades = sorted(self._times(45))
        self.versions = [sum(at <= n for at in upgrades) for n in range(0, self.steps, 720)]

    def _restart(self, at: int, steps: int, *, drained: bool = False) -> None:
        gone = set(range(at, at + steps))
        self.failed |= gone
        self.drained |= gone if drained else set()
        self.begun.add(min(self.steps - 1, at + steps))

    def seen(self, step: int) -> bool:
        """Return whether the scrape at this step succeeds."""
        return step not in self.failed and step not in self.away


IDLE: Shares = {"idle/none": 1.0}
BUSY: Shares = {"busy/none": 1.0}
SHORT_LOAD: Shares = {"starved/disk": 0.2, "starved/cpu": 0.1, "busy/none": 0.7}


@dataclass
class QuietNode:
    """A node: its series by name and labels, one value a scrape, None where it has none."""

    name: str
    system: str
    line: Timeline

    def series(self) -> Iterator[tuple[Key, Points]]:
        """All of it; `up` comes first."""
        line, found = self.line, template(self.system)
        steps = range(line.steps)
        seen = [line.seen(n) for n in steps]
        mine = (("instance", self.name), ("job", JOB))
        there = [s and n not in line.released for n, s in enumerate(seen)]
        up = [None if n in line.away else float(n not in line.failed) for n in steps]
        yield ("up", mine), [None if n in line.drained else v for n, v in enumerate(up)]
        if line.drained:
            out = (*mine, ("drained", "upgrade"))
            yield ("up", out), [v if n in line.drained else None for n, v in enumerate(up)]
        modelled = {m.name for m in MODELLED}
        for (metric, labels), value in found.items():
            of_gpu = "gpu" in dict(labels)
            if metric in modelled:
                points = self._points(metric, dict(labels), value)
            else:
                sick = metric in SICK or ("state", "missing") in labels
                points = [0.0 if sick else value] * line.steps
            shown = there if of_gpu or metric == system.GPUS.name else seen
            yield (
                (metric, (*mine, *labels)),
                [p if s else None for p, s in zip(points, shown, strict=True)],
            )
        if line.released:
            labels = (("metric", system.GPUS.name), ("reason", "released"))
            gone = [1.0 if s and n in line.released else None for n, s in enumerate(seen)]
            yield (ABSENT_VALUES.name, (*mine, *labels)), gone

    def _points(self, metric: str, labels: dict[str, str], value: float) -> Points:
        """Return the value at each scrape of a series that moves."""
        line = self.line
        shares = [both[labels.get("gpu", "0") != "0"] for both in line.shares[: line.steps]]
        if metric in _COUNTED:
            return self._counter(metric, labels, shares)
        if metric == LAST_TICK.name:
            return [START + n * EVERY for n in range(line.steps)]
        if metric == agent_health.GPU_READ_SECONDS.name:
            return [0.01 if n % 997 else 0.4 for n in range(line.steps)]
        if metric not in _GAUGES:
            return [value] * line.steps
        known = {id(s): _GAUGES[metric](s, value) for s in shares}
        return [known[id(s)] for s in shares]

    def _counter(self, metric: str, labels: dict[str, str], shares: list[Shares]) -> Points:
        line, random = self.line, Random(f"{self.name} {metric} {sorted(labels.items())}")
        pair = f"{labels.get('state')}/{labels.get('cause')}"
        if metric == STATE_SECONDS.name:
            grown = [EVERY * s.get(pair, 0.0) for s in shares]
        elif metric == paths.OBSERVED.name:
            grown = [float(EVERY)] * line.steps
        elif metric == paths.SATURATED.name:
            of_disk = labels["path"] == "disk"
            grown = [EVERY * (d if of_disk else 0.0) for d in line.disk[: line.steps]]
        elif metric == STEPS.name:
            grown = [5.0 * EVERY * (s.get("busy/none", 0.0) > 0.6) for s in shares]
        elif metric == UNOBSERVED_SECONDS.name:
            grown = [2.0 * (n in line.begun) for n in range(line.steps)]
        elif metric == CLOCK_STEPS.name:
            grown = [float(n in line.stepped) for n in range(line.steps)]
        else:
            days = _DAYS.get(metric, {}).get(labels.get(_LABEL.get(metric, ""), ""), 0.0)
            chance = EVERY / 86_400 / days if days else 0.0
            drawn = (float(random.random() < chance) for _ in shares)
            grown = [*drawn] if chance else [0.0] * line.steps
        points = _summed(grown, line.begun if metric in OF_AGENT else line.booted)
        unborn = labels.get("xid") in OF_USERS  # such a code has no series until it comes
        return [point or None for point in points] if unborn else points


def _works(shares: Shares) -> float:
    return shares.get("busy/none", 0.0) + shares.get("throttled/power", 0.0)


def _active(shares: Shares, _: float) -> float:
    return _works(shares) + shares.get("communicating/nvlink", 0.0)


_GAUGES: dict[str, Callable[[Shares, float], float | None]] = {
    activity.ACTIVITY.name: _active,
    activity.SM_ACTIVE.name: _active,
    temperature.TEMPERATURE.name: lambda shares, _: 40.0 + 30 * _works(shares),
    temperature.MEMORY_TEMPERATURE.name: lambda shares, _: 40.0 + 30 * _works(shares),
    temperature.MARGIN.name: lambda shares, _: 45.0 - 30 * _works(shares),
    # before Hopper a link at rest falls to its first generation
    pcie.GENERATION.name: lambda s, most: most if most >= 5 or _works(s) > 0.05 else 1.0,
    process.PROCESSES.name: lambda shares, _: float(shares is not IDLE),
    allocation.ALLOCATED.name: lambda shares, _: float(shares is not IDLE),
    STEP.name: lambda shares, _: 0.2 if _works(shares) > 0.6 else None,
    REFERENCE.name: lambda shares, _: 0.2 if _works(shares) > 0.6 else None,
    paths.RATIO.name: lambda shares, _: 0.3 * _works(shares),
}

START = 1_767_225_600
_COUNTED = OF_AGENT | {m.name for m in (ecc.ERRORS, REPLAYS, nvlink.ERRORS, infiniband.ERRORS)}
_LABEL = {ecc.ERRORS.name: "severity", xid.XID_ERRORS.name: "xid", nvlink.ERRORS.name: "kind"}
_LABEL[infiniband.ERRORS.name] = "kind"
_DAYS = {
    ecc.ERRORS.name: {"corrected": 1.0},
    xid.XID_ERRORS.name: {"13": 20.0, "31": 10.0, "43": 10.0},  # programs of users that fail
    nvlink.ERRORS.name: {"crc_data": 0.1},
    infiniband.ERRORS.name: {"symbol_error": 1.0},
    REPLAYS.name: {"": 0.3},
}
"""Days between two such events that a sound machine has too; the others it never has."""


def _summed(grown: list[float], resets: set[int]) -> Points:
    total, points = 0.0, []
    for step, more in enumerate(grown):
        total = more if step in resets else total + more
        points.append(round(total, 3))
    return list(points)


def lines(node: QuietNode, start: int = START) -> Iterator[bytes]:
    """As VictoriaMetrics imports it, a line a series."""
    stamps = [str((start + n * EVERY) * 1000) for n in range(node.line.steps)]
    whole = ",".join(stamps)
    for (metric, labels), points in node.series():
        known = [p for p in points if p is not None]
        if not known:
            continue
        full = len(known) == len(points)
        at = (
            whole
            if full
            else ",".join(s for s, p in zip(stamps, points, strict=True) if p is not None)
        )
        values = ",".join(map(repr, known))
        named = json.dumps({"__name__": metric, **dict(labels)})
        yield f'{{"metric":{named},"values":[{values}],"timestamps":[{at}]}}\n'.encode()
