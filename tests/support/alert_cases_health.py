"""Cases of the alerts on memory, fabric, PCIe and the rest of the box: firing and quiet."""

from collections.abc import Iterator

from agent.model import Reason
from agent.sources import chassis as chassis_source
from agent.sources import disk, ecc, gpu, host, infiniband, kernel_log, nvlink, pcie, power, xid
from agent.sources import fabric as fabric_source
from agent.sources.agent_health import ABSENT_VALUES, GPU_READ_FAILURES, GPU_READ_SECONDS
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
    steady,
)

PORT = {"device": "mlx5_0", "port": "1"}


def memory(s: System) -> Iterator[Case]:
    name, action = "DgxGpuRecoveryNeeded", of_gpu(gpu.RECOVERY_ACTION, s)
    yield Case(name, "a reset", {action: steady(1.0, 3.25)}, (on(s, "critical"),))
    yield Case(name, "a reboot", {action: steady(2.0, 3.25)}, (on(s, "critical"),))
    yield Case(name, "a bus reset", {action: steady(6.0, 3.25)}, (on(s, "critical"),))
    yield Case(name, "nothing", {action: steady(0.0, 10)})
    yield Case(name, "no longer exported", {action: [*steady(1.0, 5), *[None] * 10]})
    name = "DgxGpuPagesPending"
    for metric in (ecc.REMAP_PENDING, ecc.RETIRED_PENDING):
        waits = {of_gpu(metric, s): steady(1.0, 8.25)}
        sign = "rows" if metric is ecc.REMAP_PENDING else "pages"
        yield Case(name, f"{metric}", waits, (on(s, "warning", sign=sign),))
        yield Case(name, f"{metric}, none", {of_gpu(metric, s): steady(0.0, 5)})


def not_answering(s: System) -> Iterator[Case]:
    name = "DgxGpuNotAnswering"
    took, failed = (of_gpu(GPU_READ_SECONDS, s), of_gpu(GPU_READ_FAILURES, s))
    slow, failing = (on(s, "warning", sign=sign) for sign in ("slow", "failing"))
    hangs = [*steady(0.01, 1), *(15.0 * n for n in range(1, 7))]
    yield Case(name, "a call hangs", {took: hangs}, (slow,))
    yield Case(name, "calls hang again and again", {took: steady(45.0, 3)}, (slow,))
    yield Case(name, "a call took a moment", {took: [*steady(1.4, 0.5), *steady(0.01, 3)]})
    yield Case(name, "well", {took: steady(0.05, 10), failed: steady(0.0, 10)})
    grows = growing((1, 0.0), (2, 3.0))
    yield Case(name, "some calls fail", {failed: grows}, (failing,))
    yield Case(name, "a seldom read fails", {failed: growing((1, 0.0), (3, 0.1))}, (failing,))
    yield Case(name, "a read failed once", {failed: events([2], 3)})
    yield Case(name, "failed for two seconds", {failed: growing((1, 0.0), (0.25, 2.0), (2, 0.0))})
    yield Case(name, "failed long ago", {failed: steady(4000.0, 5)})

    def answering(reason: str, *links: float | None, models: str = "HHHT") -> Series:
        """Four GPUs of these models; the last is for displays, and has no links."""
        series: Series = {
            named(ABSENT_VALUES, metric=nvlink.LINKS.name, reason=reason): steady(1.0, 20)
        }
        for number, (model, link) in enumerate(zip(models, links, strict=True)):
            series[of_gpu(gpu.INFO, s, number, model=model)] = steady(1.0, 20)
            series[of_gpu(power.POWER, s, number)] = steady(90.0, 20)
            if link is not None:
                series[of_gpu(nvlink.LINKS, s, number)] = steady(link, 20)
        return series

    fires = (on(s, "warning", 2, sign="refuses", model="H"),)
    refused = str(Reason.UNSUPPORTED)
    yield Case(name, "one refuses its links", answering(refused, 4, 4, None, None), fires)
    both = (
        on(s, "warning", 1, sign="refuses", model="H"),
        on(s, "warning", 3, sign="refuses", model="H"),
    )
    two = answering(refused, 4, None, 4, None, models="HHHH")
    yield Case(name, "two of four refuse", two, both)
    yield Case(name, "none has links", answering(refused, None, None, None, None))
    yield Case(name, "one is of another model", answering(refused, 4, 4, 4, None))
    yield Case(name, "one is divided", answering(str(Reason.MIG), 4, 4, None, None))


def rising(s: System) -> Iterator[Case]:
    name = "DgxGpuEccRising"
    corrected = of_gpu(ecc.ERRORS, s, severity="corrected", lifetime="volatile")
    fires = (on(s, "warning", sign="corrected"),)
    yield Case(name, "many in an hour", {corrected: growing((8, 140 / 60))}, fires)
    yield Case(name, "few in an hour", {corrected: growing((8, 60 / 60))})
    reset = [*growing((2, 1.0), start=9e6), *growing((2, 1.0))]
    yield Case(name, "its counter is reset", {corrected: reset})
    rows = of_gpu(ecc.REMAPPED_ROWS, s, severity="uncorrected")
    yield Case(name, "rows", {rows: steady(410.0, 3.25)}, (on(s, "warning", sign="rows"),))
    yield Case(name, "some rows", {rows: steady(409.0, 4)})
    single, double = (of_gpu(ecc.RETIRED_PAGES, s, cause=c) for c in ("single_bit", "double_bit"))
    pages = {single: steady(20.0, 3.25), double: steady(31.0, 3.25)}
    yield Case(name, "pages", pages, (on(s, "warning", sign="pages"),))
    yield Case(name, "some pages", {single: steady(20.0, 4), double: steady(10.0, 4)})


def nvlink5(s: System) -> Iterator[Case]:
    name = "DgxGpuXid"
    info = {of_gpu(gpu.INFO, s, model="x"): steady(1.0, 7)}
    once = [p or None for p in events([1], 7)]
    for severity, action in (("critical", "reset"), ("info", "ignore")):
        shown = {"xid": "149", "unit": "NETIR_LINK_EVT", "action": action}
        series = {of_gpu(xid.NVLINK_FAULTS, s, **shown): once, **info}
        fires = ({**on(s, severity, sign="nvlink5"), **shown},)
        yield Case(name, f"of NVLink 5, {action}", series, fires)


def fabric(s: System) -> Iterator[Case]:
    name, running = "DgxFabricFault", named(host.FABRIC_MANAGER)
    critical = {"severity": "critical"}
    down = {running: [*steady(1.0, 5), *steady(0.0, 2.25)]}
    yield Case(name, "no one manages", down, ({**critical, "sign": "manager"},))
    yield Case(name, "restarted", {running: [*steady(1.0, 5), *steady(0.0, 1), *steady(1.0, 3)]})
    state = of_gpu(fabric_source.FABRIC_STATE, s)
    yield Case(name, "in progress", {state: steady(2.0, 5.25)}, (on(s, "critical", sign="state"),))
    yield Case(name, "joining", {state: steady(2.0, 4)})
    yield Case(name, "joined", {state: steady(3.0, 10)})
    kind = of_gpu(fabric_source.HEALTH, s, kind="route_unhealthy")
    fires = (on(s, "warning", sign="health", kind="route_unhealthy"),)
    yield Case(name, "routes", {kind: steady(1.0, 5.25)}, fires)
    error = of_gpu(fabric_source.HEALTH, s, kind=fabric_source.REGISTRATION)
    fires = (on(s, "warning", sign="health", kind=fabric_source.REGISTRATION),)
    yield Case(name, "registered with an error", {error: steady(1.0, 5.25)}, fires)
    yield Case(name, "healthy", {kind: steady(0.0, 10)})
    one = {"switch": "nvidia-nvswitch0", "sxid": "20034"}
    fatal = named(kernel_log.SWITCH_ERRORS, severity="fatal", **one)
    once = [p or None for p in events([1], 3)]
    yield Case(name, "a switch", {fatal: once}, ({**critical, "sign": "switch", **one},))
    harmless = named(kernel_log.SWITCH_ERRORS, severity="non_fatal", **one)
    yield Case(name, "a switch, not fatal", {harmless: once})
    yield Case(name, "a switch, long ago", {fatal: events([5], 42)})


def replays(s: System) -> Iterator[Case]:
    name = "DgxPcieReplays"
    limit = {3: 0.48, 5: 1.92}[s.generation]

    def link(times: float) -> Series:
        return {
            of_gpu(pcie.REPLAYS, s): growing((26, times * limit * s.lanes / 60)),
            of_gpu(pcie.WIDTH, s): steady(float(s.lanes), 26),
            of_gpu(pcie.GENERATION_LIMIT, s): steady(float(s.generation), 26),
        }

    fires = (on(s, "warning"),)
    yield Case(name, "more than may be", link(1.1), fires)
    yield Case(name, "as many as may be", link(0.9))
    yield Case(name, "none", link(0.0))


def ports(_: System) -> Iterator[Case]:
    name = "DgxInfinibandErrors"

    def errors(kind: str, points: Points) -> Series:
        return {named(infiniband.ERRORS, **PORT, kind=kind): points}

    def shown(kind: str) -> tuple[dict[str, str], ...]:
        return ({"severity": "warning", "sign": "errors", **PORT, "kind": kind},)

    for kind, few, many in (
        ("local_link_integrity_errors", 0.0, 1 / 120),
        ("excessive_buffer_overrun_errors", 0.0, 1 / 120),
        ("symbol_error", 100 / 615, 140 / 300),
        ("link_error_recovery", 200 / 615, 400 / 300),
    ):
        yield Case(name, f"{kind}, many", errors(kind, growing((10.25, many))), shown(kind))
        yield Case(name, f"{kind}, few", errors(kind, growing((10.25, few))))
    yield Case(name, "of another kind", errors("port_rcv_errors", growing((10.25, 1.0))))
    state = named(infiniband.PORT_UP, **PORT)
    down = ({"severity": "warning", "sign": "down", **PORT},)
    yield Case(name, "went down", {state: [*steady(1.0, 5), *steady(0.0, 5.25)]}, down)
    yield Case(name, "was never up", {state: steady(0.0, 20)})
    yield Case(name, "came back", {state: [*steady(1.0, 5), *steady(0.0, 4), *steady(1.0, 2)]})
    name, fires = "DgxInfinibandFlapping", ({"severity": "warning", **PORT},)
    downs = errors("link_downed", events([2, 5, 8], 10))
    yield Case(name, "three times", downs, fires)
    yield Case(name, "twice", errors("link_downed", events([2, 5], 10)))
    flaps = [*steady(1.0, 2), *steady(0.0, 1)] * 3 + steady(1.0, 1)
    yield Case(name, "seen three times", {state: flaps}, fires)
    yield Case(name, "a reboot", {state: [*steady(1.0, 2), None, None, *steady(0.0, 1), 1.0]})


def storage(_: System) -> Iterator[Case]:
    name = "DgxRaidDegraded"
    working, missing = (named(disk.MEMBERS, device="md0", state=s) for s in ("working", "missing"))
    less: Series = {working: steady(3.0, 1.25), missing: steady(1.0, 1.25)}
    degraded = {"severity": "warning", "device": "md0", "array": "md0"}
    yield Case(*(name, "one less", less), ({**degraded, "sign": "missing", "state": "missing"},))
    gone: Series = {
        **less,
        named(disk.MEMBER_FAILED, device="md0", member="nvme1n1"): steady(1.0, 1.25),
    }
    yield Case(
        name, "one less, by name", gone, ({**degraded, "sign": "member", "member": "nvme1n1"},)
    )
    dead: Series = {working: steady(0.0, 1.25), missing: steady(0.0, 1.25)}
    fires = ({"severity": "critical", "sign": "dead", "device": "md0", "state": "working"},)
    yield Case(name, "none works", dead, fires)
    whole: Series = {working: steady(4.0, 5), missing: steady(0.0, 5)}
    yield Case(name, "whole", whole)
    name = "DgxDiskFailing"
    for kind in ("controller", "temperature", "file_system", "smart"):
        one = {"device": "nvme0n1", "kind": kind}
        fires = ({"severity": "warning", "sign": kind, **one},)
        yield Case(name, kind, {named(disk.FAULT, **one): steady(1.0, 5.25)}, fires)
    yield last_copy(name)
    well = named(disk.FAULT, device="nvme0n1", kind="controller")
    yield Case(name, "all well", {well: steady(0.0, 10)})


def last_copy(name: str) -> Case:
    """Of two disks of an array one is dead, and the other begins to fail."""
    minutes = 5.25
    series: Series = {
        named(disk.MEMBERS, device="md0", state="missing"): steady(1.0, minutes),
        named(disk.MEMBER_FAILED, device="md0", member="nvme1n1"): steady(1.0, minutes),
    }
    fires = []
    for device, kind in (("nvme0n1", "smart"), ("nvme1n1", "controller")):
        one = {"device": device, "kind": kind}
        info = {"device": device, "model": "x", "kind": "disk", "array": "md0"}
        series[named(disk.FAULT, **one)] = steady(1.0, minutes)
        series[named(disk.DISK_INFO, **info)] = steady(1.0, minutes)
        member = {**one, "array": "md0", "member": device}
        fires.append({"severity": "warning", "sign": kind, **member})
    fires.append({**fires[0], "severity": "critical", "sign": "last_copy"})
    return Case(name, "the last copy", series, tuple(fires))


def chassis(_: System) -> Iterator[Case]:
    name = "DgxChassisFault"
    for kind in ("fan", "power_supply", "temperature"):
        one = {"sensor": "fan1 (pmbus hwmon1)", "kind": kind}
        fires = ({"severity": "warning", "sign": kind, **one},)
        yield Case(name, kind, {named(chassis_source.FAULT, **one): steady(1.0, 2.25)}, fires)
    well = named(chassis_source.FAULT, sensor="fan1 (pmbus hwmon1)", kind="fan")
    yield Case(name, "turning", {well: steady(0.0, 5)})
    lost = {"dimm": "DIMM_A1 (mc0 dimm3)", "severity": "uncorrected"}
    fires = ({**lost, "severity": "critical", "sign": "uncorrected"},)
    lasting = {named(chassis_source.DIMM_ERRORS, **lost): steady(1.0, 1)}
    yield Case("DgxMemoryErrors", "an uncorrected error before the agent", lasting, fires)


def slow_long(s: System) -> Iterator[Case]:
    """Errors of one part for a day; fewer of them, and as many on all alike."""
    link = {"kind": "recovery"}
    gpu = on(s, "info", sign="slow")
    aggregate = {"severity": "corrected", "lifetime": "aggregate"}
    parts: tuple[tuple[str, object, dict[str, str], int, dict[str, str]], ...] = (
        ("DgxNvlinkErrors", nvlink.ERRORS, {**link, "link": "3"}, 10, {**gpu, "link": "3"}),
        ("DgxPcieReplays", pcie.REPLAYS, {}, 2000, gpu),
        ("DgxGpuEccRising", ecc.ERRORS, aggregate, 50, gpu),
        ("DgxGpuEccRising", ecc.REMAPPED_ROWS, {"severity": "corrected"}, 2, gpu),
    )
    for name, metric, labels, many, fires in parts:
        sign = "slow_rows" if metric is ecc.REMAPPED_ROWS else "slow"
        for factor, alike in ((1.3, False), (0.7, False), (1.3, True)):
            errs = growing((1440, factor * many / 86_400), every=600)
            gpus = range(4) if alike else (1,)
            series: Series = {of_gpu(metric, s, gpu, **labels): errs for gpu in gpus}
            title = f"{metric}, {factor:g} of the limit{', on four GPUs' * alike}"
            due = ({**fires, "sign": sign},) if factor > 1 and not alike else ()
            yield Case(name, title, series, due, every=600)
    errs = growing((1440, 130 / 86_400), every=600)
    port = {named(infiniband.ERRORS, **PORT, kind="symbol_error"): errs}
    shown = {"severity": "info", "sign": "slow", **PORT}
    yield Case("DgxInfinibandErrors", "a symbol error now and then", port, (shown,), every=600)
    for daily in (13, 7):
        dimm = {"dimm": "DIMM_A1 (mc0 dimm3)"}
        count = named(chassis_source.DIMM_ERRORS, **dimm, severity="corrected")
        series = {count: growing((1440, daily / 86_400), every=600)}
        slow = {"severity": "info", "sign": "slow", **dimm}
        title = f"{daily} corrections a day"
        yield Case("DgxMemoryErrors", title, series, (slow,) if daily > 10 else (), every=600)


TABLES = (
    *(memory, not_answering, rising, nvlink5, fabric),
    *(replays, ports, storage, chassis, slow_long),
)
