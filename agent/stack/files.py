"""Data directory of the stack, and configuration files for its Prometheus and Grafana.

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
"""Scrape and rule evaluation interval in seconds, kept short so that changes appear quickly."""

FLEET_SCRAPE_SECONDS = 15.0
"""Scrape and rule evaluation interval for a simulated fleet, as in a typical production setup."""

LEAST_SCRAPE_SECONDS = 1.0
"""Minimum interval at any simulation speed. The interval is also the scrape timeout, and timeouts
of 0.1 s caused agents on busy machines to be reported as down."""

JOB_LABEL = "dgx-telemetry"
"""Job label that the dashboards expect."""


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
    """Yield `wanted`, which is kept on exit, or a temporary directory if it is None. Raise BadInput
    if the directory cannot be created or is used by another stack."""
    if wanted is None:
        try:
            temporary = tempfile.TemporaryDirectory(prefix="dgx-telemetry-up-")
        except FileNotFoundError as error:  # no writable temporary directory
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
