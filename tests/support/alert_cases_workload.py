"""Cases of the alerts for the owner of a job, firing and quiet: at their boundaries."""

from collections.abc import Iterator, Mapping

from agent.diagnosis.accounting import STATE_SECONDS, WAITS_FOR
from agent.diagnosis.job_watch import HUNG, REFERENCE
from agent.diagnosis.pulses import STEP
from agent.limits import paths
from agent.model import CAUSES, Cause, State
from agent.sources import activity, gpu, process
from agent.sources.allocation import ALLOCATED
from tests.support.alert_input import (
    SCRAPE,
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
    uuid,
)

Shares = dict[str, float]
BUSY = {"busy/none": 1.0}


def spent(
    system: System, *phases: tuple[float, Shares], gpu: int = 1, every: int = SCRAPE
) -> Series:
    """A GPU's seconds: minutes, and the share of them in each state/cause."""
    pairs = {pair for _, shares in phases for pair in shares}
    return {
        of_gpu(STATE_SECONDS, system, gpu, state=p.split("/")[0], cause=p.split("/")[1]): growing(
            *((minutes, shares.get(p, 0.0)) for minutes, shares in phases), every=every
        )
        for p in sorted(pairs)
    }


def part(pair: str, share: float) -> Shares:
    """So much of the time in one state, the rest at work."""
    return {pair: share, "busy/none": 1.0 - share}


DISK = "starved/disk"
SEVERAL = {DISK: 0.16, "starved/cpu": 0.10, "starved/unknown": 0.2, "busy/none": 0.54}


def starved(system: System) -> Iterator[Case]:
    name, disk = "DgxGpuStarved", DISK
    fires = (on(system, "warning", window="15m", cause="disk"),)
    for cause in CAUSES[State.STARVED]:
        if cause not in (Cause.DISK, Cause.UNKNOWN):
            shows = (on(system, "warning", window="15m", cause=cause.value),)
            yield Case(
                name, f"by {cause}", spent(system, (20, part(f"starved/{cause}", 0.26))), shows
            )
    expected = (on(system, "info", window="15m", state="starved", cause="unknown"),)
    yield Case(name, "just over a quarter", spent(system, (20, part(disk, 0.26))), fires)
    yield Case(name, "just under a quarter", spent(system, (20, part(disk, 0.24))))
    yield Case(name, "several causes together", spent(system, (20, SEVERAL)), fires)
    changed = spent(system, (20, part(disk, 0.4)), (9, {"starved/cpu": 1.0}))
    yield Case(name, "another cause takes more by now", changed, fires)
    fewer = {**SEVERAL, DISK: 0.14, "busy/none": 0.56}
    yield Case(name, "several causes, and together too little", spent(system, (20, fewer)))
    yield Case(
        name, "nothing explains it", spent(system, (20, part("starved/unknown", 0.6))), expected
    )
    yield Case(
        name, "wholly, since five minutes", spent(system, (20, BUSY), (5.25, {disk: 1.0})), fires
    )
    yield Case(name, "three minutes of loading", spent(system, (20, BUSY), (3.5, {disk: 1.0})))
    yield Case(
        name,
        "three minutes of loading, then work, with an agent just started",
        spent(system, (3, {disk: 1.0}), (2, BUSY)),
    )
    yield Case(name, "less than half of the window observed", spent(system, (7, {disk: 1.0})))
    yield Case(name, "half of the window observed", spent(system, (9.5, {disk: 1.0})), fires)
    yield Case(name, "the agent's clock runs five times faster", fast(system, disk, 0.3), fires)
    yield Case(name, "faster, and under a quarter", fast(system, disk, 0.2))
    for every in (5, 30, 60, 120):
        over = spent(system, (20, part(disk, 0.27)), every=every)
        yield Case(name, f"scraped each {every} s, over a quarter", over, fires, every)
        under = spent(system, (20, part(disk, 0.23)), every=every)
        yield Case(name, f"scraped each {every} s, under a quarter", under, (), every)


HOUR, SLOW = 60.0, 120
"""Minutes; seconds between two scrapes of a long window."""


def starved_long(system: System) -> Iterator[Case]:
    name, disk = "DgxGpuStarved", DISK
    fires = (on(system, "warning", window="6h", cause="disk"),)

    def over(hours: float, share: float) -> Series:
        return spent(system, (hours * HOUR, part(disk, share)), every=SLOW)

    yield Case(name, "a tenth of six hours", over(6.2, 0.11), fires, SLOW)
    yield Case(name, "under a tenth of six hours", over(6.2, 0.09), (), SLOW)
    yield Case(name, "half of six hours observed", over(3.2, 0.11), fires, SLOW)
    yield Case(name, "less than half of six hours observed", over(2.8, 0.2), (), SLOW)
    one = {DISK: 0.06, "starved/cpu": 0.05, "busy/none": 0.89}
    several = spent(system, (6.2 * HOUR, one), every=SLOW)
    yield Case(name, "several causes of six hours", several, fires, SLOW)

    def day(hours: float, before: float, *, gpm: bool = True) -> Series:
        """Of which the last six hours stay below their own limit."""
        parts = (hours - 6.2) * HOUR, part(disk, before)
        found = spent(system, parts, (6.2 * HOUR, part(disk, 0.05)), every=SLOW)
        points = len(next(iter(found.values())))
        return {**found, **({of_gpu(activity.SM_ACTIVE, system): [0.5] * points} if gpm else {})}

    expected = (on(system, "info", window="24h", cause="disk"),)
    for cause in CAUSES[State.STARVED]:
        if cause not in (Cause.DISK, Cause.UNKNOWN):
            pair, both = f"starved/{cause}", []
            both += [on(system, "warning", window="6h", cause=cause.value)]
            both += [on(system, "info", window="24h", cause=cause.value)]
            lasting = spent(system, (12.5 * HOUR, part(pair, 0.2)), every=SLOW)
            points = len(next(iter(lasting.values())))
            lasting[of_gpu(activity.SM_ACTIVE, system)] = [0.5] * points
            yield Case(name, f"by {cause} for hours", lasting, tuple(both), SLOW)
    yield Case(name, "a tenth of a day", day(24.2, 0.13), expected, SLOW)
    yield Case(name, "under a tenth of a day", day(24.2, 0.11), (), SLOW)
    yield Case(name, "a tenth of a day, reported without GPM", day(24.2, 0.13, gpm=False), (), SLOW)
    yield Case(name, "half of a day observed", day(12.5, 0.17), expected, SLOW)


def fast(system: System, pair: str, share: float) -> Series:
    """As on a simulated machine at five times its speed."""
    return spent(system, (20, {p: 5 * s for p, s in part(pair, share).items()}))


def exposed(system: System) -> Iterator[Case]:
    name, wire = "DgxExposedCommunication", "communicating/nvlink"
    expected = (on(system, "info"),)
    yield Case(name, "just over a quarter", spent(system, (20, part(wire, 0.26))), expected)
    yield Case(name, "just under a quarter", spent(system, (20, part(wire, 0.24))))
    both = {wire: 0.15, "communicating/infiniband": 0.12, "busy/none": 0.73}
    yield Case(name, "over two wires", spent(system, (20, both)), expected)
    yield Case(name, "three minutes", spent(system, (20, BUSY), (3.5, {wire: 1.0})))
    yield Case(name, "starved is something else", spent(system, (20, part(DISK, 0.6))))


def hung(system: System) -> Iterator[Case]:
    name, hung_gpu = "DgxJobHung", {"state": "hung", "cause": "none"}
    rank = {"rank": "1", "pid": "4711"}
    expected: Series = {of_gpu(HUNG, system, 1, **rank): [1.0] * 14}
    hanging = growing((1, 0.0), (3.75, 1.0))
    state: Series = {of_gpu(STATE_SECONDS, system, gpu, **hung_gpu): hanging for gpu in (0, 1)}
    named = on(system, "critical", 1, sign="named", **rank)
    yield Case(name, "/proc shows the process and its rank", expected, (named,))
    stopped: Series = {of_gpu(HUNG, system, 1, pid="4711"): [1.0] * 14}
    by_proc = on(system, "critical", 1, sign="named", pid="4711")
    yield Case(name, "/proc shows the process, not its rank", stopped, (by_proc,))
    expected = {series: [1.0] * len(hanging) for series in expected}
    yield Case(name, "the same, and its GPUs are hung", {**state, **expected}, (named,))
    unnamed = {"severity": "critical", "sign": "unnamed"}
    yield Case(name, "which process they wait for is not known", state, (unnamed,))
    yield Case(name, "since a moment", {k: p[:10] for k, p in state.items()})
    yield Case(name, "never", {k: [0.0] * 20 for k in state})


def slower(system: System) -> Iterator[Case]:
    name, expected = "DgxJobSlower", {"severity": "info"}

    def steps(seconds: float, minutes: float) -> Series:
        expected: Points = [*[0.2] * 20, *[seconds] * scrapes(minutes)]
        return {
            of_gpu(STEP, system, 1): expected,
            of_gpu(REFERENCE, system, 1): [0.2] * (20 + scrapes(minutes)),
        }

    yield Case(name, "a little more than a tenth", steps(0.221, 11), (expected,))
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
    yield Case(name, "just too short", spent(system, (40, BUSY), (25.5, {pair: 1.0})))
    yield Case(name, "an agent just started", spent(system, (20, {pair: 1.0})))


def unused(system: System) -> Iterator[Case]:
    name = "DgxGpuAllocatedUnused"

    def given(
        minutes: float, allocated: float = 1.0, processes: float = 0.0, busy: float = 0.0
    ) -> Series:
        return {
            of_gpu(ALLOCATED, system, 1): [0.0] * 8 + steady(allocated, minutes),
            of_gpu(process.PROCESSES, system, 1): [0.0] * 8 + steady(processes, minutes),
            of_gpu(STATE_SECONDS, system, 1, state="busy", cause="none"): growing(
                (2, 0.0), (minutes, busy)
            ),
        }

    yield Case(name, "long enough", given(31), (on(system, "info"),))
    yield Case(name, "just too short", given(29))
    yield Case(name, "used", given(40, processes=1.0))
    yield Case(name, "used by who is not listed", given(40, busy=1.0))
    yield Case(name, "given to no job", given(40, allocated=0.0))


def throttled(system: System) -> Iterator[Case]:
    name, pair = "DgxGpuThrottled", "throttled/thermal"
    fires = (on(system, "warning", state="throttled", cause="thermal"),)
    for cause in CAUSES[State.THROTTLED]:
        by = (on(system, "warning", state="throttled", cause=cause.value),)
        yield Case(name, f"by {cause}", spent(system, (20, part(f"throttled/{cause}", 0.26))), by)
    yield Case(name, "just under", spent(system, (20, part(pair, 0.24))))
    yield Case(name, "long enough", spent(system, (20, BUSY), (5.25, {pair: 1.0})), fires)
    yield Case(name, "just too short", spent(system, (20, BUSY), (3.5, {pair: 1.0})))


STRAGGLER = "DgxGpuStraggler"


def waiting(
    system: System, share: float, named: float, minutes: float = 20, every: int = SCRAPE
) -> Series:
    """Two GPUs wait for a peer, and so much of that for the first."""
    found: Series = {}
    for one in (1, 2):
        found |= spent(system, (minutes, part("starved/peer", share)), gpu=one, every=every)
        waits = of_gpu(WAITS_FOR, system, one, culprit=uuid(system, 0))
        found[waits] = growing((minutes, named), every=every)
    points = len(next(iter(found.values())))
    infos: Series = {of_gpu(gpu.INFO, system, one, model="x"): [1.0] * points for one in range(4)}
    return {**found, **infos}


def one_is_late(system: System, sign: str, window: str = "15m") -> tuple[Mapping[str, str], ...]:
    if sign == "unnamed":
        return ({"severity": "warning", "sign": sign, "window": window},)
    return (on(system, "warning", 0, sign=sign, window=window, culprit=uuid(system, 0)),)


def straggler(system: System) -> Iterator[Case]:
    named, unnamed = one_is_late(system, "named"), one_is_late(system, "unnamed")
    yield Case(STRAGGLER, "two wait for one", waiting(system, 0.26, 0.26), named)
    yield Case(STRAGGLER, "they wait just too little", waiting(system, 0.24, 0.24))
    yield Case(STRAGGLER, "for whom is not known", waiting(system, 0.26, 0.0), unnamed)
    yield Case(STRAGGLER, "for several", waiting(system, 0.40, 0.20))
    yield Case(STRAGGLER, "just too short", waiting(system, 0.9, 0.9, minutes=6))


def straggler_long(system: System) -> Iterator[Case]:
    def over(share: float, named: float) -> Series:
        return waiting(system, share, named, 6.2 * HOUR, SLOW)

    named, unnamed = one_is_late(system, "named", "6h"), one_is_late(system, "unnamed", "6h")
    yield Case(STRAGGLER, "a tenth of six hours", over(0.11, 0.11), named, SLOW)
    yield Case(STRAGGLER, "a tenth, for whom is not known", over(0.11, 0.0), unnamed, SLOW)
    yield Case(STRAGGLER, "under a tenth of six hours", over(0.09, 0.09), (), SLOW)


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
        where = {"path": kind, "device": device, "direction": "receive"}
        fires = ({"severity": "warning", "sign": kind, **where},)
        yield Case(name, f"{kind}, just over", path(kind, device, "receive", 0.51), fires)
        yield Case(name, f"{kind}, just under", path(kind, device, "receive", 0.49))
    yield Case(name, "an agent just started", path("network", "eno1", "receive", 1.0, 4.5))
    yield Case(name, "a disk is no link", path("disk", "md0", "read", 1.0))
    yield Case(name, "memory is no link", path("hbm", "gpu0", "total", 1.0))
    sends = spent(system, (15, part("communicating/nvlink", 0.5)))
    both = {**nvlink(system, "gpu1", 0.6), **nvlink(system, "gpu1:3", 0.9), **sends}
    expected = on(system, "warning", sign="nvlink", path="nvlink", direction="transmit")
    yield Case(name, "all links of a GPU", both, ({**expected, "device": "gpu1"},))
    one = {**nvlink(system, "gpu1", 0.1), **nvlink(system, "gpu1:3", 0.9), **sends}
    yield Case(name, "one link of a GPU", one)
    hidden = {**nvlink(system, "gpu1", 0.9), **spent(system, (15, BUSY))}
    yield Case(name, "NVLink behind the kernels", hidden)
    little = spent(system, (15, part("communicating/nvlink", 0.09)))
    yield Case(name, "NVLink that takes little time", {**nvlink(system, "gpu1", 0.9), **little})


def disk(_: System) -> Iterator[Case]:
    name = "DgxDiskSaturated"
    for direction in ("read", "write", "total"):
        one = {"severity": "warning", "path": "disk", "device": "md0", "direction": direction}
        one["sign"] = direction
        yield Case(name, f"{direction}, just over", path("disk", "md0", direction, 0.51), (one,))
    fires = ({**one, "direction": "read", "sign": "read"},)
    yield Case(name, "just under", path("disk", "md0", "read", 0.49))
    yield Case(name, "just too short", path("disk", "md0", "read", 1.0, 4.75))
    yield Case(name, "long enough", path("disk", "md0", "read", 1.0, 6.5), fires)


TABLES = (
    starved,
    starved_long,
    exposed,
    hung,
    slower,
    held,
    unused,
    throttled,
    straggler,
    straggler_long,
    link,
    disk,
)
