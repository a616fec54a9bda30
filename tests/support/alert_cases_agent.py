"""Cases of the alerts for those who run the monitoring: firing and quiet."""

from collections.abc import Iterator

from agent.sources import system
from agent.sources.agent_health import (
    ABSENT_VALUES,
    CERTIFICATE_ENDS,
    CLOCK_STEPS,
    CONFIG_OK,
    LAST_TICK,
    SOURCE_UP,
)
from tests.support.alert_input import Case, Points, Series, System, events, growing, named, steady


def down(_: System) -> Iterator[Case]:
    name = "DgxAgentDown"
    fires = ({"severity": "critical", "sign": "silence"},)
    yield Case(name, "silent", {named("up"): [*steady(1, 5), *steady(0, 2)]}, fires)
    yield Case(name, "just too short", {named("up"): [*steady(1, 5), *steady(0, 1.5)]})
    yield Case(name, "there", {named("up"): steady(1, 10)})
    out = {named("up", drained="board ordered"): [*steady(1, 5), *steady(0, 5)]}
    yield Case(name, "taken out", {**out, 'up{instance="y", job="dgx-telemetry"}': steady(1, 10)})
    seldom = ({"severity": "warning", "sign": "sometimes"},)
    third: Points = [1.0, 0.0, 0.0] * 28
    yield Case(name, "each third scrape", {named("up"): third}, seldom)
    tenth: Points = [*[1.0] * 9, 0.0] * 9
    yield Case(name, "a scrape in ten fails", {named("up"): tenth})
    other = {'up{instance="x", job="other"}': steady(1, 5)}
    no_target = {"severity": "critical", "sign": "no_target", "instance": ""}
    yield Case(name, "no target", other, (no_target,))


def blind(_: System) -> Iterator[Case]:
    name = "DgxAgentBlind"

    def source(up: float, minutes: float, which: str = "clocks") -> Series:
        return {named(SOURCE_UP, source=which): [*steady(1.0, 5), *steady(up, minutes)]}

    def sign(text: str) -> tuple[dict[str, str]]:
        return ({"severity": "warning", "sign": text},)

    def absent(reason: str, minutes: float, metric: object = "dgx_gpu_power_watts") -> Series:
        labels = {"metric": str(metric), "reason": reason}
        return {named(ABSENT_VALUES, **labels): steady(4.0, minutes)}

    several = {**source(0.0, 3.25), **source(0.0, 3.25, "power")}
    yield Case(name, "two sources do not deliver", several, sign("sources"))
    yield Case(name, "just too short", source(0.0, 1.5))
    yield Case(name, "all deliver", source(1.0, 10))
    laptop = {**source(0.0, 10, "nvml"), **absent("no_driver", 15.25, system.GPUS)}
    yield Case(name, "no driver, and no GPU", laptop)
    released = {**source(1.0, 10, "nvml"), **absent("released", 15.25, system.GPUS)}
    yield Case(name, "the driver is released", released)
    crashed = {**source(0.0, 3.25, "nvml"), **absent("crashed", 8.25, system.GPUS)}
    yield Case(name, "NVML crashes", crashed, sign("sources"))
    both = {**laptop, **source(0.0, 10, "disk")}
    yield Case(name, "no driver, and the disks do not deliver", both, sign("sources"))
    yield Case(name, "values have expired", absent("stalled", 3), sign("values"))
    yield Case(name, "values expired a moment ago", absent("stalled", 1.5))
    yield Case(name, "the hardware has no such value", absent("unsupported", 10))
    slow = {**absent("stalled", 10), **source(0.0, 5)}
    yield Case(name, "a source and its values are reported once", slow, sign("sources"))
    hung = {**absent("stalled", 10.25, system.GPUS), **source(0.0, 5, "nvml")}
    fires = ({"severity": "critical", "sign": "driver", "source": "nvml"},)
    yield Case(name, "a driver that hangs", hung, fires)
    ticks = {named(LAST_TICK): growing((10, 1.0), (6.75, 0.0), start=1.7e9)}
    yield Case(name, "it ticks no more", ticks, sign("ticks"))
    brief = {named(LAST_TICK): growing((10, 1.0), (3, 0.0), start=1.7e9)}
    yield Case(name, "it ticked a moment ago", brief)
    slow_clock = {named(LAST_TICK): growing((10, 1.0), start=1.0)}
    yield Case(name, "its clock is years behind", slow_clock)


def restarting(_: System) -> Iterator[Case]:
    name, started = "DgxAgentRestarting", named("process_start_time_seconds")
    fires = ({"severity": "warning"},)
    often: Points = [float(minute) for minute in range(10) for _ in range(4)]
    yield Case(name, "each minute", {started: often}, fires)
    twice: Points = [*steady(1.0, 20), *steady(2.0, 20), *steady(3.0, 5)]
    yield Case(name, "twice", {started: twice})


def watchdog(_: System) -> Iterator[Case]:
    nothing = {"severity": "none", "instance": "", "job": ""}
    yield Case("DgxWatchdog", "always", {named("up"): steady(1, 1)}, (nothing,))


def settings(_: System) -> Iterator[Case]:
    name, fires = "DgxAgentReloadFailed", ({"severity": "warning"},)
    yield Case(name, "refused", {named(CONFIG_OK): [*steady(1, 5), *steady(0, 1.25)]}, fires)
    yield Case(name, "refused a moment ago", {named(CONFIG_OK): [*steady(1, 5), *steady(0, 0.5)]})
    yield Case(name, "good", {named(CONFIG_OK): steady(1, 10)})
    name, fires, day = "DgxAgentCertificateExpiring", ({"severity": "warning"},), 86400.0
    yield Case(name, "ends in 13 days", {named(CERTIFICATE_ENDS): steady(13 * day, 8)}, fires)
    yield Case(name, "has ended", {named(CERTIFICATE_ENDS): steady(1.0, 8)}, fires)
    yield Case(name, "ends in 15 days", {named(CERTIFICATE_ENDS): steady(15 * day, 8)})
    name, fires = "DgxClockStepped", ({"severity": "info", "sign": "once"},)
    often = (*fires, {"severity": "warning", "sign": "often"})
    again = {named(CLOCK_STEPS): events([1, 2, 3, 4], 5)}
    yield Case(name, "set four times", again, often)
    yield Case(name, "set three times", {named(CLOCK_STEPS): events([1, 2, 3], 5)}, fires)
    yield Case(name, "set once", {named(CLOCK_STEPS): events([2], 4)}, fires)
    yield Case(name, "set long ago", {named(CLOCK_STEPS): events([2], 34)})
    restarted = {named(CLOCK_STEPS): [*steady(3.0, 10), *steady(0.0, 10)]}
    yield Case(name, "a restart of the agent", restarted)


def rules(_: System) -> Iterator[Case]:
    name = "DgxRulesFailing"
    group = {"rule_group": "/etc/r/x.yaml;dgx-gpus"}

    def failures(points: Points, **labels: str) -> Series:
        return {named("prometheus_rule_evaluation_failures_total", **{**group, **labels}): points}

    expected = ({"severity": "warning", **group},)
    yield Case(name, "a rule fails", failures(growing((10, 0.0), (2, 1 / 15))), expected)
    yield Case(name, "none fails", failures(steady(3.0, 20)))
    yield Case(name, "failed long ago", failures(growing((1, 1.0), (12, 0.0))))
    others = failures(growing((10, 1.0)), rule_group="/etc/r/y.yaml;node-exporter")
    yield Case(name, "a rule of others", others)
    of = {"group": "dgx-jobs", "id": "7"}
    failing = {named("vmalert_recording_rules_error", **of): steady(1.0, 3)}
    yield Case(name, "in vmalert", failing, ({"severity": "warning", **of},))


TABLES = (down, restarting, blind, settings, rules, watchdog)
