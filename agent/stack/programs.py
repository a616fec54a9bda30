"""The programs of the stack: the places of their binaries, and their start on loopback."""

import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass, field
from pathlib import Path

import agent

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class FreePorts:
    """Ports by program."""

    agent: int = 9935
    prometheus: int = 9090
    alertmanager: int = 9093
    grafana: int = 3000


USUAL_PORTS = FreePorts()


def choose(wanted: FreePorts = USUAL_PORTS) -> FreePorts:
    """Return the wanted ports, each replaced by a free port if it is taken."""
    with ExitStack() as held:  # all until all are chosen, so that no two are the same
        return FreePorts(*(_free(port, held) for port in astuple(wanted)))


def _free(port: int, held: ExitStack) -> int:
    candidate = held.enter_context(socket.socket())
    # Connections of a stack that just ended linger for a minute, and delay no new stack.
    candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        candidate.bind((LOOPBACK, port))
    except OSError:
        candidate.bind((LOOPBACK, 0))
    return int(candidate.getsockname()[1])


SOURCE_FOLDER = Path(agent.__file__).resolve().parents[1]
"""Path of this program's packages: the source tree, or the site-packages of an installation."""

BOARDS = SOURCE_FOLDER / "deploy/grafana/dashboards"
"""Generated boards. They are part of the source tree, not of an installed package."""

BINARY_FOLDERS = os.pathsep.join((str(Path(sys.prefix) / "bin"), "/usr/sbin", "/usr/local/sbin"))
"""Folders that are searched for binaries after PATH: this virtual environment, and the usual
folders of servers."""

GRAFANA_HOMES = (Path("/usr/share/grafana"), Path("/opt/grafana"))


@dataclass(frozen=True, slots=True)
class StackProgram:
    """A program of the stack: its command, and the sign that it is ready."""

    name: str
    arguments: Sequence[str]
    port: int
    ready: str = "/-/ready"  # path that answers 200 once it is ready
    environment: Mapping[str, str] = field(default_factory=dict)
    optional: bool = True  # only the agent must run: its page stands alone

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.port}/"


LEASH = ("setpriv", "--pdeathsig", "KILL", "--")
"""Words before the command of a child that makes it die with its parent."""

BINARIES = {
    "prometheus": ("prometheus",),
    "alertmanager": ("prometheus-alertmanager", "alertmanager"),
    "grafana": ("grafana-server",),
}
"""Names of the binary of each program; the first is also the Debian package, if there is one."""


def binary(program: str) -> str:
    """The path of a program's binary; empty if it is not installed."""
    path = os.pathsep.join((os.environ.get("PATH", ""), BINARY_FOLDERS))
    found = (shutil.which(name, path=path) for name in BINARIES[program])
    return next(filter(None, found), "")


def agent_program(port: int, flags: Sequence[str]) -> StackProgram:
    return _own("agent", port, "agent", "run", "--listen", f"{LOOPBACK}:{port}", *flags)


def fleet_program(
    port: int, nodes: int, system: str, speed: float, flags: Sequence[str] = ()
) -> StackProgram:
    arguments = "agent.cli.fleet", str(nodes), system, f"{LOOPBACK}:{port}", f"{speed:g}"
    return _own("fleet", port, *arguments, *flags)


def _own(name: str, port: int, *module: str) -> StackProgram:
    """Return the command for a module of these packages; `-P` keeps an `agent` in the current
    folder out."""
    paths = (str(SOURCE_FOLDER), os.environ.get("PYTHONPATH", ""))
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    arguments = (sys.executable, "-P", "-m", *module)
    return StackProgram(name, arguments, port, environment=environment, optional=False)


def prometheus_program(port: int, folder: Path) -> StackProgram:
    return _server("prometheus", port, folder, "--storage.tsdb.path")


def alertmanager_program(port: int, folder: Path) -> StackProgram:
    """Return Alertmanager over `folder`, alone: without a cluster address it seeks no peers."""
    return _server("alertmanager", port, folder, "--storage.path", "--cluster.listen-address=")


def _server(name: str, port: int, folder: Path, storage: str, *more: str) -> StackProgram:
    """A program over `folder`; the links of alerts lead to the external URL."""
    listen = f"{LOOPBACK}:{port}"
    arguments = (
        binary(name),
        f"--config.file={folder / f'{name}.yaml'}",
        f"{storage}={folder / name}",
        f"--web.listen-address={listen}",
        f"--web.external-url=http://{listen}/",
        *more,
    )
    return StackProgram(name, arguments, port)


def grafana_program(port: int, folder: Path) -> StackProgram:
    """Return Grafana over `folder`; anybody on this machine may view, nobody may change."""
    server = binary("grafana")
    homes = (Path(server).resolve().parents[1], *GRAFANA_HOMES)
    home = next((path for path in homes if (path / "conf/defaults.ini").exists()), homes[1])
    data = folder / "grafana"
    environment = {
        "GF_PATHS_DATA": str(data),
        "GF_PATHS_LOGS": str(data / "logs"),
        "GF_PATHS_PLUGINS": str(data / "plugins"),
        "GF_PATHS_PROVISIONING": str(folder / "provisioning"),
        "GF_SERVER_HTTP_ADDR": LOOPBACK,
        "GF_SERVER_HTTP_PORT": str(port),
        "GF_AUTH_ANONYMOUS_ENABLED": "true",
        "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
    }
    arguments = (server, "--homepath", str(home))
    return StackProgram("grafana", arguments, port, "/api/health", environment)
