"""`dgx-telemetry up`: agent, Prometheus, Alertmanager and Grafana as a local stack."""

import argparse
import asyncio
import json
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from agent.cli.options import config_path, settings_of, stop_signal
from agent.cli.table import table
from agent.config.atomic_file import atomic_write
from agent.config.configuration import ConfigError
from agent.config.settings import Settings
from agent.errors import printable
from agent.hardware.nvml import Nvml, real_library
from agent.model import Absent
from agent.ranges import ranges
from agent.stack import files, programs
from agent.stack.child import ChildProcess, supervise
from agent.stack.files import data_folder
from agent.stack.programs import LOOPBACK, USUAL_PORTS, FreePorts, StackProgram, answer, choose

ACTIVE = "/api/v2/alerts?active=true&silenced=false&inhibited=false"
STATUS = "/api/v2/status"
EVERY = 2.0
"""Seconds between two checks."""


Alert = Mapping[str, Any]


async def tail_alerts(port: int) -> None:
    """Print each alert when it arrives, and when it is over."""
    before: dict[str, Alert] = {}
    started = ""
    while True:
        (_, state), (_, body) = await answer(port, STATUS), await answer(port, ACTIVE)
        with suppress(ValueError, KeyError):  # it was killed while it answered
            since, now = json.loads(state)["uptime"], by_name(json.loads(body))
            for line in lines(now[one] for one in now.keys() - before.keys()):
                say(f"alert: {line}")
            if since == started:  # an agent that was started again knows of nothing yet
                for line in lines(before[one] for one in before.keys() - now.keys()):
                    say(f"over: {line}")
            before, started = now if since == started else {**before, **now}, since
        await asyncio.sleep(EVERY)


def by_name(alerts: Iterable[Alert]) -> dict[str, Alert]:
    """Alerts by their fingerprint, without the watchdog, which always fires."""
    return {a["fingerprint"]: a for a in alerts if a["labels"].get("severity", "none") != "none"}


def lines(alerts: Iterable[Alert]) -> Iterator[str]:
    """A line per alert; alerts of several GPUs of a node share it, with the text of the first."""
    alike: dict[tuple[str, ...], list[Alert]] = {}
    for alert in sorted(alerts, key=_gpu):
        names = [alert["labels"].get(name, "") for name in ("alertname", "severity", "instance")]
        alike.setdefault((*names, "" if _gpu(alert) >= 0 else alert["fingerprint"]), []).append(
            alert
        )
    for (name, severity, *_), group in alike.items():
        gpus = f"GPUs {ranges(map(_gpu, group))}; " if len(group) > 1 else ""
        yield f"{name} ({severity}) {gpus}{group[0]['annotations']['description']}"


def _gpu(alert: Alert) -> int:
    number = alert["labels"].get("gpu", "")
    return int(number) if number.isdecimal() else -1


FALLBACK = "dgx-h100"
"""System that is simulated on a machine without a GPU; it plays all scenarios in turn."""

OF_FLEET = "dgx-1-v100"
"""System of the nodes of a simulated fleet, unless `--simulate` names another."""


@dataclass(frozen=True, slots=True)
class StackPlan:
    """Plan of a stack: the programs to start, and their options."""

    settings: Settings
    agent_flags: Sequence[str]
    simulated: bool
    speed: float  # of the simulated machine's clock, and of the rules
    binaries: Mapping[str, str | None]  # paths; None for a program that is not installed
    fleet: int = 0  # nodes of a simulated fleet, in the place of the agent
    system: str = OF_FLEET  # of its nodes


def run(arguments: argparse.Namespace) -> int:
    """Start all, print its addresses, end all on Ctrl-C."""
    plan = plan_of(arguments)
    asyncio.run(_until_signal(plan, arguments.data))
    return 0


def plan_of(arguments: argparse.Namespace) -> StackPlan:
    """Return the plan by the flags and this machine; raises BadInput for an impossible plan."""
    from agent import simulator
    from agent.simulator import fleet

    settings = settings_of(arguments)
    machine: str | None = arguments.simulate
    nodes: int = arguments.fleet
    if machine is not None:
        simulator.parse(machine)
    if nodes:
        fleet.plan(nodes)  # refuses a number that cannot be
        if machine and ":" in machine:
            raise ConfigError("--fleet has its own loads: --simulate may only name the system")
    binaries = {
        "setpriv": programs.SETPRIV.need(),
        "prometheus": _found(programs.PROMETHEUS, "nothing is kept, no rule is evaluated"),
        "alertmanager": _found(programs.ALERTMANAGER, "alerts reach no one"),
        "grafana": programs.GRAFANA.find(),
    }
    if machine is None and not nodes and not driver_answers():
        machine = FALLBACK
        say(f"no NVIDIA GPU answers here: watching a simulated {FALLBACK} instead")
    speed = arguments.simulate_speed
    if machine is None and not nodes and speed != 1.0:
        raise ConfigError("--simulate-speed needs --simulate or --fleet: real time has one speed")
    path = config_path(arguments)
    flags = [
        *(() if machine is None else ("--simulate", machine, "--simulate-speed", f"{speed:g}")),
        *(() if path is None else ("--config", str(path))),
    ]
    simulated = bool(machine or nodes)
    return StackPlan(settings, flags, simulated, speed, binaries, nodes, machine or OF_FLEET)


def _found(binary: programs.Binary, without: str) -> str | None:
    path = binary.find()
    if path is None:
        say(f"{binary.names[0]} is not installed (apt install {binary.package}): {without}")
    return path


def driver_answers() -> bool:
    nvml = Nvml(real_library())
    try:
        nvml.connect()
        found = nvml.call("nvmlDeviceGetCount")
    except Absent:
        return False
    nvml.disconnect()
    return bool(found)


async def _until_signal(plan: StackPlan, data: Path | None) -> None:
    stop = stop_signal(signal.SIGHUP)
    with data_folder(data) as folder:
        ports = choose()
        write_files(folder, plan, ports)
        leash = (plan.binaries["setpriv"] or "", "--pdeathsig", "KILL", "--")
        children = [
            ChildProcess(program, folder / "logs" / f"{program.name}.log", leash, say)
            for program in programs_of(folder, plan, ports)
        ]

        async def once_ready() -> None:
            living = [child for child in children if not child.abandoned]
            _introduce(living, ports)
            kept = "kept" if data else "removed at the end"
            print(f"Data in {folder} ({kept}). Ctrl-C ends all.", flush=True)
            if any(child.program.name == "alertmanager" for child in living):
                await tail_alerts(ports.alertmanager)

        say(f"starting {', '.join(child.program.name for child in children)}")
        await supervise(children, stop, once_ready)


def programs_of(folder: Path, plan: StackPlan, ports: FreePorts) -> list[StackProgram]:
    """The programs to start: the agent, and the installed ones of the rest."""
    makers = {
        "prometheus": programs.prometheus_program,
        "alertmanager": programs.alertmanager_program,
        "grafana": programs.grafana_program,
    }
    watched = (
        programs.fleet_program(ports.agent, plan.fleet, plan.system, plan.speed)
        if plan.fleet
        else programs.agent_program(ports.agent, plan.agent_flags)
    )
    found = {name: binary for name in makers if (binary := plan.binaries[name]) is not None}
    return [
        watched,
        *(makers[name](path, getattr(ports, name), folder) for name, path in found.items()),
    ]


def write_files(folder: Path, plan: StackPlan, ports: FreePorts) -> None:
    """The configuration of all programs; the logs of an earlier stack are removed."""
    from agent.faults.thresholds import AlertThresholds
    from alerts.build import alertmanager, rules
    from alerts.receivers import Receivers

    usual = files.FLEET_SCRAPE_SECONDS if plan.fleet else files.SCRAPE_SECONDS
    interval, scale = max(usual / plan.speed, files.LEAST_SCRAPE_SECONDS), 1 / plan.speed
    settings, usual_alerts = plan.settings, AlertThresholds()
    if settings[AlertThresholds].grafana == usual_alerts.grafana:  # ours, if it is installed
        ours = f"http://{LOOPBACK}:{ports.grafana}" if plan.binaries["grafana"] else ""
        settings = settings.including(replace(settings[AlertThresholds], grafana=ours))
    rule_files = {f"rules/{name}": text for name, text in rules(settings, scale).items()}
    if plan.simulated:  # a machine that does not exist wakes nobody
        settings = settings.including(Receivers())
    texts = {
        **rule_files,
        **alertmanager(settings, scale),
        "prometheus.yaml": files.prometheus(
            ports, interval, list(rule_files), fleet=bool(plan.fleet)
        ),
        "provisioning/datasources/prometheus.yaml": files.datasource(ports, interval),
        "provisioning/dashboards/dgx.yaml": files.boards(programs.BOARDS),
        **{f"logs/{name}.log": "" for name in ("fleet", *asdict(ports))},
    }
    for name, text in texts.items():
        atomic_write(folder / name, text.encode(), make=True)


def _introduce(children: Sequence[ChildProcess], ports: FreePorts) -> None:
    usual, found = ({"fleet": one.agent, **asdict(one)} for one in (USUAL_PORTS, ports))
    rows = [
        (
            child.program.name,
            child.program.address,
            "" if found[name] == usual[name] else f"another program has port {usual[name]}",
        )
        for child in children
        for name in (child.program.name,)
    ]
    print("\n".join(table(("program", "address", ""), rows)))


def say(news: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {printable(news)}", flush=True)
