"""The `dgx-telemetry up` command. It runs the agent and its servers as a local stack."""

import argparse
import asyncio
import json
import signal
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
from agent.faults.promql import span
from agent.hardware.nvml import Nvml, real_library
from agent.model import Absent
from agent.ranges import gpus_named, is_loopback
from agent.report.questions import NoAnswer, fetched
from agent.stack import programs
from agent.stack.child import run_all
from agent.stack.programs import LOOPBACK, FreePorts, StackProgram, choose
from exporters.settings import HttpConfig

ACTIVE = "/api/v2/alerts?active=true&silenced=false&inhibited=false"
Alert = Mapping[str, Any]


async def tail_alerts(port: int) -> None:
    """Print each alert when it starts to fire and when it is resolved."""
    before: dict[str, Alert] = {}
    while True:
        with suppress(NoAnswer):
            found = await asyncio.to_thread(fetched, f"http://{LOOPBACK}:{port}{ACTIVE}")
            now = by_name(found)
            for line in lines(now[one] for one in now.keys() - before.keys()):
                say(f"alert: {line}")
            for line in lines(before[one] for one in before.keys() - now.keys()):
                say(f"over: {line}")
            before = now
        await asyncio.sleep(2.0)


def by_name(alerts: Iterable[Alert]) -> dict[str, Alert]:
    """Return the alerts by fingerprint, without the watchdog alert, which always fires."""
    return {a["fingerprint"]: a for a in alerts if a["labels"].get("severity", "none") != "none"}


def lines(alerts: Iterable[Alert]) -> Iterator[str]:
    """Yield a line for each alert. If several GPUs of a node have the same alert, yield only one
    line, with the description of the first alert."""
    alike: dict[tuple[str, ...], list[Alert]] = {}
    for alert in sorted(alerts, key=_gpu):
        names = [alert["labels"].get(name, "") for name in ("alertname", "severity", "instance")]
        apart = "" if _gpu(alert) >= 0 else alert["fingerprint"]
        alike.setdefault((*names, apart), []).append(alert)
    for (name, severity, *_), group in alike.items():
        gpus = f"{gpus_named(map(_gpu, group))}; " if len(group) > 1 else ""
        yield f"{name} ({severity}) {gpus}{group[0]['annotations']['description']}"


def _gpu(alert: Alert) -> int:
    number = alert["labels"].get("gpu", "")
    return int(number) if number.isdecimal() else -1


FALLBACK = "dgx-h100"
"""The system that `up` simulates on a machine without a GPU. Its scenarios run in turn."""

OF_FLEET = "dgx-1-v100"
"""The system of the nodes in a simulated fleet, unless `--simulate` names another."""


@dataclass(frozen=True, slots=True)
class StackPlan:
    """The programs that `up` starts, and their options."""

    settings: Settings
    agent_flags: Sequence[str]
    simulated: bool
    speed: float  # speed of the simulated clock and of the rules
    installed: Collection[str]  # names of the installed programs
    ports: FreePorts  # the ports to use if they are free
    fleet: int = 0  # number of simulated nodes that replace the agent; 0 for no fleet
    system: str = OF_FLEET  # system of the simulated nodes


def run(arguments: argparse.Namespace) -> int:
    """Start the stack, print the addresses of its programs, and stop them on Ctrl-C."""
    plan = plan_of(arguments)
    asyncio.run(_until_signal(plan, arguments.data))
    return 0


def plan_of(arguments: argparse.Namespace) -> StackPlan:
    """Return the plan that the flags and this machine require. Raise BadInput if flags conflict."""
    from agent import simulator
    from alerts.receivers import Receivers

    settings = settings_of(arguments)
    machine: str | None = arguments.simulate
    nodes: int = arguments.fleet
    if machine is not None:
        simulator.parse(machine)
    if nodes:
        simulator.scenarios.plan(nodes)  # raises an error if the number is invalid
        if machine and ":" in machine:
            raise ConfigError("--fleet has its own loads: --simulate may only name the system")
    installed = [name for name in programs.SERVERS if programs.binary(name)]
    for name, server in programs.SERVERS.items():
        if server.missing and name not in installed:
            package = server.binaries[0]
            say(f"{package} is not installed (apt install {package}): {server.missing}")
    if machine is None and not nodes and not driver_answers():
        machine = FALLBACK
        say(f"no NVIDIA GPU responds here: monitoring a simulated {FALLBACK} instead")
    speed = arguments.simulate_speed
    if machine is None and not nodes and speed != 1.0:
        raise ConfigError("--simulate-speed needs --simulate or --fleet: real time has one speed")
    path = config_path(arguments)
    flags = () if path is None else ("--config", str(path))
    if machine and not nodes:
        flags = ("--simulate", machine, "--simulate-speed", f"{speed:g}", *flags)
    simulated = bool(machine or nodes)
    if simulated and settings[Receivers] != Receivers():
        say("[alertmanager] is not applied: a simulated machine notifies no one")
    ports, system = ports_of(settings[HttpConfig]), machine or OF_FLEET
    return StackPlan(settings, flags, simulated, speed, installed, ports, nodes, system)


def ports_of(here: HttpConfig) -> FreePorts:
    """Return the ports to use if they are free. The agent's port is that of the setting `listen`,
    whose host is not used. TLS and passwords are not used either, as Prometheus has none."""
    host, port = here.address
    if host != "localhost" and not is_loopback(host):
        say(f"`listen` names {host or 'all addresses'}: this stack listens on loopback only")
    if here.web_config_file:
        say("`web_config_file` is not applied: this stack has neither TLS nor passwords")
    return FreePorts(agent=port)


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
    with programs.data_folder(data) as folder:
        ports = choose(plan.ports)
        write_files(folder, plan, ports)

        async def once_ready(living: Sequence[StackProgram]) -> None:
            _introduce(living, plan.ports, ports)
            kept = "kept" if data else "removed at the end"
            print(f"Data in {folder} ({kept}). Ctrl-C ends all.", flush=True)
            if any(program.name == "alertmanager" for program in living):
                await tail_alerts(ports.alertmanager)

        wanted = programs_of(folder, plan, ports)
        say(f"starting {', '.join(program.name for program in wanted)}")
        await run_all(wanted, folder / "logs", stop, once_ready, say)


def programs_of(folder: Path, plan: StackPlan, ports: FreePorts) -> list[StackProgram]:
    """Return the programs to start: the agent or a simulated fleet, and all installed servers."""
    watched = (
        programs.fleet_program(ports.agent, plan.fleet, plan.system, plan.speed, plan.agent_flags)
        if plan.fleet
        else programs.agent_program(ports.agent, plan.agent_flags)
    )
    servers = plan.installed
    rest = [programs.server_program(name, getattr(ports, name), folder) for name in servers]
    return [watched, *rest]


def write_files(folder: Path, plan: StackPlan, ports: FreePorts) -> None:
    """Write the configuration files of all programs, and clear the logs of the previous stack."""
    from agent.faults.thresholds import AlertThresholds
    from alerts.build import alertmanager, rules
    from alerts.receivers import Receivers

    usual, scale = programs.FLEET_SCRAPE_SECONDS if plan.fleet else 5.0, 1 / plan.speed
    # The interval is also the timeout of a scrape: with 0.1 s, busy agents were reported as down.
    interval = max(usual * scale, 1.0)
    settings, usual_alerts = plan.settings, AlertThresholds()
    if settings[AlertThresholds].grafana == usual_alerts.grafana:  # by default, link to our Grafana
        ours = f"http://{LOOPBACK}:{ports.grafana}" if "grafana" in plan.installed else ""
        settings = settings.including(replace(settings[AlertThresholds], grafana=ours))
    rule_files = {f"rules/{name}": text for name, text in rules(settings, scale).items()}
    if plan.simulated:  # a simulated machine must not send notifications
        settings = settings.including(Receivers())
    url, boards, fleet = f"{LOOPBACK}:{ports.prometheus}", str(programs.BOARDS), bool(plan.fleet)
    texts = {
        **rule_files,
        **alertmanager(settings, scale),
        "prometheus.yaml": programs.prometheus(ports, interval, [*rule_files], fleet=fleet),
        "provisioning/datasources/prometheus.yaml": programs.filled(
            "datasource", prometheus=url, interval=span(interval)
        ),
        "provisioning/dashboards/dgx.yaml": programs.filled("boards", folder=json.dumps(boards)),
        **{f"logs/{name}.log": "" for name in ("fleet", *asdict(ports))},
    }
    for name, text in texts.items():
        atomic_write(folder / name, text.encode(), make=True)


def _introduce(living: Sequence[StackProgram], asked: FreePorts, ports: FreePorts) -> None:
    usual, found = ({"fleet": one.agent, **asdict(one)} for one in (asked, ports))
    rows = []
    for name, address in ((program.name, program.address) for program in living):
        given = usual[name] in (0, found[name])  # port 0 stands for any free port
        taken = "" if given else f"another program has port {usual[name]}"
        rows.append((name, address, taken))
    print("\n".join(table(("program", "address", ""), rows)))


def say(news: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {printable(news)}", flush=True)
