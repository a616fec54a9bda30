"""Cases of the alerts of fleets, firing and quiet: several nodes, of which one is the box."""

from collections.abc import Iterator, Mapping

from agent.diagnosis.accounting import STATE_SECONDS
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
    shown = (owned,)
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


TABLES = (missing, slow)
