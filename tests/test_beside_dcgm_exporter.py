"""The agent, scraped as its PodMonitor says, beside a stand-in for dcgm-exporter, scraped as the
ServiceMonitor of NVIDIA's GPU operator says: of one node, in one Prometheus, with our rules."""

import json
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from exporters.dcgm import table
from tests.stack.running import eventually
from tests.support.alert_replay import SCALE, faster
from tests.support.answering import answering
from tests.support.board_data import agents
from tests.support.prometheus import Prometheus
from tests.test_kubernetes import as_scraped, manifest

pytestmark = pytest.mark.prometheus

THEIRS = "nvidia-dcgm-exporter"
MACHINE = "gb200-tray:starved-disk+xid-94+fan-failed+raid-degraded+pcie-replays"
FIRING = {"DgxRaidDegraded", "DgxGpuXid", "DgxChassisFault"}
"""Some of what such a machine has."""

POD = 'namespace="ml",pod="train-0",container="main"'
PAGE = "".join(
    f'{name}{{gpu="{gpu}",UUID="GPU-{gpu}",uuid="GPU-{gpu}",device="nvidia{gpu}",Hostname="node7",'
    f'hostname="node7",{POD}}} 1000\n'
    for field in table().field
    for name in sorted({one.name for one in (field.before, field.since) if one})
    for gpu in range(8)
)


def as_the_operator_has_it_scraped(address: str, *, honoured: bool = False) -> dict[str, Any]:
    """By its ServiceMonitor (jobLabel app, port gpu-metrics), but with the node as the instance, as
    many sites have it; `honoured` where the labels of pods that it exports are kept."""
    instance = "node7b" if honoured else "node7"
    pod = {"namespace": "gpu-operator", "pod": f"{THEIRS}-x", "container": THEIRS}
    labels = {**pod, "job": THEIRS, "service": THEIRS, "endpoint": "gpu-metrics"}
    return {
        "job_name": f"serviceMonitor/gpu-operator/{THEIRS}/{honoured:d}",
        "honor_labels": honoured,
        "static_configs": [{"targets": [address], "labels": {**labels, "instance": instance}}],
    }


def firing(server: Prometheus) -> set[str]:
    return {one.labels["alertname"] for one in server.now('ALERTS{alertstate="firing"}')}


def asked(server: Prometheus, exprs: list[str], at: float) -> list[Any]:
    return [sorted(map(str, server.now(expr, at))) for expr in exprs]


def test_neither_counts_the_other(tmp_path: Path) -> None:
    files = {n: t.replace("interval: 500ms", "interval: 2s") for n, t in faster(SCALE).items()}
    exprs = ["count(up)"] + [
        rule["expr"]
        for text in files.values()
        for group in yaml.safe_load(text)["groups"]
        for rule in group["rules"]
    ]
    server = Prometheus(tmp_path / "prometheus", {}, (), options=["--web.enable-admin-api"])
    for name, text in files.items():
        (server.folder / name).write_text(text)
    ended = ExitStack()
    with agents({"node7": MACHINE}, tmp_path) as targets, ended:
        with answering(PAGE.encode()) as exporter:
            config = {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": sorted(files),
                "scrape_configs": [
                    as_scraped(manifest("podmonitor.yaml"), targets["node7"]),
                    as_the_operator_has_it_scraped(exporter),
                    as_the_operator_has_it_scraped(exporter, honoured=True),
                ],
            }
            (server.folder / "prometheus.yml").write_text(json.dumps(config))
            ended.enter_context(server)
            eventually(lambda: firing(server) >= FIRING, f"{FIRING} fire")
            eventually(lambda: server.now("sum(count_over_time(up[2m])) > 100"), "a window")
            times = [time.time()]
        eventually(lambda: server.now(f'up{{job="{THEIRS}"}} == 0'), "their exporter is down")
        times.append(time.time())
        beside = [asked(server, exprs, at) for at in times]
        alerts = server.now("ALERTS", times[0])
        names = [
            {one.labels["__name__"] for one in server.now(f'{{job="{job}"}}', times[0])}
            for job in ("dgx-telemetry", THEIRS)
        ]
        labels = {key for one in server.now('{job="dgx-telemetry"}') for key in one.labels}
        with urllib.request.urlopen(f"{server.address}/metrics") as page:
            own = page.read().decode()
        gone = f"{server.address}/api/v1/admin/tsdb/delete_series?match[]={{job=%22{THEIRS}%22}}"
        urllib.request.urlopen(urllib.request.Request(gone, method="POST")).close()
        assert not server.now(f'{{job="{THEIRS}"}}', times[0])
        alone = [asked(server, exprs, at) for at in times]
    assert [one[1:] for one in beside] == [one[1:] for one in alone]
    assert beside[0][0] != alone[0][0], "what counts all of them sees a difference"
    assert sum(map(bool, beside[0])) > 10
    assert {one.labels.get("job", "dgx-telemetry") for one in alerts} == {"dgx-telemetry"}
    shared = {"up", *(name for name in names[1] if name.startswith("scrape_"))}
    assert len(names[1]) > 40
    assert names[0] & names[1] == shared
    assert not [key for key in labels if key.startswith("exported_")]
    for problem in ("duplicate_timestamp", "out_of_order", "out_of_bounds"):
        assert f"\nprometheus_target_scrapes_sample_{problem}_total 0\n" in own
