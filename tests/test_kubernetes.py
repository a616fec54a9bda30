"""The manifests for Kubernetes, by its own schemas; that of PodMonitor, which is in no
package, by a small one of the fields that ours may have. The chart, by Helm itself."""

import json
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from agent import __version__
from tests.support.repository import ROOT

FOLDER = ROOT / "deploy/kubernetes"
VERSION = "1.37"


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """An object with these properties alone, of which some must be there."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


TEXT = {"type": "string", "minLength": 1}
LABELS = {"type": "object", "additionalProperties": TEXT}
SPAN = {"type": "string", "pattern": r"^([0-9]+(ms|[smhdwy]))+$"}
RELABELING = _object(
    action={"enum": ["replace", "keep", "drop", "labelmap", "labeldrop", "labelkeep", "hashmod"]},
    sourceLabels=_list({"type": "string", "pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"}),
    separator=TEXT,
    regex=TEXT,
    replacement={"type": "string"},
    targetLabel=TEXT,
)
ENDPOINT = _object(
    ("port",),
    port=TEXT,
    path=TEXT,
    scheme={"enum": ["http", "https"]},
    interval=SPAN,
    scrapeTimeout=SPAN,
    honorLabels={"type": "boolean"},
    relabelings=_list(RELABELING),
    metricRelabelings=_list(RELABELING),
)
POD_MONITOR = _object(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "monitoring.coreos.com/v1"},
    kind={"const": "PodMonitor"},
    metadata=_object(("name",), name=TEXT, namespace=TEXT, labels=LABELS),
    spec=_object(
        ("selector", "podMetricsEndpoints"),
        jobLabel=TEXT,
        selector=_object(("matchLabels",), matchLabels=LABELS),
        podMetricsEndpoints=_list(ENDPOINT),
    ),
)
"""Of the documented fields of prometheus-operator's CRD (0.91) those that a DaemonSet needs."""

CHART = {"Chart.yaml", "values.yaml", "values.schema.json", ".helmignore", "templates"}
IMAGE = {"image": {"repository": "registry.example/dgx-telemetry"}}

needs_helm = pytest.mark.skipif(not shutil.which("helm"), reason="no Helm for this processor")


def helm(values: object) -> subprocess.CompletedProcess[str]:
    """The chart, rendered with these values."""
    command = ["helm", "template", "dgx-telemetry", str(FOLDER), "--values", "-"]
    content = json.dumps(values)
    return subprocess.run(command, input=content, capture_output=True, text=True, check=False)


def objects(**values: Any) -> list[Any]:
    done = helm({**IMAGE, **values})
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def manifest(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


@pytest.mark.parametrize("name", ["daemonset.yaml", "namespace.yaml"])
def test_kubernetes_takes_it(name: str) -> None:
    assert kubernetes_validate.validate(manifest(name), VERSION, strict=True) == VERSION


def test_a_wrong_key_is_refused() -> None:
    wrong = manifest("daemonset.yaml")
    wrong["spec"]["template"]["spec"]["hostPids"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSION, strict=True)


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
    """Whether a node with these labels has an agent: a required term of which every part holds."""
    pod = manifest("daemonset.yaml")["spec"]["template"]["spec"]
    if not pod["nodeSelector"].items() <= labels.items():
        return False
    required = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    operators = {"NotIn": lambda e: labels.get(e["key"]) not in e["values"]}
    return any(
        all(operators[e["operator"]](e) for e in term["matchExpressions"])
        for term in required["nodeSelectorTerms"]
    )


@pytest.mark.parametrize("paused", ["paused-for-driver-upgrade", "paused-for-mig-change"])
def test_it_leaves_a_node_whose_operands_are_paused(paused: str) -> None:
    node = {"nvidia.com/gpu.present": "true"}
    assert admits(node), "without a GPU operator that knows these labels"
    clients = ("client", "operator-validator", "device-plugin", "dcgm-exporter")
    labels = [f"nvidia.com/gpu.deploy.{client}" for client in clients]
    assert admits({**node, **dict.fromkeys(labels, "true")})
    assert admits({**node, labels[2]: "false"}), "a client that is never deployed there"
    for label in labels:
        assert not admits({**node, **dict.fromkeys(labels, "true"), label: paused})


@needs_helm
def test_the_chart_is_the_manifests() -> None:
    """Besides, its objects have what the values and the settings put in."""
    settings, agents, monitor = objects()
    assert settings["data"] == {"config.toml": (FOLDER / "config.toml").read_text()}
    pod = agents["spec"]["template"]
    assert list(pod["metadata"].pop("annotations")) == ["checksum/config"]
    agent = pod["spec"]["containers"][0]
    assert agent.pop("image") == "registry.example/dgx-telemetry:latest"
    ours = manifest("daemonset.yaml")
    del ours["spec"]["template"]["spec"]["containers"][0]["image"]
    assert agents == ours
    assert monitor == manifest("podmonitor.yaml")
    assert manifest("Chart.yaml")["version"] == manifest("Chart.yaml")["appVersion"] == __version__


@needs_helm
def test_values_are_put_in_and_kubernetes_takes_it() -> None:
    usual = objects()[1]["spec"]["template"]
    settings, agents = objects(
        image={**IMAGE["image"], "tag": "v1", "pullSecrets": [{"name": "registry"}]},
        config="[job]\ninfo = false\n",
        nodeSelector={"pool": "dgx"},
        tolerations=[],
        resources={"requests": {"cpu": "20m"}},
        podMonitor={"enabled": False},
    )
    for one in (settings, agents):
        assert kubernetes_validate.validate(one, VERSION, strict=True) == VERSION
    assert settings["data"] == {"config.toml": "[job]\ninfo = false\n"}
    pod = agents["spec"]["template"]
    assert pod["metadata"]["annotations"] != usual["metadata"]["annotations"]  # it begins anew
    assert pod["spec"]["nodeSelector"] == {"pool": "dgx"}
    assert pod["spec"]["tolerations"] == []
    assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["spec"]["runtimeClassName"] == usual["spec"]["runtimeClassName"]
    agent = pod["spec"]["containers"][0]
    assert agent["image"] == "registry.example/dgx-telemetry:v1"
    assert agent["resources"] == {"requests": {"cpu": "20m"}}
    assert agent["securityContext"] == usual["spec"]["containers"][0]["securityContext"]


@needs_helm
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "image.repository: expected the image"),
        ({**IMAGE, "podMonitr": {}}, "podMonitr"),
        ({**IMAGE, "podMonitor": {"interval": "soon"}}, "podMonitor.interval"),
    ],
)
def test_a_wrong_value_is_refused_and_named(values: object, said: str) -> None:
    done = helm(values)
    assert done.returncode != 0
    assert said in done.stderr


@needs_helm
def test_helm_finds_nothing_to_complain_of() -> None:
    command = ["helm", "lint", "--strict", str(FOLDER), "--values", "-"]
    content = json.dumps(IMAGE)
    done = subprocess.run(command, input=content, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
