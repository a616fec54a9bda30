"""When the alerts for the owner of a job fire, and when they rest: at their boundaries."""

from collections.abc import Iterator

from agent.diagnosis.accounting import STATE, STATE_SECONDS
from agent.diagnosis.job_watch import HUNG, REFERENCE
from agent.diagnosis.pulses import STEP
from agent.limits import paths
from tests.support.alert_input import (
    Case,
    Points,
    Series,
    System,
    growing,
    named,
    of_gpu,
    on,
    scrapes,
)

Shares = dict[str, float]
BUSY = {"busy/none": 1.0}


def spent(system: System, *phases: tuple[float, Shares], gpu: int = 1) -> Series:
    """A GPU's seconds: minutes, and the share of them in each state/cause."""
    pairs = {pair for _, shares in phases for pair in shares}
    return {
        of_gpu(STATE_SECONDS, system, gpu, state=p.split("/")[0], cause=p.split("/")[1]): growing(
            *((minutes, shares.get(p, 0.0)) for minutes, shares in phases)
        )
        for p in sorted(pairs)
    }


def part(pair: str, share: float) -> Shares:
    """So much of the time in one state, the rest at work."""
    return {pair: share, "busy/none": 1.0 - share}


def starved(system: System) -> Iterator[Case]:
    name, disk = "DgxGpuStarved", "starved/disk"
    fires = (on(system, "warning", state="starved", cause="disk"),)
    told = (on(system, "info", state="starved", cause="unknown"),)
    yield Case(name, "just over a quarter", spent(system, (20, part(disk, 0.26))), fires)
    yield Case(name, "just under a quarter", spent(system, (20, part(disk, 0.24))))
    yield Case(name, "nothing explains it", spent(system, (20, part("starved/unknown", 0.6))), told)
    yield Case(
        name, "wholly, since five minutes", spent(system, (20, BUSY), (5.25, {disk: 1.0})), fires
    )
    yield Case(name, "three minutes of loading", spent(system, (20, BUSY), (3.5, {disk: 1.0})))
    yield Case(
        name,
        "three minutes of loading, then work, with an agent just started",
        spent(system, (3, {disk: 1.0}), (2, BUSY)),
    )
    yield Case(name, "an agent just started", spent(system, (3.5, {disk: 1.0})))
    yield Case(name, "an agent not so young", spent(system, (6, {disk: 1.0})), fires)
    yield Case(name, "the agent's clock runs ten times faster", fast(system, disk, 0.3), fires)
    yield Case(name, "faster, and under a quarter", fast(system, disk, 0.2))


def fast(system: System, pair: str, share: float) -> Series:
    """As on a simulated machine at ten times its speed."""
    return spent(system, (20, {p: 10 * s for p, s in part(pair, share).items()}))


def hung(system: System) -> Iterator[Case]:
    name, hung_gpu = "DgxJobHung", {"state": "hung", "cause": "none"}
    hanging: Points = [0.0] * 4 + [1.0] * 8
    rank = {"rank": "1", "pid": "4711", "host": "10.0.0.1"}
    told: Series = {of_gpu(HUNG, system, 1, **rank): [1.0] * 12}
    state: Series = {of_gpu(STATE, system, gpu, **hung_gpu): hanging for gpu in (0, 1)}
    named = on(system, "critical", 1, sign="named", **rank)
    yield Case(name, "NCCL names the rank", told, (named,))
    yield Case(name, "the same, and its GPUs are hung", {**state, **told}, (named,))
    unnamed = {"severity": "critical", "sign": "unnamed"}
    yield Case(name, "nobody says whom they wait for", state, (unnamed,))
    yield Case(name, "since a moment", {k: p[:6] for k, p in state.items()})
    yield Case(name, "never", {k: [0.0] * 20 for k in state})


def slower(system: System) -> Iterator[Case]:
    name, told = "DgxJobSlower", {"severity": "info"}

    def steps(seconds: float, minutes: float) -> Series:
        told: Points = [0.2] * 20 + [seconds] * scrapes(minutes)
        return {
            of_gpu(STEP, system, 1): told,
            of_gpu(REFERENCE, system, 1): [0.2] * (20 + scrapes(minutes)),
        }

    yield Case(name, "a little more than a tenth", steps(0.221, 11), (told,))
    yield Case(name, "a little less", steps(0.219, 30))
    yield Case(name, "not for long", steps(0.3, 9))
    yield Case(name, "faster", steps(0.1, 30))
    alone = {series: p for series, p in steps(0.3, 30).items() if "reference" not in series}
    yield Case(name, "a job without a reference", alone)


def held(system: System) -> Iterator[Case]:
    name, pair = "DgxGpuHeldIdle", "held/none"
    fires = (on(system, "info", state="held", cause="none"),)
    yield Case(name, "just over", spent(system, (35, part(pair, 0.91))), fires)
    yield Case(name, "just under", spent(system, (35, part(pair, 0.89))))
    yield Case(name, "long enough", spent(system, (40, BUSY), (27.5, {pair: 1.0})), fires)
    yield Case(name, "just too short", spent(system, (40, BUSY), (26.5, {pair: 1.0})))
    yield Case(name, "an agent just started", spent(system, (20, {pair: 1.0})))


def throttled(system: System) -> Iterator[Case]:
    name, pair = "DgxGpuThrottled", "throttled/thermal"
    fires = (on(system, "warning", state="throttled", cause="thermal"),)
    yield Case(name, "just over", spent(system, (20, part(pair, 0.26))), fires)
    yield Case(name, "just under", spent(system, (20, part(pair, 0.24))))
    yield Case(name, "long enough", spent(system, (20, BUSY), (5.25, {pair: 1.0})), fires)
    yield Case(name, "just too short", spent(system, (20, BUSY), (3.5, {pair: 1.0})))


def straggler(system: System) -> Iterator[Case]:
    name, peer = "DgxGpuStraggler", "starved/peer"
    slow = spent(system, (20, BUSY), gpu=0)

    def waiting(share: float, *, others: Shares = BUSY, minutes: float = 20) -> Series:
        far = spent(system, (minutes, part(peer, share)), gpu=2)
        near = spent(system, (minutes, part(peer, share)), gpu=1)
        return {**near, **far, **spent(system, (minutes, others), gpu=3)}

    idle = {"idle/none": 1.0}
    fires = (on(system, "warning", gpu=0, sign="named"),)
    yield Case(name, "one does not wait", {**slow, **waiting(0.26, others=idle)}, fires)
    yield Case(
        name,
        "two do not wait: nobody can say which one it is",
        {**slow, **waiting(0.26)},
        ({"severity": "warning", "sign": "unnamed"},),
    )
    yield Case(name, "they wait just too little", {**slow, **waiting(0.24, others=idle)})
    early = {n: p[:20] for n, p in {**slow, **waiting(0.9, others=idle)}.items()}
    yield Case(name, "just too short", {n: p[:17] for n, p in early.items()})


def path(kind: str, device: str, direction: str, share: float, minutes: float = 15.0) -> Series:
    """A data path of the host, saturated for a share of the time."""
    labels = {"path": kind, "device": device, "gpu": "", "uuid": "", "direction": direction}
    return saturated(labels, growing((minutes, share)), growing((minutes, 1.0)))


def saturated(labels: dict[str, str], full: Points, observed: Points) -> Series:
    return {
        named(paths.SATURATED, **labels): full,
        named(paths.OBSERVED, **labels): observed,
        named(paths.LIMIT, **labels): [50e9] * len(observed),
    }


def nvlink(system: System, device: str, share: float) -> Series:
    one = {"gpu": "1", "uuid": f"{system.uuid}-1", "direction": "transmit"}
    labels = {"path": "nvlink", "device": device, **one}
    return saturated(labels, growing((15, share)), growing((15, 1.0)))


def link(system: System) -> Iterator[Case]:
    name = "DgxLinkSaturated"
    for kind, device in (("network", "eno1"), ("infiniband", "mlx5_0:1"), ("pcie", "gpu0")):
        fires = ({"severity": "warning", "path": kind, "device": device, "direction": "receive"},)
        yield Case(name, f"{kind}, just over", path(kind, device, "receive", 0.51), fires)
        yield Case(name, f"{kind}, just under", path(kind, device, "receive", 0.49))
    yield Case(name, "an agent just started", path("network", "eno1", "receive", 1.0, 4.5))
    yield Case(name, "a disk is no link", path("disk", "md0", "read", 1.0))
    yield Case(name, "memory is no link", path("hbm", "gpu0", "total", 1.0))
    both = {**nvlink(system, "gpu1", 0.6), **nvlink(system, "gpu1:3", 0.9)}
    told = on(system, "warning", path="nvlink", direction="transmit")
    yield Case(name, "all links of a GPU", both, ({**told, "device": "gpu1"},))
    one = {**nvlink(system, "gpu1", 0.1), **nvlink(system, "gpu1:3", 0.9)}
    yield Case(name, "one link of a GPU", one, ({**told, "device": "gpu1:3"},))


def disk(_: System) -> Iterator[Case]:
    name = "DgxDiskSaturated"
    fires = ({"severity": "warning", "path": "disk", "device": "md0", "direction": "read"},)
    yield Case(name, "just over", path("disk", "md0", "read", 0.51), fires)
    yield Case(name, "just under", path("disk", "md0", "read", 0.49))
    yield Case(name, "just too short", path("disk", "md0", "read", 1.0, 4.75))
    yield Case(name, "long enough", path("disk", "md0", "read", 1.0, 6.5), fires)


TABLES = (starved, hung, slower, held, throttled, straggler, link, disk)
