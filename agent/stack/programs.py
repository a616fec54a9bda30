"""The programs of the stack: where their binaries are, and how each is started on loopback."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import agent
from agent.errors import BadInput
from agent.stack.ports import LOOPBACK

SOURCE = Path(agent.__file__).resolve().parents[1]
"""Path of this program's packages: the source tree, or the site-packages of an installation."""

BOARDS = SOURCE / "deploy/grafana/dashboards"
"""Generated boards. They are part of the source tree, not of an installed package."""

PLACES = os.pathsep.join((str(Path(sys.prefix) / "bin"), "/usr/sbin", "/usr/local/sbin"))
"""Folders that are searched for binaries after PATH: this virtual environment, and the usual
folders of servers."""

GRAFANA_HOMES = (Path("/usr/share/grafana"), Path("/opt/grafana"))


@dataclass(frozen=True, slots=True)
class StackProgram:
    """One program of the stack: how it is started, and how it says that it is ready."""

    name: str
    arguments: Sequence[str]
    port: int
    ready: str  # path that answers 200 once it is ready
    environment: Mapping[str, str] = field(default_factory=dict)
    optional: bool = True  # only the agent must start: its page stands alone

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.port}/"


@dataclass(frozen=True, slots=True)
class Binary:
    """Names of a binary, and the Debian package that brings it."""

    names: tuple[str, ...]
    package: str

    def find(self) -> str | None:
        """The first of its names on PATH, else in the usual places."""
        return next(
            (
                found
                for path in (None, PLACES)
                for name in self.names
                if (found := shutil.which(name, path=path))
            ),
            None,
        )

    def need(self) -> str:
        """The path; raises BadInput that names the package where it is missing."""
        found = self.find()
        if found is None:
            raise BadInput(
                f"up needs {self.names[0]}, which is not installed: apt install {self.package}"
            )
        return found


PROMETHEUS = Binary(("prometheus",), "prometheus")
ALERTMANAGER = Binary(("prometheus-alertmanager", "alertmanager"), "prometheus-alertmanager")
GRAFANA = Binary(("grafana-server",), "grafana")
SETPRIV = Binary(("setpriv",), "util-linux")
"""Starts a child so that it dies with its parent, however that ends."""


def agent_program(port: int, flags: Sequence[str]) -> StackProgram:
    """This very agent, from the same packages."""
    return _own("agent", port, "agent", "run", "--listen", f"{LOOPBACK}:{port}", *flags)


def fleet_program(port: int, nodes: int, system: str, speed: float) -> StackProgram:
    """A simulated fleet in the place of the agent."""
    arguments = "agent.cli.fleet", str(nodes), system, f"{LOOPBACK}:{port}", f"{speed:g}"
    return _own("fleet", port, *arguments)


def _own(name: str, port: int, *module: str) -> StackProgram:
    """A module of these packages; `-P` lets no other `agent` of a folder in."""
    paths = (str(SOURCE), os.environ.get("PYTHONPATH", ""))
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    arguments = (sys.executable, "-P", "-m", *module)
    return StackProgram(name, arguments, port, "/-/ready", environment, False)


def prometheus_program(binary: str, port: int, folder: Path) -> StackProgram:
    """Prometheus over `folder`; the external URL is what the links of alerts lead to."""
    listen = f"{LOOPBACK}:{port}"
    arguments = (
        binary,
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address={listen}",
        f"--web.external-url=http://{listen}/",
    )
    return StackProgram("prometheus", arguments, port, "/-/ready")


def alertmanager_program(binary: str, port: int, folder: Path) -> StackProgram:
    """Alertmanager over `folder`, alone: without an address for a cluster it seeks no peers."""
    listen = f"{LOOPBACK}:{port}"
    arguments = (
        binary,
        f"--config.file={folder / 'alertmanager.yaml'}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address={listen}",
        f"--web.external-url=http://{listen}/",
        "--cluster.listen-address=",
    )
    return StackProgram("alertmanager", arguments, port, "/-/ready")


def grafana_program(binary: str, port: int, folder: Path) -> StackProgram:
    """Grafana over `folder`, for anybody on this machine to look at and no one to change."""
    homes = (Path(binary).resolve().parents[1], *GRAFANA_HOMES)
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
    arguments = (binary, "--homepath", str(home))
    return StackProgram("grafana", arguments, port, "/api/health", environment)
