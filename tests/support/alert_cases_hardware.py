"""Cases of the alerts for those who look after the hardware: firing and quiet."""

from collections.abc import Iterator

from agent.diagnosis.accounting import UNOBSERVED_SECONDS
from agent.faults.xids import xid_rules
from agent.limits import paths
from agent.sources import activity, ecc, gpu, nvlink, pcie, system, temperature, xid
from agent.sources.agent_health import ABSENT_VALUES
from tests.support.alert_input import (
    Case,
    Points,
    Series,
    System,
    events,
    growing,
    named,
    of_gpu,
    on,
    scrapes,
    steady,
)

GONE = [None]
MODEL = {"model": "x"}


def counted(found: Points, expected: float) -> Series:
    return {named(system.GPUS): found, named(system.GPUS_EXPECTED): [expected] * len(found)}


def lost(s: System, minutes: float, *, then: float | None = None) -> Series:
    """GPU 1 goes after five minutes; after so many more it may come back."""
    there = steady(float(s.gpus), 5)
    away = steady(s.gpus - 1.0, minutes)
    back = [] if then is None else steady(float(s.gpus), then)
    present = [1.0] * len(there) + [None] * len(away) + [1.0] * len(back)
    series = counted([*there, *away, *back], s.gpus)
    for number in range(s.gpus):
        known: list[float | None] = [*present] if number == 1 else [1.0] * len(present)
        series[of_gpu(gpu.INFO, s, number, **MODEL)] = known
        series[of_gpu(UNOBSERVED_SECONDS, s, number)] = [30.0] * len(present)
    return series


def missing(s: System) -> Iterator[Case]:
    name = "DgxGpuMissing"
    yield Case(name, "seen to go", lost(s, 1.5), (on(s, "critical", sign="lost"),))
    yield Case(name, "just too short", lost(s, 0.5))
    yield Case(name, "back again", lost(s, 5, then=1))
    fewer = ({"severity": "critical", "sign": "fewer"},)
    yield Case(name, "never seen", counted(steady(s.gpus - 1.0, 2), s.gpus), fewer)
    yield Case(name, "the last one", counted(steady(0.0, 2), 1), fewer)
    yield Case(name, "all there", counted(steady(float(s.gpus), 10), s.gpus))
    yield Case(
        name, "no driver any more", unloaded(s, 6), ({"severity": "critical", "sign": "no_driver"},)
    )
    yield Case(name, "the driver is updated", unloaded(s, 4))
    yield Case(name, "a laptop that never had a GPU", no_driver(10))
    hung = counted([*steady(float(s.gpus), 5), *GONE * scrapes(10)], s.gpus)
    hung[named(ABSENT_VALUES, metric=str(system.GPUS), reason="stalled")] = [1.0] * scrapes(15)
    yield Case(name, "a hung driver reports no GPU", hung)


def no_driver(minutes: float, before: float = 0.0) -> Series:
    series = named(ABSENT_VALUES, metric=str(system.GPUS), reason="no_driver")
    return {series: [*GONE * scrapes(before), *steady(1.0, minutes)]}


def unloaded(s: System, minutes: float) -> Series:
    there = [*steady(float(s.gpus), 30 - 0.25), *GONE]
    return {
        named(system.GPUS): there,
        named(system.GPUS_EXPECTED): there,
        **no_driver(minutes, before=30),
    }


def error(s: System) -> Iterator[Case]:
    name = "DgxGpuXid"

    def seen(code: int, points: Points, number: int = 1, *, present: bool = True) -> Series:
        info = of_gpu(gpu.INFO, s, number, **MODEL)
        there = [1.0] * len(points) if present else [1.0] + GONE * (len(points) - 1)
        return {of_gpu(xid.XID_ERRORS, s, number, xid=str(code)): [*points], info: [*there]}

    once = events([40], 43)
    born = [p or None for p in events([1], 11)]
    each: Series = {}
    fires = []
    for number, (*_, last) in enumerate(xid_rules()):
        severity, action, code = last.severity.value, last.action.value, last.code
        each |= seen(code, born, number)
        fires.append(on(s, severity, number, xid=str(code), action=action))
    yield Case(name, "the first of each kind", each, tuple(fires))
    third: Points = [2 + (p or 0) for p in once]
    memory = (on(s, "critical", xid="48", action="memory"),)
    yield Case(name, "a critical one, its third", seen(48, third), memory)
    unknown = (on(s, "warning", xid="999", action="service", sign="unlisted"),)
    yield Case(name, "one that the catalogue does not have", seen(999, born), unknown)
    yield Case(name, "none", seen(48, steady(0.0, 42)))
    yield Case(name, "an old one", seen(48, events([5], 42)))
    yield Case(name, "one that is long over", seen(13, steady(2.0, 42)))
    gone = seen(79, once, present=False) | counted([s.gpus - 1.0] * len(once), s.gpus)
    gone[of_gpu(UNOBSERVED_SECONDS, s)] = [30.0] * len(once)
    yield Case(name, "of a GPU that is lost", gone)
    hangs = seen(119, once, present=False)
    yield Case(
        name, "of a driver that hangs since", hangs, (on(s, "critical", xid="119", action="reset"),)
    )


def memory(s: System) -> Iterator[Case]:
    lost_data, of_its_life = (
        of_gpu(ecc.ERRORS, s, severity="uncorrected", lifetime=lifetime)
        for lifetime in ("volatile", "aggregate")
    )
    # The name of the metric's label is that of the alert's: the alert's own severity wins.
    fires = (on(s, "critical"),)
    name = "DgxGpuEccUncorrected"
    both = {lost_data: events([40], 42), of_its_life: events([40], 42)}
    yield Case(name, "one", both, fires)
    yield Case(name, "one under MIG", {of_its_life: events([40], 42)}, fires)
    shown = {lost_data: events([40], 42), of_gpu(xid.XID_ERRORS, s, xid="48"): events([39], 42)}
    yield Case(name, "one that an XID has reported", shown)
    yield Case(name, "none", {lost_data: steady(0.0, 42)})
    yield Case(name, "old ones", {lost_data: steady(3.0, 42)})
    unnamed = of_gpu(ecc.ERRORS, s, severity="", lifetime="")
    born: Series = {unnamed: steady(0.0, 42), lost_data: [None] * scrapes(40) + [2.0] * 9}
    yield Case(name, "the first series", born, fires)
    late = {n: [*[None] * 9, *steady(v, 40)] for n, v in ((unnamed, 0.0), (lost_data, 3.0))}
    yield Case(name, "old ones, read a moment late", late)
    corrected = of_gpu(ecc.ERRORS, s, severity="corrected", lifetime="volatile")
    yield Case(name, "corrected ones", {corrected: growing((42, 1.0))})
    failure = of_gpu(ecc.REMAP_FAILURE, s)
    name = "DgxGpuRowRemapFailure"
    yield Case(name, "failed", {failure: [*steady(0.0, 5), 1.0]}, (on(s, "critical"),))
    yield Case(name, "sound", {failure: steady(0.0, 5)})


def hot(s: System) -> Iterator[Case]:
    name, margin = "DgxGpuHot", of_gpu(temperature.MARGIN, s)
    fires = (on(s, "critical", sensor="core"),)
    core = of_gpu(temperature.TEMPERATURE, s)
    at_limit = {margin: steady(0.0, 2.25), core: steady(87.0, 2.25)}
    yield Case(name, "at the limit", at_limit, fires)
    yield Case(name, "a degree below", {margin: steady(1.0, 10)})
    yield Case(name, "just too short", {margin: [*steady(5.0, 5), *steady(-1.0, 1.5)]})
    limit = {of_gpu(temperature.LIMIT, s, limit="memory"): steady(95.0, 3)}
    degrees = of_gpu(temperature.MEMORY_TEMPERATURE, s)
    over = (on(s, "critical", sensor="memory"),)
    yield Case(name, "its memory at the limit", {**limit, degrees: steady(95.0, 3)}, over)
    yield Case(name, "its memory below", {**limit, degrees: steady(94.0, 3)})


def nvlinks(s: System) -> Iterator[Case]:
    name, most = "DgxNvlinkDown", float(s.links)

    def up(points: Points, gpus: float = 0.0, *, shown: bool = True) -> Series:
        minutes = (len(points) - 1) / 4
        one = of_gpu(nvlink.LINK_UP, s, link="0")
        down = of_gpu(nvlink.LINK_UP, s, link="3")
        return {
            of_gpu(nvlink.LINKS, s): points,
            of_gpu(nvlink.LINKS_EXPECTED, s): steady(most, minutes),
            named(system.GPUS): steady(s.gpus - gpus, minutes),
            named(system.GPUS_EXPECTED): steady(float(s.gpus), minutes),
            **({one: steady(1.0, minutes), down: steady(0.0, minutes)} if shown else {}),
        }

    yield Case(name, "one is down", up(steady(most - 1, 3.25)), (on(s, "critical"),))
    yield Case(name, "all are up", up(steady(most, 10)))
    yield Case(name, "just too short", up([*steady(most, 5), *steady(most - 1, 2.5)]))
    yield Case(name, "a peer is lost", up(steady(most - 1, 10), gpus=1.0))
    yield Case(name, "no link reports its state", up(steady(0.0, 10), shown=False))
    name = "DgxNvlinkErrors"

    def errors(kind: str, *times: float) -> Series:
        return {of_gpu(nvlink.ERRORS, s, link="2", kind=kind): events(times, 70)}

    fires = (on(s, "warning", link="2"),)
    yield Case(name, "five in an hour", errors("replay", 25, 30, 40, 50, 60), fires)
    yield Case(name, "four in an hour", errors("replay", 30, 40, 50, 60))
    both = {**errors("recovery", 30, 40, 50), **errors("crc_flit", 35, 45)}
    yield Case(name, "of several kinds", both, fires)
    yield Case(name, "such as a link corrects", errors("crc_data", *range(1, 60)))


def lanes(s: System) -> Iterator[Case]:
    name, most = "DgxPcieDegraded", float(s.generation)

    def width(points: Points) -> Series:
        return {
            of_gpu(pcie.WIDTH, s): points,
            of_gpu(pcie.WIDTH_LIMIT, s): [float(s.lanes)] * len(points),
        }

    fires = (on(s, "warning", sign="width"),)
    yield Case(name, "half the lanes", width(steady(s.lanes / 2, 5.25)), fires)
    yield Case(name, "all lanes", width(steady(float(s.lanes), 10)))
    yield Case(name, "just too short", width(steady(s.lanes / 2, 4.5)))

    def generation(points: Points, active: float) -> Series:
        return {
            of_gpu(pcie.GENERATION, s): points,
            of_gpu(pcie.GENERATION_LIMIT, s): [most] * len(points),
            of_gpu(activity.ACTIVITY, s): [active] * len(points),
        }

    slow = (on(s, "warning", sign="generation"),)
    yield Case(name, "slow under load", generation(steady(most - 2, 21), 0.51), slow)
    yield Case(name, "slow at rest", generation(steady(1.0, 21), 0.49))

    def copying(at: float, carried: float) -> Series:
        """Half idle, at some generation, with this share of what the slot can carry."""
        one = of_gpu(paths.RATIO, s, path="pcie", device="gpu1", direction="receive")
        slow_link = generation(steady(at, 21), 0.3)
        moved = of_gpu(pcie.RECEIVED, s)
        return {**slow_link, one: steady(carried, 21), moved: growing((21, 1e9))}

    half = 0.5 / 2 ** (most - 1)
    yield Case(name, "stuck at 1 and starving", copying(1.0, 1.1 * half), slow)
    yield Case(name, "at 1, and nearly nothing moves", copying(1.0, 0.5 * half))
    yield Case(name, "at its full rate and busy with copies", copying(most, 0.9))
    once = [*steady(most - 2, 10), *steady(most, 2), *steady(most - 2, 10)]
    yield Case(name, "fast now and then", generation(once, 1.0))


def ports(_: System) -> Iterator[Case]:
    name = "DgxLinkDegraded"

    def port(path: str, device: str, speed: float, origin: str = "hardware") -> Series:
        one = {"path": path, "device": device, "gpu": "", "uuid": "", "direction": "receive"}
        return {
            named(paths.LIMIT, **one): steady(speed, 6),
            named(paths.SPEC, **one): steady(50e9, 6),
            named(paths.LIMIT_INFO, **one, origin=origin, source="x"): steady(1.0, 6),
        }

    for path, device in (("infiniband", "mlx5_0:1"), ("network", "eno1")):
        labels = {"path": path, "device": device, "direction": "receive"}
        fires = ({"severity": "warning", **labels},)
        yield Case(name, f"{path} at half its rate", port(path, device, 25e9), fires)
        yield Case(name, f"{path} at its rate", port(path, device, 50e9))
        brief = {n: p[:18] for n, p in port(path, device, 25e9).items()}
        yield Case(name, f"{path}, just too short", brief)
    own = port("infiniband", "mlx5_0:1", 25e9, "configured")
    yield Case(name, "a limit of its owner", own)
    yield Case(name, "a slot is no port", port("pcie", "gpu1", 25e9))


TABLES = (missing, error, memory, hot, nvlinks, lanes, ports)
