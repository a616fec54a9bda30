"""The data directory of the stack, and the configuration files of its Prometheus and Grafana.

Strings in these files are written as JSON, which is also valid YAML.
"""

import fcntl
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from string import Template

from agent.errors import BadInput
from agent.faults.promql import span
from agent.stack.programs import LOOPBACK, FreePorts

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
