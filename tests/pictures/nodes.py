"""The nodes of the pictures: simulated, with a history, and a real Prometheus over them."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import yaml

from agent.config.settings import Settings
from alerts.build import rules
from tests.pictures.node import SCRAPE
from tests.support.board_data import agents
from tests.support.prometheus import Prometheus, free_port

NODES = {
    "dgx01": "dgx-h100:training",
    "dgx02": "dgx-h100:starved-disk",
    "dgx03": "dgx-h100:nvlink-down",
    "dgx04": "dgx-1-v100:tour",
    "dgx05": "dgx-station-v100:gpu-lost",
    "dgx06": "gb200-tray:throttled+disk-smart",
}
"""Names of nodes, which tell a reader nothing, and what is simulated on them (SYSTEM:SCENARIO)."""

ALL = "|".join(NODES)
LIVE = "live"
"""A node of its own: a process as users have it, for the board of the agent. It has no past."""

HISTORY = 3600.0
"""Seconds of history: what a board shows unless stated otherwise."""

WAIT = 200.0
"""Seconds of live scrapes after it: alerts that wait for two minutes fire by then."""

TIMEOUT = 3600.0
"""Seconds for all nodes to live an hour, on a busy machine."""


class Machine(NamedTuple):
    """A Prometheus with something in it. Times in seconds since the epoch."""

    address: str
    since: float  # the nodes have a past from here on
    lived: float  # from here on Prometheus has scraped
    until: float


@contextmanager
def machine(folder: Path, wait: float = WAIT) -> Iterator[Machine]:
    """Everything, until it is no longer needed."""
    since = time.time() - HISTORY
    with ExitStack() as stack:
        targets = stack.enter_context(nodes(folder, since))
        live = stack.enter_context(agents({LIVE: NODES["dgx01"]}, folder))
        server = Prometheus(folder, targets, ())
        _scrape_as_users_do(folder, live)
        backfill(server, folder)
        stack.enter_context(server)
        lived = time.time()
        _record_the_past(server, folder, since, lived)
        time.sleep(wait)
        yield Machine(server.address, since, lived, time.time())


@contextmanager
def nodes(folder: Path, since: float) -> Iterator[Mapping[str, str]]:
    """The nodes once they have their past: addresses by name."""
    ports = {name: free_port() for name in NODES}
    running = [
        subprocess.Popen(
            [
                *("nice", sys.executable, "-m", "tests.pictures.node", machine, name, f"{since}"),
                *(f"{ports[name]}", f"{folder / name}.txt"),
            ],
            stderr=subprocess.DEVNULL,  # the events of the tour
        )
        for name, machine in NODES.items()
    ]
    try:
        _wait_for_pasts(folder, running)
        yield {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(20)


def _wait_for_pasts(folder: Path, running: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not all((folder / f"{name}.txt.ready").exists() for name in NODES):
        assert all(process.poll() is None for process in running), "a node has ended"
        assert time.monotonic() < deadline, "the nodes have not lived their hour"
        time.sleep(1)


def backfill(server: Prometheus, folder: Path) -> None:
    """The pasts of all nodes, which takes a while; then at once what they have lived meanwhile."""
    read = dict.fromkeys(NODES, 0)
    for part in ("past", "meanwhile"):
        path = folder / f"{part}.openmetrics"
        with path.open("wb") as merged:
            for name in NODES:
                with (folder / f"{name}.txt").open("rb") as lines:
                    lines.seek(read[name])
                    text = lines.read()
                whole = text[: text.rfind(b"\n") + 1]
                merged.write(whole)
                read[name] += len(whole)
            merged.write(b"# EOF\n")
        server.backfill(path)
        path.unlink()


def _record_the_past(server: Prometheus, folder: Path, since: float, until: float) -> None:
    """Write what the rules would have recorded; the server finds the blocks within a minute."""
    span = f"--start={since:.0f}", f"--end={until:.0f}", f"--eval-interval={SCRAPE}s"
    command = ["promtool", "tsdb", "create-blocks-from", "rules", f"--url={server.address}", *span]
    command += [f"--output-dir={server.data}", str(folder / "rules.yml")]
    subprocess.run(command, check=True, capture_output=True)


def _scrape_as_users_do(folder: Path, live: Mapping[str, str]) -> None:
    """The nodes every 15 s, rules as often as their groups say; the live agent, which has only
    minutes, every second."""
    files = (yaml.safe_load(text) for text in rules(Settings()).values())
    ours = [group for file in files for group in file["groups"]]  # of every file that users get
    (folder / "rules.yml").write_text(json.dumps({"groups": ours}))
    path = folder / "prometheus.yml"
    config = json.loads(path.read_text())
    config["global"] = {"scrape_interval": f"{SCRAPE}s", "evaluation_interval": f"{SCRAPE}s"}
    targets = [{"targets": [live[LIVE]], "labels": {"instance": LIVE}}]
    job = {"job_name": LIVE, "scrape_interval": "1s", "static_configs": targets}
    config["scrape_configs"].append(job)
    path.write_text(json.dumps(config))
