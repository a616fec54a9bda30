"""Cases of the alerts of fleets, firing and quiet: several nodes, of which one is the box."""

from collections.abc import Iterator, Mapping

from agent.diagnosis.accounting import STATE_SECONDS
from agent.diagnosis.pulses import STEPS
from agent.sources import activity, infiniband, temperature
from agent.sources.agent_health import BUILD_INFO
from agent.sources.workload import JOB_INFO
from tests.support.alert_input import (
    TARGET,
    Case,
    Points,
    Series,
    System,
    growing,
    named,
    of_gpu,
    on,
    scrapes,
    steady,
)

BOX = TARGET["instance"]
OTHERS = ("n1:9935", "n2:9935", "n3:9935", "n4:9935")
NODES = (BOX, *OTHERS)
LONG, SHORT = 2.5, 1.0
SLOW, MISSING = "DgxNodeSlow", "DgxNodeMissing"


def of_place(rack: str, *nodes: str) -> Mapping[str, str]:
    """The series `up` of nodes of a rack, by node."""
    return {node: named("up", instance=node, cluster="c", rack=rack) for node in nodes}


def silent(minutes: float) -> Points:
    return [*steady(1.0, 5), *steady(0.0, minutes)]


def missing(_: System) -> Iterator[Case]:
    rack = of_place("r1", *NODES[:4])
    well = steady(1.0, 5 + LONG + 0.25)
    none = {"instance": "", "job": ""}
    shown = {"severity": "critical", "sign": "rack", "cluster": "c", "rack": "r1", **none}

    def half(minutes: float, nodes: int = 2) -> Series:
        return {
            series: silent(minutes) if number < nodes else well
            for number, series in enumerate(rack.values())
        }

    yield Case(MISSING, "half of a rack", half(LONG), (shown,))
    yield Case(MISSING, "half of a rack, since a minute", half(SHORT))
    yield Case(MISSING, "one of four", half(LONG, 1))
    drained = [
        named("up", instance=f"m{n}", cluster="c", rack="r1", drained="board") for n in range(4)
    ]
    yield Case(
        MISSING, "four drained of eight", {**half(LONG, 0), **dict.fromkeys(drained, silent(LONG))}
    )
    more = {named("up", instance=f"m{n}", cluster="c", rack="r1"): well for n in range(2)}
    yield Case(MISSING, "two of six", {**half(LONG), **more})
    other = dict.fromkeys(of_place("r2", "m1", "m2").values(), silent(LONG))
    third = dict.fromkeys(of_place("r3", "k1", "k2").values(), well)
    both = (shown, {**shown, "rack": "r2"}, {**shown, "sign": "cluster", "rack": ""})
    yield Case(MISSING, "two racks of three", {**half(LONG), **other, **third}, both)
    out = {s: [*steady(1.0, 5), None] if n == BOX else well for n, s in rack.items()}
    removed = {"severity": "info", "sign": "removed", "cluster": "c", "rack": "r1"}
    yield Case(MISSING, "taken out", out, (removed,))
    back = {
        s: [*steady(1.0, 5), None, *steady(1.0, 3)] if n == BOX else well for n, s in rack.items()
    }
    yield Case(MISSING, "taken out and put back", back)
    long_ago = {s: [1.0, None] if n == BOX else steady(1.0, 65) for n, s in rack.items()}
    yield Case(MISSING, "taken out long ago", long_ago)


Shares = Mapping[str, float]
BUSY: Shares = {"busy/none": 1.0}


def waits(share: float) -> Shares:
    return {"busy/none": 1.0 - share, "starved/peer": share}


def joint(s: System, nodes: Mapping[str, Shares], minutes: float = 8, **of: str) -> Series:
    """Nodes of one job with one GPU each, and where its time goes."""
    named_as = {"runtime": "slurm", "user": "ada", "job_id": "7", **of}
    found: Series = {}
    for node, shares in nodes.items():
        found[of_gpu(JOB_INFO, s, instance=node, **named_as)] = steady(1.0, minutes)
        for pair, share in shares.items():
            state, cause = pair.split("/")
            series = of_gpu(STATE_SECONDS, s, instance=node, state=state, cause=cause)
            found[series] = growing((minutes, share))
    return found


def slow(s: System) -> Iterator[Case]:
    owned = {"severity": "warning", "job_id": "7", "user": "ada"}
    shown = ({**owned, "sign": "waited_for"},)
    late = 0.08 / 1.08
    others = dict.fromkeys(OTHERS, waits(late))
    yield Case(SLOW, "8 % slower, and waited for", joint(s, {BOX: BUSY, **others}), shown)
    alike = dict.fromkeys(OTHERS, waits(0.03))
    yield Case(SLOW, "3 % slower", joint(s, {BOX: BUSY, **alike}))
    yield Case(SLOW, "all wait alike", joint(s, dict.fromkeys(NODES, waits(0.3))))
    yield Case(SLOW, "two nodes", joint(s, {BOX: BUSY, OTHERS[0]: waits(late)}))
    yield Case(SLOW, "since two minutes", joint(s, {BOX: BUSY, **others}, minutes=1.75))
    apart = {**joint(s, others), **joint(s, {BOX: BUSY}, job_id="8")}
    yield Case(SLOW, "in a job of its own", apart)
    eve = {**joint(s, others), **joint(s, {BOX: BUSY}, user="eve")}
    yield Case(SLOW, "another cluster's job of the same number", eve)
    alone = {"job_id": "train.py:7", "runtime": "process"}
    yield Case(SLOW, "called alike, by its pid", joint(s, {BOX: BUSY, **others}, 8, **alone))
    yield Case(SLOW, "of no known job", joint(s, {BOX: BUSY, **others}, job_id=""))
    disk = {"busy/none": 0.8, "starved/disk": 0.2}
    starving = joint(s, {BOX: disk, **dict.fromkeys(OTHERS, waits(0.2))})
    yield Case(SLOW, "it starves for its disks, and the others for it", starving, shown)
    overlapped = {"busy/none": 1 - late, "communicating/infiniband": late}
    network = joint(s, {BOX: BUSY, **dict.fromkeys(OTHERS, overlapped)})
    yield Case(SLOW, "the others seem to wait for the network", network, shown)

    def steps(rate: float, **of: str) -> Series:
        rates = {BOX: rate, **dict.fromkeys(OTHERS, 3.0)}
        jobs = joint(s, {node: {} for node in NODES}, 8, **of)
        return jobs | {of_gpu(STEPS, s, instance=n): growing((8, r)) for n, r in rates.items()}

    fewer = ({**owned, "sign": "steps", "runtime": "slurm"},)
    yield Case(SLOW, "8 % fewer steps", steps(2.76), fewer)
    yield Case(SLOW, "3 % fewer steps", steps(2.91))
    yield Case(SLOW, "8 % fewer steps of a program called alike", steps(2.76, **alone))
    yield Case(SLOW, "half as many, as a rhythm read twice as long has", steps(1.5))


def odd(s: System) -> Iterator[Case]:
    def degrees(own: float, work: float = 1.0, job: str = "7", by: str = "slurm") -> Series:
        points = {node: own if node == BOX else 60.0 for node in NODES}
        warm: Series = {
            of_gpu(temperature.TEMPERATURE, s, instance=n): steady(p, 6) for n, p in points.items()
        }
        given = {"job_id": job, "runtime": by}
        warm |= {of_gpu(JOB_INFO, s, instance=n, **given): steady(1.0, 6) for n in NODES}
        return warm | {of_gpu(activity.ACTIVITY, s, instance=n): steady(work, 6) for n in NODES}

    name = "DgxGpuHot"
    yield Case(
        name, "warmer than its peers", degrees(69.0), (on(s, "info", sign="peers", job_id="7"),)
    )
    yield Case(name, "a little warmer than its peers", degrees(66.0))
    yield Case(name, "warmer than programs called alike", degrees(69.0, by="process"))
    yield Case(name, "warmer, and no one works", degrees(69.0, 0.1))
    yield Case(name, "warmer, and of no known job", degrees(69.0, job=""))
    port = {"device": "mlx5_1", "port": "1"}

    def errors(own: float, others: float) -> Series:
        return {
            named(infiniband.ERRORS, instance=n, kind="symbol_error", **port): growing(
                (30, (own if n == BOX else others) / 3600)
            )
            for n in NODES
        }

    name = "DgxInfinibandErrors"
    shown = ({"severity": "info", "sign": "peers", **port},)
    yield Case(name, "more than its peers", errors(40.0, 1.0), shown)
    yield Case(name, "fewer than matter", errors(8.0, 0.0))
    # (increase draws half an hour out to the edges of its hour by half a scrape)
    yield Case(name, "all have as many", errors(40.0, 40.0))


SELDOM = 120


def versions(_: System) -> Iterator[Case]:
    def two(hours: float, other: str) -> Series:
        points: Points = [1.0] * (scrapes(hours * 60, SELDOM) + 1)
        kinds = {BOX: "1.0", OTHERS[0]: other}
        return {
            named(BUILD_INFO, instance=n, version=v, cluster="c"): points for n, v in kinds.items()
        }

    name = "DgxAgentVersions"
    shown = ({"severity": "info", "cluster": "c", "instance": "", "job": ""},)
    yield Case(name, "two for seven hours", two(7, "1.1"), shown, SELDOM)
    yield Case(name, "two while they are upgraded", two(1, "1.1"), (), SELDOM)
    yield Case(name, "one", two(7, "1.0"), (), SELDOM)


TABLES = (missing, slow, odd, versions)
