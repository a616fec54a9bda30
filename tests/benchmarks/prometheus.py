"""What twenty nodes cost a Prometheus: `python -m tests.benchmarks.prometheus [OTHER CHECKOUT]`.

A fleet of simulated DGX H100 and a Prometheus that scrapes it, for each checkout side by side.
"""

import argparse
import os
import re
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks.tick import ROOT
from tests.support.prometheus import free_port

NODES, SYSTEM = 20, "dgx-h100"
SECONDS = 90.0
CONFIG = """
scrape_configs:
  - job_name: dgx-telemetry
    scrape_interval: 5s
    http_sd_configs: [{{url: "http://127.0.0.1:{port}/targets", refresh_interval: 5s}}]
"""
SHOWN = {
    "head series": ("prometheus_tsdb_head_series", 1.0),
    "heap MB": ("go_memstats_heap_inuse_bytes", 1e-6),
    "CPU s": ("process_cpu_seconds_total", 1.0),
    "appended": ("prometheus_tsdb_head_samples_appended_total", 1.0),
}


def start(checkout: Path, folder: Path, stack: ExitStack) -> int:
    """Start both; returns the port of Prometheus."""
    fleet, port = free_port(), free_port()
    (folder / "prometheus.yml").write_text(CONFIG.format(port=fleet))
    module = ("agent.cli.fleet", str(NODES), SYSTEM, f"127.0.0.1:{fleet}", "1")
    prometheus = (
        *("prometheus", f"--config.file={folder}/prometheus.yml"),
        *(f"--storage.tsdb.path={folder}", f"--web.listen-address=127.0.0.1:{port}"),
    )
    for command in ((sys.executable, "-m", *module), prometheus):
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        null = subprocess.DEVNULL
        running = subprocess.Popen(command, cwd=checkout, env=environment, stderr=null, stdout=null)
        stack.callback(running.wait)
        stack.callback(running.kill)
    return port


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", nargs="?", type=Path, help="another checkout to compare with")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    arguments = parser.parse_args()
    checkouts = [path.resolve() for path in (ROOT, arguments.other) if path is not None]
    with ExitStack() as stack:
        ports = {}
        for checkout in checkouts:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            ports[checkout.name] = start(checkout, folder, stack)
        time.sleep(arguments.seconds)
        print(
            f"{NODES} x {SYSTEM}, {arguments.seconds:g} s".ljust(30), *map("{:>14}".format, SHOWN)
        )
        for name, port in ports.items():
            text = ""
            with suppress(OSError):
                text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
            found = (
                (re.search(rf"^{metric}(?:{{.*}})? (\S+)$", text, re.MULTILINE), factor)
                for metric, factor in SHOWN.values()
            )
            values = (float(m[1]) * factor if m else float("nan") for m, factor in found)
            print(name.ljust(30), *map("{:14.1f}".format, values))


if __name__ == "__main__":
    main()
