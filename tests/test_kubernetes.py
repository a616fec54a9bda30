"""The manifests for Kubernetes, by its own schemas; that of PodMonitor, which is in no
package, by a small one of the fields that ours may have."""

from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

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
    assert files == {path.name for path in FOLDER.iterdir()} - {"kustomization.yaml"}
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
