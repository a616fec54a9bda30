"""Files of the stack: its data folder, and the configuration of its Prometheus and Grafana.

Strings are written as JSON writes them, which is YAML too.
"""

import fcntl
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agent.config.atomic_file import following
from agent.errors import BadInput
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


LOCK = "lock"


@contextmanager
def data_folder(wanted: Path | None) -> Iterator[Path]:
    """The folder that was named, which stays; else a temporary one.

    Raises BadInput where it cannot be made, or another stack uses it.
    """
    if wanted is None:
        try:
            temporary = tempfile.TemporaryDirectory(prefix="dgx-telemetry-up-")
        except FileNotFoundError as error:  # a read-only machine
            raise BadInput("no temporary folder can be written: --data names another") from error
        with temporary as name:
            yield Path(name)
        return
    folder = _made(wanted)
    handle = _locked(folder)
    try:
        yield folder
    finally:
        os.close(handle)


def _made(wanted: Path) -> Path:
    """Programs will write there by its path: no other user may put links into it."""
    try:
        with following(wanted / LOCK, make=True) as place:
            folder, of = place.path.parent, os.fstat(place.folder)
    except BadInput as error:
        raise BadInput(f"--data {error}") from error
    shared = stat.S_IWOTH | (0 if os.geteuid() else stat.S_IWGRP)
    if of.st_uid not in (0, os.geteuid()) or of.st_mode & shared:
        raise BadInput(f"--data {wanted}: another user can write to it, expected one of your own")
    return folder


def _locked(folder: Path) -> int:
    try:
        handle = os.open(
            folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise BadInput(f"--data {folder}: another `up` uses this folder") from error
    except OSError as error:
        raise BadInput(f"--data {folder}: cannot be written: {error.strerror}") from error
    return handle
