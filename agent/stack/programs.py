"""Finds the programs of the stack, which listen only on loopback, and builds their commands, their
data directory, and the configuration files of Prometheus and Grafana. Strings in these files are
written as JSON, which is also valid YAML."""

import fcntl
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from string import Template

from msgspec import Struct, convert

import agent
from agent.errors import BadInput
from agent.faults.promql import span
from agent.metrics import beside

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class FreePorts:
    """The port on which each program of the stack listens."""

    agent: int = 9935
    prometheus: int = 9090
    alertmanager: int = 9093
    grafana: int = 3000


def choose(wanted: FreePorts) -> FreePorts:
    """Return the requested ports. Replace each port that is in use with a free port."""
    with ExitStack() as held:  # keep all sockets open, so that all ports differ
        return FreePorts(*(_free(port, held) for port in astuple(wanted)))


def _free(port: int, held: ExitStack) -> int:
    candidate = held.enter_context(socket.socket())
    # Connections of an earlier stack in TIME_WAIT must not block the port of a new stack.
    candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        candidate.bind((LOOPBACK, port))
    except OSError:
        candidate.bind((LOOPBACK, 0))
    return int(candidate.getsockname()[1])


SOURCE_FOLDER = Path(agent.__file__).resolve().parents[1]
"""The directory that contains the packages of this program: the source tree, or site-packages."""

BOARDS = SOURCE_FOLDER / "deploy/grafana/dashboards"
"""The directory of the generated dashboards. It exists only in the source tree."""


@dataclass(frozen=True, slots=True)
class StackProgram:
    """A program of the stack: its command, its port, and its readiness endpoint."""

    name: str
    arguments: Sequence[str]
    port: int
    ready: str = "/-/ready"  # path with status 200 when the program is ready
    environment: Mapping[str, str] = field(default_factory=dict)
    optional: bool = True  # only the agent is required, because its page needs no other

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.port}/"


LEASH = ("setpriv", "--pdeathsig", "KILL", "--")
"""Command prefix that makes the kernel kill a child process when its parent exits."""


class StackServer(Struct, frozen=True):
    """A server of the stack, as described in programs.toml."""

    binaries: tuple[str, ...]
    arguments: tuple[str, ...]
    missing: str = ""
    ready: str = "/-/ready"
    environment: dict[str, str] = {}


SERVERS = convert(beside(__file__), dict[str, StackServer])


def binary(program: str) -> str:
    """Return the path of a program, or an empty string if it is not installed."""
    own = str(Path(sys.prefix) / "bin")  # of this virtual environment
    path = os.pathsep.join((os.environ.get("PATH", ""), own, "/usr/sbin", "/usr/local/sbin"))
    found = (shutil.which(name, path=path) for name in SERVERS[program].binaries)
    return next(filter(None, found), "")


def agent_program(port: int, flags: Sequence[str]) -> StackProgram:
    address = f"{LOOPBACK}:{port}"
    return _own("agent", port, "agent", "run", "--listen", address, "--web.config.file=", *flags)


def fleet_program(
    port: int, nodes: int, system: str, speed: float, flags: Sequence[str] = ()
) -> StackProgram:
    arguments = "agent.cli.fleet", str(nodes), system, f"{LOOPBACK}:{port}", f"{speed:g}"
    return _own("fleet", port, *arguments, *flags)


def _own(name: str, port: int, *module: str) -> StackProgram:
    """Return a program of the stack that runs a module of this package. The flag `-P` prevents
    Python from importing a package named `agent` in the current directory."""
    paths = (str(SOURCE_FOLDER), os.environ.get("PYTHONPATH", ""))
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    arguments = (sys.executable, "-P", "-m", *module)
    return StackProgram(name, arguments, port, environment=environment, optional=False)


def server_program(name: str, port: int, folder: Path) -> StackProgram:
    """Return the server `name` of the stack. Its files are in `folder`."""
    server, path = SERVERS[name], binary(name)
    homes = (Path(path).resolve().parent.parent, Path("/usr/share/grafana"), Path("/opt/grafana"))
    home = next((path for path in homes if (path / "conf/defaults.ini").exists()), homes[1])
    values = {"folder": folder, "host": LOOPBACK, "port": port, "home": home}
    values["listen"] = f"{LOOPBACK}:{port}"
    environment = {key: text.format(**values) for key, text in server.environment.items()}
    arguments = (path, *(text.format(**values) for text in server.arguments))
    return StackProgram(name, arguments, port, server.ready, environment)


FLEET_SCRAPE_SECONDS = 15.0
"""Interval of scrapes and rules in seconds for a simulated fleet, typical of production."""


def filled(name: str, **values: str) -> str:
    """Return the contents of a configuration file: the template `name` filled in with `values`."""
    text = Path(__file__).with_name(f"{name}.yaml").read_text(encoding="utf-8")
    return Template(text).substitute(values)


def prometheus(
    ports: FreePorts, interval: float, rules: Sequence[str], *, fleet: bool = False
) -> str:
    """Return a Prometheus configuration that scrapes the agent or the fleet every `interval`
    seconds, evaluates `rules`, and sends alerts to Alertmanager."""
    addresses = {name: f"{LOOPBACK}:{port}" for name, port in asdict(ports).items()}
    here = f'static_configs: [{{targets: ["{addresses["agent"]}"]}}]'
    url = f"http://{addresses['agent']}/targets"
    listed = f'http_sd_configs: [{{url: "{url}", refresh_interval: "15s"}}]'
    return filled(
        "prometheus",
        interval=span(interval),
        rules=json.dumps(rules),
        targets=listed if fleet else here,
        **addresses,
    )


@contextmanager
def data_folder(wanted: Path | None) -> Iterator[Path]:
    """Yield `wanted`, or a temporary directory if it is None. The temporary directory is removed at
    the end. Raise BadInput if the directory cannot be created or if another stack uses it."""
    if wanted is None:
        try:
            temporary = tempfile.TemporaryDirectory(prefix="dgx-telemetry-up-")
        except FileNotFoundError as error:  # there is no writable temporary directory
            raise BadInput("no temporary folder can be written: --data names another") from error
        with temporary as name:
            yield Path(name)
        return
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        with (wanted / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield wanted.resolve()
    except BlockingIOError as error:
        raise BadInput(f"--data {wanted}: another `up` uses this folder") from error
    except OSError as error:
        raise BadInput(f"--data {wanted}: cannot be written: {error.strerror}") from error
