"""The manifests for Kubernetes, by its own schemas; PodMonitor's is in no package."""

from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.support.repository import ROOT

FOLDER = ROOT / "deploy/kubernetes"
VERSION = "1.37"


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
