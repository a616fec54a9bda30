"""A real Prometheus for tests: on loopback, with data of its own, queried over HTTP."""

import json
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.patience import PATIENCE

Labels = dict[str, str]
FOREVER = "100y"
"""Retention: simulated machines live at a time that is long past."""


class Series(NamedTuple):
    """One series of an answer; the newest value of it."""

    labels: Labels
    value: float


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(address: str, seconds: float = PATIENCE) -> None:
    """Until the address answers 200."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(address, timeout=2):
                return
        except OSError:
            assert time.monotonic() < deadline, f"{address} does not answer"
            time.sleep(0.1)


def ask(address: str, endpoint: str, **parameters: str) -> Any:
    """The data of an answer of the HTTP API; a refused query fails with its reason."""
    query = urllib.parse.urlencode(parameters)
    try:
        with urllib.request.urlopen(f"{address}/api/v1/{endpoint}?{query}") as page:
            return json.load(page)["data"]
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{parameters}: {error.read().decode()}") from error


class Prometheus:
    """A server over a folder; `with` starts and ends it. Scrapes and rules go every second."""

    def __init__(
        self,
        folder: Path,
        targets: Mapping[str, str],
        rules: Sequence[Labels],
        lookback: str = "5m",
        path: str = "/metrics",
        *,
        options: Sequence[str] = (),
    ) -> None:
        self.folder, self.options = folder, options
        self.lookback = lookback
        self.data = folder / "data"
        self.data.mkdir(parents=True, exist_ok=True)
        self.address = f"http://127.0.0.1:{free_port()}"
        each = targets.items()
        jobs = [{"targets": [target], "labels": {"instance": name}} for name, target in each]
        scrape = {"job_name": "dgx-telemetry", "metrics_path": path, "static_configs": jobs}
        rule_file = {"groups": [{"name": "test", "rules": list(rules)}]}
        every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config = {"global": every, "scrape_configs": [scrape], "rule_files": ["rules.yml"]}
        # JSON is YAML too
        (folder / "prometheus.yml").write_text(json.dumps(config))
        (folder / "rules.yml").write_text(json.dumps(rule_file))

    def backfill(self, openmetrics: Path) -> None:
        """Blocks of samples that have times of their own; before the server starts."""
        # Each block is made by a pass over all of the samples.
        command = ["promtool", "tsdb", "create-blocks-from", "--max-block-duration=64h"]
        command += ["openmetrics", "-q"]
        subprocess.run([*command, str(openmetrics), str(self.data)], check=True)

    def __enter__(self) -> "Prometheus":
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={self.folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self.data}",
                    f"--storage.tsdb.retention.time={FOREVER}",
                    f"--query.lookback-delta={self.lookback}",
                    f"--web.listen-address={self.address.removeprefix('http://')}",
                    *self.options,
                ],
                stdout=log,
                stderr=log,
            )
        wait_for(f"{self.address}/-/ready")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)

    def signal(self, number: int) -> None:
        """Send the server a signal: SIGHUP reads its configuration again."""
        self._process.send_signal(number)

    def ask(self, endpoint: str, **parameters: str) -> Any:
        """The data of an answer of the HTTP API; a refused query fails with its reason."""
        return ask(self.address, endpoint, **parameters)

    def now(self, expr: str, at: float | None = None) -> list[Series]:
        """The series of a query at one time."""
        when = {} if at is None else {"time": str(at)}
        result = self.ask("query", query=expr, **when)["result"]
        return [Series(entry["metric"], float(entry["value"][1])) for entry in result]

    def over(self, expr: str, start: float, end: float, step: float) -> list[Series]:
        """The series of a query over a range, each with its last value."""
        answer = self.ask("query_range", query=expr, start=str(start), end=str(end), step=str(step))
        found = answer["result"]
        return [Series(one["metric"], float(one["values"][-1][1])) for one in found]
