"""Setup of deploy/fleet, faster and on loopback: nodes, engines to kill, one inbox."""

import json
import shutil
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from agent.cli.inventory import FleetNode
from agent.config.settings import Settings
from agent.stack import programs
from alerts.build import alertmanager, rules
from alerts.receivers import Receivers
from tests.support.answering import Silent
from tests.support.patience import PATIENCE
from tests.support.prometheus import free_port, wait_for
from tests.support.repository import ROOT

EVERY = "1s"
SCALE = 1 / 30
"""Factor on the rules' and Alertmanager's times: an agent is down after 4 s."""
JUDGED = {"dgx-agent.yaml", "dgx-racks.yaml"}
"""Files whose rules say that a node is silent, or that many are."""
PEER_TIMEOUT = 4.0
"""Seconds after which the second Alertmanager says what it has not heard of from the first."""

PAGE = """\
# TYPE dgx_agent_last_tick_timestamp_seconds gauge
dgx_agent_last_tick_timestamp_seconds {now}
# TYPE dgx_gpu_energy_joules_total counter
dgx_gpu_energy_joules_total{{gpu="0",uuid="GPU-{node}"}} {now}
"""


class Nodes:
    """Agents that say next to nothing, each at an address of its own; those in `silent` hang up."""

    def __init__(self, count: int) -> None:
        self.silent: set[str] = set()
        nodes = self

        class Handler(Silent, BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                address = self.connection.getsockname()[0]
                if address in nodes.silent:
                    return
                page = PAGE.format(now=time.time(), node=address)
                self.answer(page.encode(), "text/plain; version=0.0.4")

        self._server = ThreadingHTTPServer(("0.0.0.0", 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self.all = [FleetNode(f"rack{n}", f"127.124.0.{n}") for n in range(1, count + 1)]

    def silence(self, number: int) -> None:
        """Let it answer no more."""
        self.silent.add(self.all[number - 1].address)

    def __enter__(self) -> "Nodes":
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class Engine:
    """One program of the fleet's monitoring, which may be killed and started again."""

    def __init__(self, folder: Path, name: str, words: Sequence[str], ready: str) -> None:
        self.name, self.ready = name, ready
        self._words = [shutil.which(words[0]) or words[0], *words[1:]]
        self._log = folder / f"{name}.log"
        self.address = ready.rpartition("/")[0].removesuffix("/-")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._words, stdout=log, stderr=log)
        wait_for(self.ready)

    def joined(self) -> bool:
        """Return whether an Alertmanager has heard of the other one, so that it sends nothing that
        the other one has sent."""
        with urllib.request.urlopen(f"{self.address}/api/v2/status", timeout=PATIENCE) as answer:
            cluster = json.load(answer)["cluster"]
        return cluster["status"] == "ready" and len(cluster["peers"]) == 2

    def kill(self) -> None:
        """As when the machine loses power, but for what the kernel has not written."""
        self.end(signal.SIGKILL)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(PATIENCE)
            self._process = None


class Monitors:
    """The files of deploy/fleet in a folder, with ports of here; engines are made by name."""

    def __init__(self, folder: Path, inbox: int) -> None:
        self.folder = folder
        self.engines: dict[str, Engine] = {}
        self.ports = {name: free_port() for name in ("am-a", "am-b", "peer-a", "peer-b")}
        (folder / "rules").mkdir()
        (folder / "targets").mkdir()
        for name, text in rules(Settings(), SCALE).items():
            every = EVERY if name in JUDGED else "1m"  # the others need only load
            rule_file = text.replace("interval: 500ms", f"interval: {every}")
            (folder / "rules" / name).write_text(rule_file)
        shown = Receivers(webhook_url=f"http://127.0.0.1:{inbox}/alerts")
        self.path("am.yaml").write_text(alertmanager(Settings(shown), SCALE)["alertmanager.yaml"])

    def path(self, name: str) -> Path:
        return self.folder / name

    def configured(self, name: str, output: str, changes: Mapping[str, str]) -> Path:
        """A file of deploy/fleet, with other words in place of those that are its own."""
        text = ((ROOT / "deploy/fleet") / name).read_text()
        changed = {"scrape_interval: 15s": f"scrape_interval: {EVERY}", **changes}
        changed["scrape_timeout: 10s"] = f"scrape_timeout: {EVERY}"
        for before, after in changed.items():
            assert before in text, f"{name} has no {before}"
            text = text.replace(before, after)
        path = self.path(output)
        path.write_text(text)
        return path

    def add(self, name: str, words: Sequence[str], ready: str) -> Engine:
        self.engines[name] = engine = Engine(self.folder, name, words, ready)
        engine.start()
        return engine

    def alertmanager(self, which: str) -> Engine:
        """One of the pair."""
        other, port = "ba"["ab".index(which)], self.ports[f"am-{which}"]
        words = (
            programs.binary("alertmanager"),
            f"--config.file={self.path('am.yaml')}",
            f"--storage.path={self.path(f'am-{which}')}",
            f"--web.listen-address=127.0.0.1:{port}",
            f"--cluster.listen-address=127.0.0.1:{self.ports[f'peer-{which}']}",
            f"--cluster.peer=127.0.0.1:{self.ports[f'peer-{other}']}",
            f"--cluster.peer-timeout={PEER_TIMEOUT:g}s",
            "--cluster.settle-timeout=5s",
        )
        return self.add(f"am-{which}", words, f"http://127.0.0.1:{port}/-/ready")

    def prometheus(self, which: str) -> Engine:
        """One of the pair."""
        changes = {
            "evaluation_interval: 15s": f"evaluation_interval: {EVERY}",
            "replica: a #": f"replica: {which} #",
        }
        for one in "ab":
            changes[f'"monitor-{one}:9093"'] = f'"127.0.0.1:{self.ports[f"am-{one}"]}"'
        config = self.configured("prometheus.yaml", f"prometheus-{which}.yaml", changes)
        port = free_port()
        words = (
            programs.binary("prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={self.path(f'prometheus-{which}')}",
            f"--web.listen-address=127.0.0.1:{port}",
        )
        return self.add(f"prometheus-{which}", words, f"http://127.0.0.1:{port}/-/ready")

    def store(self, which: str) -> Engine:
        """A VictoriaMetrics."""
        port = free_port()
        words = (
            "victoria-metrics",
            f"-storageDataPath={self.path(f'store-{which}')}",
            f"-dedup.minScrapeInterval={EVERY}",
            "-search.latencyOffset=0s",
            f"-httpListenAddr=127.0.0.1:{port}",
        )
        return self.add(f"store-{which}", words, f"http://127.0.0.1:{port}/health")

    def vmagent(self, number: int, of: int, stores: Sequence[Engine]) -> Engine:
        """One of several, of which two scrape each node."""
        config = self.configured("vmagent.yaml", "vmagent.yaml", {})
        port = free_port()
        words = (
            "vmagent",
            f"-promscrape.config={config}",
            f"-promscrape.cluster.membersCount={of}",
            f"-promscrape.cluster.memberNum={number}",
            "-promscrape.cluster.replicationFactor=2",
            *(f"-remoteWrite.url={store.address}/api/v1/write" for store in stores),
            f"-remoteWrite.tmpDataPath={self.path(f'vmagent-{number}')}",
            f"-httpListenAddr=127.0.0.1:{port}",
        )
        return self.add(f"vmagent-{number}", words, f"http://127.0.0.1:{port}/health")

    def vmalert(self, which: str, store: Engine) -> Engine:
        """Judges by what is in this store."""
        port = free_port()
        words = (
            "vmalert",
            f"-rule={self.folder}/rules/*.yaml",
            "-disableAlertgroupLabel",
            f"-datasource.url={store.address}",
            "-datasource.queryStep=5m",
            f"-remoteWrite.url={store.address}",
            f"-remoteRead.url={store.address}",
            *(f"-notifier.url=http://127.0.0.1:{self.ports[f'am-{one}']}" for one in "ab"),
            f"-evaluationInterval={EVERY}",
            f"-httpListenAddr=127.0.0.1:{port}",
        )
        return self.add(f"vmalert-{which}", words, f"http://127.0.0.1:{port}/health")

    def __enter__(self) -> "Monitors":
        return self

    def __exit__(self, *_: object) -> None:
        for engine in reversed(self.engines.values()):
            engine.end()
