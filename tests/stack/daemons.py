"""Prometheus and Alertmanager as `up` starts them, over many agents, with rules made faster."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import yaml

from agent.stack import programs
from agent.stack.programs import FreePorts, choose
from tests.stack.running import clean_environment, eventually
from tests.support.alert_input import JOB
from tests.support.patience import PATIENCE
from tests.support.repository import ROOT

FREE = FreePorts(0, 0, 0, 0)


@contextmanager
def started(program: programs.StackProgram, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program of the stack until the end of the test."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            program.arguments,
            cwd=ROOT,
            env=clean_environment(**program.environment),
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE)


def prometheus_text(ports: FreePorts, interval: float, targets: Mapping[str, int]) -> str:
    """The configuration of `up` with many targets, each with an instance of its own."""
    jobs = [
        {"targets": [f"127.0.0.1:{port}"], "labels": {"instance": name}}
        for name, port in targets.items()
    ]
    config = yaml.safe_load(programs.prometheus(ports, interval, ["rules.yaml"]))
    (agents,) = (job for job in config["scrape_configs"] if job["job_name"] == JOB)
    agents["static_configs"] = jobs
    return json.dumps(config)


@contextmanager
def monitoring(
    folder: Path, interval: float, targets: Mapping[str, int], texts: tuple[str, str]
) -> Iterator[FreePorts]:
    """Prometheus over the targets, Alertmanager behind it; their ports.

    `texts` are the rules and the configuration of Alertmanager.
    """
    ports = choose(FREE)
    (folder / "prometheus.yaml").write_text(prometheus_text(ports, interval, targets))
    (folder / "rules.yaml").write_text(texts[0])
    (folder / "alertmanager.yaml").write_text(texts[1])
    prometheus = programs.server_program("prometheus", ports.prometheus, folder)
    alertmanager = programs.server_program("alertmanager", ports.alertmanager, folder)
    with ExitStack() as stack:
        for program in (alertmanager, prometheus):
            stack.enter_context(started(program, folder / f"{program.name}.log"))
        for program in (alertmanager, prometheus):
            eventually(partial(answers, program), f"{program.name} is ready")
        yield ports


def answers(program: programs.StackProgram) -> bool:
    """Return whether the program reports that it is ready."""
    try:
        with urlopen(program.address + program.ready.lstrip("/"), timeout=5) as page:
            return bool(page.status == 200)
    except OSError:
        return False
