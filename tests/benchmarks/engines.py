"""Cost of Prometheus and VictoriaMetrics for a fleet of recorded nodes, with all rules:

    python -m tests.benchmarks.engines TAPE NODES MINUTES FOLDER [prometheus] [victoria]

TAPE is as `tests.benchmarks.recorded_fleet` records it. Scrapes come each 15 s of real time, and
all engines run on this machine: their CPU seconds are their own, whatever else it does. Prints a
row for each process, the samples a second, bytes a sample, and how long rules and boards' queries
took.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from agent.config.settings import Settings
from agent.stack import programs
from alerts.build import alertmanager, rules
from dashboards.build import files as boards
from exporters.settings import queries
from tests.benchmarks.recorded_fleet import listed
from tests.support.prometheus import free_port, wait_for
from tests.support.repository import ROOT

FLEET = ROOT / "deploy/fleet"
MONITORS = re.compile(r'"monitor-a:9093", "monitor-b:9093"')
VARIABLES = (
    (re.compile(r"\$__rate_interval|\$\{__rate_interval\}"), "1m"),
    (re.compile(r"\$__range|\$\{__range\}"), "{range}"),
    (re.compile(r"\$__interval|\$\{__interval\}"), "1m"),
    (re.compile(r"\$\{?\w+(:\w+)?\}?"), ".*"),
)
PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


class Process:
    """A program that runs, and what it has cost."""

    def __init__(self, name: str, words: list[str], folder: Path, ready: str = "") -> None:
        self.name = name
        self.log = (folder / f"{name}.log").open("wb")
        self.process = subprocess.Popen(words, cwd=ROOT, stdout=self.log, stderr=self.log)
        self.most = 0
        if ready:
            wait_for(ready)
        self.began, self.spent = time.monotonic(), self.cpu()

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(120)
        self.log.close()

    def cpu(self) -> float:
        """CPU seconds so far."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / TICKS

    def memory(self) -> int:
        """Resident bytes."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * PAGE

    def row(self) -> str:
        """Cores on average, MB now and at most."""
        cores = (self.cpu() - self.spent) / (time.monotonic() - self.began)
        now = self.memory() / 1e6
        return (
            f"{self.name:18} {cores:6.3f} cores  {now:7.0f} MB now  {self.most / 1e6:7.0f} MB most"
        )


def get(address: str, **parameters: str) -> Any:
    """Return the answer of an HTTP API, from JSON."""
    query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
    with urllib.request.urlopen(f"{address}{query}", timeout=300) as page:
        return json.load(page)


def metric(address: str, name: str) -> dict[str, float]:
    """A metric that a program reports itself, by labels."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=60) as page:
        text = page.read().decode()
    found = re.findall(rf"^{name}(\{{.*\}})? (\S+)", text, re.MULTILINE)
    return {labels: float(value) for labels, value in found}


def board_queries(span: str, node: str) -> Iterator[tuple[str, str]]:
    """Every query of every board, as it opens: the board of the fleet for all nodes, the others
    for one."""
    for name, text in boards().items():
        for query in queries(json.loads(text)):
            if query.startswith(("label_values", "query_result")):
                continue
            if Path(name).stem != "dgx-fleet":
                query = query.replace("$instance", node)  # noqa: PLW2901
            for variable, value in VARIABLES:
                query = variable.sub(value.format(range=span), query)  # noqa: PLW2901
            yield Path(name).stem, query


def slowest(api: str, minutes: float) -> list[tuple[float, str, str]]:
    """Return the duration of each query of a board over the whole time, in 200 points; slowest
    first."""
    end = time.time()
    start, step = end - minutes * 60, max(15.0, minutes * 60 / 200)
    found = []
    nodes = get(f"{api}/query", query="up{job='dgx-telemetry'}")["data"]["result"]
    node = nodes[0]["metric"]["instance"]
    for board, query in board_queries(f"{minutes:g}m", node):
        began = time.monotonic()
        try:
            get(f"{api}/query_range", query=query, start=str(start), end=str(end), step=str(step))
        except urllib.error.HTTPError as error:
            print(f"refused: {board}: {query}: {error.read()[:300]!r}")
            continue
        found.append((time.monotonic() - began, board, query))
    return sorted(found, reverse=True)


class Engines:
    """The engines over one folder."""

    def __init__(self, folder: Path, nodes: int, which: set[str]) -> None:
        self.folder, self.nodes, self.which = folder, nodes, which
        self.ports = {name: free_port() for name in ("am", "prom", "vm", "agent", "alert", "nodes")}
        self.processes: list[Process] = []

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.ports[name]}"

    def write(self) -> None:
        """The files of deploy/fleet, with the addresses of here."""
        for part in ("rules", "targets"):
            (self.folder / part).mkdir()
        for name, text in rules(Settings()).items():
            (self.folder / "rules" / name).write_text(text)
        (self.folder / "am.yaml").write_text(alertmanager(Settings())["alertmanager.yaml"])
        for name in ("prometheus.yaml", "vmagent.yaml"):
            text = (FLEET / name).read_text()
            text = MONITORS.sub(f'"127.0.0.1:{self.ports["am"]}"', text)
            (self.folder / name).write_text(text)

    def start(self, stack: ExitStack, tape: str) -> None:
        """All of them, in the order in which they need each other."""
        folder, ports = self.folder, self.ports
        self.write()
        (folder / "targets/nodes.json").write_text(listed(self.nodes, ports["nodes"]))
        module = [sys.executable, "-m", "tests.benchmarks.recorded_fleet", "serve", tape]
        self._add(stack, "nodes", [*module, str(ports["nodes"])])
        alone = programs.ALERTMANAGER.need()
        self._add(
            stack,
            "alertmanager",
            [alone, f"--config.file={folder}/am.yaml", f"--storage.path={folder}/am",
             f"--web.listen-address=127.0.0.1:{ports['am']}", "--cluster.listen-address="],
            f"{self.url('am')}/-/ready",
        )  # fmt: skip
        if "prometheus" in self.which:
            self._add(
                stack,
                "prometheus",
                [programs.PROMETHEUS.need(), f"--config.file={folder}/prometheus.yaml",
                 f"--storage.tsdb.path={folder}/prometheus", "--web.enable-admin-api",
                 f"--web.listen-address=127.0.0.1:{ports['prom']}"],
                f"{self.url('prom')}/-/ready",
            )  # fmt: skip
        if "victoria" in self.which:
            self._victoria(stack)

    def _victoria(self, stack: ExitStack) -> None:
        folder, ports, vm = self.folder, self.ports, self.url("vm")
        self._add(
            stack,
            "victoria-metrics",
            ["victoria-metrics", f"-storageDataPath={folder}/vm", "-retentionPeriod=13",
             "-dedup.minScrapeInterval=15s", f"-httpListenAddr=127.0.0.1:{ports['vm']}"],
            f"{vm}/health",
        )  # fmt: skip
        self._add(
            stack,
            "vmagent",
            ["vmagent", f"-promscrape.config={folder}/vmagent.yaml",
             f"-remoteWrite.url={vm}/api/v1/write", f"-remoteWrite.tmpDataPath={folder}/vmagent",
             f"-httpListenAddr=127.0.0.1:{ports['agent']}"],
            f"{self.url('agent')}/health",
        )  # fmt: skip
        self._add(
            stack,
            "vmalert",
            ["vmalert", f"-rule={folder}/rules/*.yaml", f"-datasource.url={vm}",
             "-datasource.queryStep=5m", f"-notifier.url={self.url('am')}",
             f"-remoteWrite.url={vm}", f"-remoteRead.url={vm}", "-evaluationInterval=15s",
             f"-httpListenAddr=127.0.0.1:{ports['alert']}"],
            f"{self.url('alert')}/health",
        )  # fmt: skip

    def _add(self, stack: ExitStack, name: str, words: list[str], ready: str = "") -> None:
        path = shutil.which(words[0]) or words[0]
        process = Process(name, [path, *words[1:]], self.folder, ready)
        self.processes.append(stack.enter_context(process))

    def watch(self, minutes: float) -> None:
        """Let them work, and see how large they become; what they spend at first is left out."""
        end = time.monotonic() + minutes * 60
        settled = time.monotonic() + min(120.0, minutes * 20)
        while time.monotonic() < end:
            time.sleep(5)
            for process in self.processes:
                process.most = max(process.most, process.memory())
                if settled and time.monotonic() > settled:
                    process.began, process.spent = time.monotonic(), process.cpu()
            if settled and time.monotonic() > settled:
                settled = 0.0

    def report(self, minutes: float) -> None:
        """Print the results."""
        for process in self.processes:
            print(process.row(), flush=True)
        if "prometheus" in self.which:
            self._report_prometheus(minutes)
        if "victoria" in self.which:
            self._report_victoria(minutes)

    def _report_prometheus(self, minutes: float) -> None:
        api = f"{self.url('prom')}/api/v1"
        for about, query in {
            "samples a second": "sum(scrape_samples_scraped{job='dgx-telemetry'}) / 15",
            "nodes that answer": "sum(up{job='dgx-telemetry'})",
            "slowest scrape (s)": "max(scrape_duration_seconds{job='dgx-telemetry'})",
            "mean scrape (s)": "avg(scrape_duration_seconds{job='dgx-telemetry'})",
        }.items():
            value = get(f"{api}/query", query=query)["data"]["result"]
            print(f"prometheus: {about}: {value[0]['value'][1] if value else 'nothing'}")
        own = self.url("prom")
        print("prometheus: series", metric(own, "prometheus_tsdb_head_series"))
        groups = metric(own, "prometheus_rule_group_last_duration_seconds")
        for labels, seconds in groups.items():
            print(f"prometheus: rules {labels.rpartition(';')[2][:-2]}: {seconds:.3f} s")
        print(f"prometheus: all rules {sum(groups.values()):.3f} s")
        appended = sum(metric(own, "prometheus_tsdb_head_samples_appended_total").values())
        request = urllib.request.Request(f"{api}/admin/tsdb/snapshot", method="POST")
        with urllib.request.urlopen(request, timeout=600) as page:
            name = json.load(page)["data"]["name"]
        size = size_of(self.folder / "prometheus/snapshots" / name)
        print(f"prometheus: {size / 1e6:.0f} MB as blocks, {size / appended:.2f} bytes a sample")
        self._report_queries("prometheus", api, minutes)

    def _report_victoria(self, minutes: float) -> None:
        vm, alert = self.url("vm"), self.url("alert")
        urllib.request.urlopen(f"{vm}/internal/force_flush").read()
        urllib.request.urlopen(f"{vm}/internal/force_merge").read()
        time.sleep(20)
        rows = sum(v for k, v in metric(vm, "vm_rows").items() if "storage/" in k)
        size = sum(v for k, v in metric(vm, "vm_data_size_bytes").items())
        print(
            f"victoria: {rows:.0f} samples, {size / 1e6:.0f} MB, {size / rows:.2f} bytes a sample"
        )
        sums = metric(alert, "vmalert_iteration_duration_seconds_sum")
        counts = metric(alert, "vmalert_iteration_duration_seconds_count")
        for labels, total in sums.items():
            print(f"vmalert: {labels}: {total / counts[labels]:.3f} s")
        print("vmalert: errors", sum(metric(alert, "vmalert_execution_errors_total").values()))
        self._report_queries("victoria", f"{vm}/api/v1", minutes)

    def _report_queries(self, name: str, api: str, minutes: float) -> None:
        took = slowest(api, minutes)
        print(f"{name}: {len(took)} queries of boards, {sum(t for t, *_ in took):.1f} s together")
        for asked in sorted({board for _, board, _ in took}):
            seconds, query = next((s, q) for s, board, q in took if board == asked)
            print(f"{name}: {asked}: at most {seconds:.2f} s, {query}")


def size_of(folder: Path) -> int:
    """Bytes of all files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main(tape: str, nodes: str, minutes: str, folder: str, *which: str) -> None:
    """Run the engines and report."""
    place = Path(folder)
    place.mkdir(parents=True)
    engines = Engines(place, int(nodes), set(which) or {"prometheus", "victoria"})
    with ExitStack() as stack:
        engines.start(stack, tape)
        engines.watch(float(minutes))
        engines.report(float(minutes))


if __name__ == "__main__":
    main(*sys.argv[1:])
