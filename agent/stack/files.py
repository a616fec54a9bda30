"""Data directory of the stack, and configuration files of its Prometheus and Grafana.

Strings are encoded as JSON, which is also valid YAML.
"""

import fcntl
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agent.errors import BadInput
from agent.stack.programs import LOOPBACK, FreePorts

SCRAPE_SECONDS = 5.0
"""Interval in seconds of scrapes and rule evaluations, short so that changes are visible soon."""

FLEET_SCRAPE_SECONDS = 15.0
"""Interval of scrapes and rule evaluations for a simulated fleet, typical of production setups."""

LEAST_SCRAPE_SECONDS = 1.0
"""Minimum interval, independent of the simulation speed. The interval is also the scrape timeout,
and with timeouts of 0.1 s, agents on busy machines were reported as down."""

JOB_LABEL = "dgx-telemetry"
"""Value of the job label in the dashboards."""


def duration(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"


def prometheus(
    ports: FreePorts, interval: float, rules: Sequence[str], *, fleet: bool = False
) -> str:
    """Return a Prometheus configuration that scrapes the agent or the fleet every `interval`
    seconds, evaluates `rules`, and sends alerts to Alertmanager."""
    agent = f"{LOOPBACK}:{ports.agent}"
    here = f'static_configs: [{{targets: ["{agent}"]}}]'
    listed = f'http_sd_configs: [{{url: "http://{agent}/targets", refresh_interval: "15s"}}]'
    return f"""\
global:
  scrape_interval: {duration(interval)}
  scrape_timeout: {duration(interval)}
  evaluation_interval: {duration(interval)}
rule_files: {json.dumps(rules)}
alerting:
  alertmanagers:
    - static_configs: [{{targets: ["{LOOPBACK}:{ports.alertmanager}"]}}]
scrape_configs:
  - job_name: {JOB_LABEL}
    {listed if fleet else here}
  - job_name: prometheus
    static_configs: [{{targets: ["{LOOPBACK}:{ports.prometheus}"]}}]
"""


def datasource(ports: FreePorts, interval: float) -> str:
    return f"""\
apiVersion: 1
datasources:
  - name: Prometheus
    uid: dgx-prometheus
    type: prometheus
    access: proxy
    url: http://{LOOPBACK}:{ports.prometheus}
    isDefault: true
    jsonData: {{timeInterval: {duration(interval)}}}
"""


def boards(folder: Path) -> str:
    return f"""\
apiVersion: 1
providers:
  - name: dgx-telemetry
    type: file
    allowUiUpdates: false
    options: {{path: {json.dumps(str(folder))}}}
"""


LOCK = "lock"


@contextmanager
def data_folder(wanted: Path | None) -> Iterator[Path]:
    """Yield `wanted`, which is kept on exit, or a temporary directory if `wanted` is None. Raise
    BadInput if the directory cannot be created or if another stack uses it."""
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
        with (wanted / LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield wanted.resolve()
    except BlockingIOError as error:
        raise BadInput(f"--data {wanted}: another `up` uses this folder") from error
    except OSError as error:
        raise BadInput(f"--data {wanted}: cannot be written: {error.strerror}") from error
