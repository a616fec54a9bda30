"""The manifests for Kubernetes, by its own schemas; that of PodMonitor, which is in no
package, by a small one of the fields that ours may have. The chart, by Helm itself."""

import json
import threading
from collections.abc import Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.stack.running import eventually
from tests.support.prometheus import Prometheus
from tests.support.repository import ROOT

FOLDER = ROOT / "deploy/kubernetes"
VERSIONS = ("1.25", "1.37")
"""The oldest and the newest release whose schemas are in the package."""

POD_MONITOR = json.loads(Path(__file__).with_name("pod_monitor.schema.json").read_text())
"""Of the documented fields of prometheus-operator's CRD (0.91) those that a DaemonSet needs."""

CHART = {"Chart.yaml", "values.yaml", "values.schema.json", ".helmignore", "templates", "README.md"}
CHART |= {"dashboards", "prometheus"}


def is_taken(one: object) -> bool:
    """Return whether Kubernetes knows each field of it, in the oldest release and in the newest."""
    known = [kubernetes_validate.validate(one, version, strict=True) for version in VERSIONS]
    return known == list(VERSIONS)


def manifest(name: str) -> Any:
    return yaml.load((FOLDER / name).read_text(), yaml.CSafeLoader)


@pytest.mark.parametrize("name", ["daemonset.yaml", "namespace.yaml"])
def test_kubernetes_takes_it(name: str) -> None:
    assert is_taken(manifest(name))


def test_a_wrong_key_is_refused() -> None:
    wrong = manifest("daemonset.yaml")
    wrong["spec"]["template"]["spec"]["hostPids"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        is_taken(wrong)


def test_prometheus_operator_takes_it() -> None:
    jsonschema.validate(manifest("podmonitor.yaml"), POD_MONITOR)


@pytest.mark.parametrize(
    ("key", "value"), [("interval", 15), ("relabelConfigs", []), ("port", 9935), ("interval", "15")]
)
def test_a_monitor_with_a_wrong_field_is_refused(key: str, value: object) -> None:
    wrong = manifest("podmonitor.yaml")
    wrong["spec"]["podMetricsEndpoints"][0][key] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, POD_MONITOR)


def as_scraped(monitor: Any, address: str) -> dict[str, Any]:
    """A PodMonitor as the Prometheus operator (pkg/prometheus/promcfg.go) has it scraped: the pod
    agent-x on node7."""
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    spelt = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    ours = [{spelt.get(k, k): v for k, v in one.items()} for one in endpoint["relabelings"]]
    found = {"namespace": "monitoring", "pod_name": "agent-x", "pod_container_name": "agent"}
    found |= {"pod_node_name": "node7", "pod_label_app_kubernetes_io_name": "dgx-telemetry"}
    label = monitor["spec"]["jobLabel"].replace(".", "_").replace("/", "_")
    sources = {"namespace": "namespace", "container": "pod_container_name", "pod": "pod_name"}
    sources["job"] = f"pod_label_{label}"
    theirs = [
        {"source_labels": [f"__meta_kubernetes_{of}"], "target_label": name}
        for name, of in sources.items()
    ]
    theirs.append({"target_label": "endpoint", "replacement": endpoint["port"]})
    labels = {f"__meta_kubernetes_{name}": value for name, value in found.items()}
    return {
        "job_name": "podMonitor/dgx-telemetry/dgx-telemetry/0",
        "honor_labels": endpoint.get("honorLabels", False),
        "static_configs": [{"targets": [address], "labels": labels}],
        "relabel_configs": [*theirs, *ours],
    }


METRICS = """dgx_gpu_job_info{gpu="0",job_id="u",namespace="ml",pod="train-0",container="main"} 1
dgx_gpu_job_info{gpu="1",job_id="7",namespace="",pod="",container=""} 1
dgx_gpu_power_watts{gpu="0"} 700
"""


@pytest.mark.prometheus
def test_the_labels_of_a_job_are_not_those_of_the_agents_pod(tmp_path: Path) -> None:
    (tmp_path / "metrics").write_text(METRICS)
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        prometheus = Prometheus(tmp_path / "prometheus", {}, ())
        file = prometheus.folder / "prometheus.yml"
        config = json.loads(file.read_text())
        address = f"127.0.0.1:{server.server_port}"
        config["scrape_configs"] = [as_scraped(manifest("podmonitor.yaml"), address)]
        file.write_text(json.dumps(config))
        with prometheus:
            eventually(lambda: prometheus.now("dgx_gpu_power_watts"), "a scrape")
            (mine,) = prometheus.now('dgx_gpu_job_info{pod="train-0"}')
            (power,) = prometheus.now("dgx_gpu_power_watts")
            (slurm,) = prometheus.now('dgx_gpu_job_info{gpu="1"}')
            joined = "dgx_gpu_power_watts * on (instance, job, gpu) group_left (pod)"
            (of_pod,) = prometheus.now(f"{joined} dgx_gpu_job_info")
        server.shutdown()
    there = {"instance": "node7", "job": "dgx-telemetry", "gpu": "0"}
    assert mine.labels.items() >= {**there, "namespace": "ml", "container": "main"}.items()
    assert {k: v for k, v in power.labels.items() if k != "__name__"} == there
    assert not {"pod", "namespace", "container"} & slurm.labels.keys()
    assert (of_pod.labels["pod"], of_pod.value) == ("train-0", 700)


def test_all_files_are_applied_and_go_together() -> None:
    whole = manifest("kustomization.yaml")
    files = {*whole["resources"], *whole["configMapGenerator"][0]["files"]}
    assert files == {path.name for path in FOLDER.iterdir()} - {"kustomization.yaml", *CHART}
    pod = manifest("daemonset.yaml")["spec"]["template"]
    agent = pod["spec"]["containers"][0]
    monitor = manifest("podmonitor.yaml")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert monitor["podMetricsEndpoints"][0]["port"] in {port["name"] for port in agent["ports"]}
    assert {mount["name"] for mount in agent["volumeMounts"]} == {
        volume["name"] for volume in pod["spec"]["volumes"]
    }
    assert agent["image"] == whole["images"][0]["name"]


def test_it_has_the_least_rights() -> None:
    pod = manifest("daemonset.yaml")["spec"]["template"]["spec"]
    agent = pod["containers"][0]
    assert pod["automountServiceAccountToken"] is False
    assert agent["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert agent["securityContext"]["readOnlyRootFilesystem"] is True
    assert all(mount["readOnly"] for mount in agent["volumeMounts"])


def admits(labels: Mapping[str, str]) -> bool:
    """Return whether a node with these labels has an agent: a required term of which every part
    holds."""
    pod = manifest("daemonset.yaml")["spec"]["template"]["spec"]
    if not pod["nodeSelector"].items() <= labels.items():
        return False
    required = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    operators = {
        "In": lambda e: labels.get(e["key"]) in e["values"],
        "NotIn": lambda e: labels.get(e["key"]) not in e["values"],
        "DoesNotExist": lambda e: e["key"] not in labels,
    }
    return any(
        all(operators[e["operator"]](e) for e in term["matchExpressions"])
        for term in required["nodeSelectorTerms"]
    )


NODE = {"nvidia.com/gpu.present": "true"}
CLIENT = "nvidia.com/gpu.deploy.client"
OPERANDS = [
    f"nvidia.com/gpu.deploy.{name}"
    for name in ("operator-validator", "device-plugin", "dcgm-exporter", "sandbox-validator")
]


@pytest.mark.parametrize("change", ["driver-upgrade", "mig-change", "vgpu-change"])
@pytest.mark.parametrize("client", [{}, {CLIENT: "true"}], ids=["before 26.7", "since"])
def test_it_leaves_a_node_whose_operands_are_paused(client: dict[str, str], change: str) -> None:
    node = {**NODE, **client}
    assert admits(node), "without a GPU operator that knows these labels"
    assert admits({**node, **dict.fromkeys(OPERANDS, "true")})
    assert admits({**node, OPERANDS[1]: "false"}), "an operand that is never deployed there"
    for label in OPERANDS:
        whole = {**node, **dict.fromkeys(OPERANDS, "true")}
        assert not admits({**whole, label: f"paused-for-{change}"})


@pytest.mark.parametrize("value", ["paused-for-driver-upgrade", "paused-for-mig-change", "", "new"])
def test_it_runs_only_where_clients_of_the_driver_may(value: str) -> None:
    """Whatever a release to come calls its reason."""
    assert not admits({**NODE, CLIENT: value})
