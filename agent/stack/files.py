"""Configuration files of the stack's Prometheus and Grafana.

Strings are written as JSON writes them, which is YAML too.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from agent.stack.programs import LOOPBACK, FreePorts

SCRAPE_SECONDS = 5.0
"""Between two scrapes, and two checks of the rules: short, so that a desk sees changes soon."""

FLEET_SCRAPE_SECONDS = 15.0
"""The same of a fleet: as users scrape theirs."""

LEAST_SCRAPE_SECONDS = 1.0
"""However fast a simulated machine lives: an interval is the time that an answer may take as well,
and on a busy machine a tenth of it made agents count as down."""

JOB = "dgx-telemetry"
"""The job label that boards expect."""


def duration(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"


def prometheus(
    ports: FreePorts, interval: float, rules: Sequence[str], *, fleet: bool = False
) -> str:
    """Scrape the agent, or a fleet, each `interval` seconds, judge by `rules`, report the
    Alertmanager."""
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
  - job_name: {JOB}
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
