"""The chart, by Helm itself and by the schemas of Kubernetes."""

import json
import re
import subprocess
import tomllib
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest
import yaml

from agent import __version__
from tests.conftest import Committed
from tests.stack.running import run_to_end
from tests.support.repository import ROOT
from tests.test_kubernetes import FOLDER, POD_MONITOR, is_taken, manifest

OPERATOR = [f"monitoring.coreos.com/v1/{kind}" for kind in ("PodMonitor", "PrometheusRule")]
"""What a cluster with the Prometheus operator knows."""
IMAGE = {"image": {"repository": "registry.example/dgx-telemetry"}}

needs_helm = pytest.mark.needs("helm")


def helm(values: object, known: Sequence[str] = OPERATOR) -> subprocess.CompletedProcess[str]:
    """The chart, rendered with these values for a cluster that knows these kinds."""
    command = ["helm", "template", "dgx-telemetry", str(FOLDER), "--values", "-"]
    command += [word for kind in known for word in ("--api-versions", kind)]
    return run_to_end(command, given=json.dumps(values))


def every_object(known: Sequence[str] = OPERATOR, /, **values: Any) -> list[Any]:
    done = helm({**IMAGE, **values}, known)
    assert done.returncode == 0, done.stderr
    return [*filter(None, yaml.load_all(done.stdout, yaml.CSafeLoader))]


def objects(**values: Any) -> dict[str, Any]:
    """The objects of the chart by their kind."""
    return {one["kind"]: one for one in every_object(**values)}


def pod_of(**values: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Its pod, as Kubernetes takes it, and the container in it."""
    agents = objects(**values)["DaemonSet"]
    assert is_taken(agents)
    pod = agents["spec"]["template"]["spec"]
    return pod, pod["containers"][0]


@needs_helm
def test_the_chart_is_the_manifests() -> None:
    """Besides, its objects have what the values and the settings put in."""
    settings, agents, monitor = objects().values()
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
    usual = objects()["DaemonSet"]["spec"]["template"]
    settings, agents = objects(
        image={**IMAGE["image"], "tag": "v1"},
        imagePullSecrets=[{"name": "registry"}],
        config="[job]\ninfo = false\n",
        nodeSelector={"pool": "dgx"},
        tolerations=[],
        resources={"requests": {"cpu": "20m"}},
        podMonitor={"enabled": False},
    ).values()
    assert is_taken(settings)
    assert is_taken(agents)
    assert settings["data"] == {"config.toml": "[job]\ninfo = false\n"}
    pod = agents["spec"]["template"]
    assert pod["metadata"]["annotations"] != usual["metadata"]["annotations"]  # it begins again
    assert pod["spec"]["nodeSelector"] == {"pool": "dgx"}
    assert pod["spec"]["tolerations"] == []
    assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["spec"]["runtimeClassName"] == usual["spec"]["runtimeClassName"]
    agent = pod["spec"]["containers"][0]
    assert agent["image"] == "registry.example/dgx-telemetry:v1"
    assert agent["resources"] == {"requests": {"cpu": "20m"}}
    assert agent["securityContext"] == usual["spec"]["containers"][0]["securityContext"]


@needs_helm
def test_a_value_that_is_taken_away_is_that_of_the_manifests() -> None:
    """As by `--set nodeSelector=null`."""
    nothing = dict.fromkeys(("nodeSelector", "affinity", "tolerations", "resources"))
    assert objects(**nothing) == objects()
    assert "image/tag" in helm({"image": {**IMAGE["image"], "tag": ""}}).stderr.replace(".", "/")


@needs_helm
def test_a_cluster_may_have_no_class_for_nvidias_runtime() -> None:
    agents = objects(runtimeClassName="")["DaemonSet"]
    assert is_taken(agents)
    assert "runtimeClassName" not in agents["spec"]["template"]["spec"]


@needs_helm
def test_what_charts_have_is_put_in() -> None:
    update = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}}
    agents = objects(
        affinity={"nodeAffinity": {}},
        priorityClassName="system-node-critical",
        updateStrategy=update,
        podAnnotations={"team": "gpu"},
        podLabels={"cost": "shared"},
        extraEnv=[{"name": "TZ", "value": "UTC"}],
    )["DaemonSet"]
    assert is_taken(agents)
    pod = agents["spec"]["template"]
    assert agents["spec"]["updateStrategy"] == update
    assert agents["spec"]["selector"]["matchLabels"].items() < pod["metadata"]["labels"].items()
    assert pod["metadata"]["labels"]["cost"] == "shared"
    assert pod["metadata"]["annotations"].keys() == {"team", "checksum/config"}
    assert pod["spec"]["affinity"] == {"nodeAffinity": {}}
    assert pod["spec"]["priorityClassName"] == "system-node-critical"
    names = [one["name"] for one in pod["spec"]["containers"][0]["env"]]
    assert names == ["NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "TZ"]


@needs_helm
def test_a_pod_without_pods_names_has_no_root_and_no_privilege() -> None:
    """What Pod Security calls restricted."""
    pod, agent = pod_of(podResources=False, hostPID=False, hostNetwork=False)
    assert not pod.keys() & {"hostPID", "hostNetwork", "dnsPolicy"}
    assert [one["name"] for one in pod["volumes"]] == ["config"]
    assert [one["name"] for one in agent["volumeMounts"]] == ["config"]
    rights = agent["securityContext"]
    assert (rights["runAsUser"], rights["runAsNonRoot"]) == (65534, True)
    assert rights["capabilities"] == {"drop": ["ALL"]}
    assert (rights["allowPrivilegeEscalation"], rights["seccompProfile"]["type"]) == (
        False,
        "RuntimeDefault",
    )
    assert pod_of(podResources=False)[0]["hostPID"] is True


INFO = "[job]\ninfo = true\n"


@needs_helm
def test_the_default_names_nobody_to_the_network() -> None:
    settings = tomllib.loads(objects()["ConfigMap"]["data"]["config.toml"])
    assert settings == {"job": {"info": False}}
    forms = (INFO, "job.info=true", 'job = {"info" = true}', " [job]\n\tinfo  = true # all")
    naming: list[dict[str, Any]] = [{"config": form} for form in forms]
    naming.append({"extraEnv": [{"name": "DGX_TELEMETRY_JOB_INFO", "value": "true"}]})
    for values in naming:
        refused = helm({**IMAGE, **values})
        assert refused.returncode != 0, values
        cure = "set webConfigSecret, hostNetwork=false or namesWithoutPassword=true"
        assert cure in refused.stderr
    config = "# info = true\n[job]\ninfo = false # not true"
    assert helm({**IMAGE, "config": config}).returncode == 0
    pod, agent = pod_of(config=INFO, webConfigSecret="web")
    assert agent["args"][-2:] == ["--web.config.file", "/etc/dgx-telemetry-web/web.yml"]
    assert pod["volumes"][-1] == {"name": "web", "secret": {"secretName": "web"}}
    monitor = objects(config=INFO, webConfigSecret="web")["PodMonitor"]
    jsonschema.validate(monitor, POD_MONITOR)
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["basicAuth"]["password"] == {"name": "web", "key": "password"}
    for value in ({"namesWithoutPassword": True}, {"hostNetwork": False}):
        assert objects(config=INFO, **value)["ConfigMap"]["data"] == {"config.toml": INFO}


@needs_helm
def test_rules_and_boards_are_those_of_the_repository() -> None:
    asked = {"prometheusRule": {"enabled": True}, "boards": {"enabled": True}}
    found = {(one["kind"], one["metadata"]["name"]): one for one in every_object(**asked)}
    for path in (ROOT / "deploy/prometheus").glob("*.yaml"):
        assert found.pop(("PrometheusRule", path.stem))["spec"] == yaml.safe_load(path.read_text())
    for path in (ROOT / "deploy/grafana/dashboards").glob("*.json"):
        board = found.pop(("ConfigMap", path.stem))
        assert board["data"] == {path.name: path.read_text()}
        assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert is_taken(board)
    assert {name for _, name in found} == {"dgx-telemetry"}


@needs_helm
def test_kinds_that_the_cluster_does_not_know_are_left_out() -> None:
    found = every_object((), prometheusRule={"enabled": True})
    assert [one["kind"] for one in found] == ["ConfigMap", "DaemonSet"]


def values_table() -> str:
    """The values of the chart with the comments above them, as a table."""
    rows, above, path = [], [], [""]
    for line in (FOLDER / "values.yaml").read_text().splitlines():
        text = line.strip()
        if text.startswith("#"):
            above.append(text[2:])
        elif found := re.match(r"( *)(\w+):(.*)$", line):
            path = [*path[: 1 + len(found[1]) // 2], found[2]]
            value: Any = manifest("values.yaml")
            for key in path[1:]:
                value = value[key]
            if above:
                rows.append(
                    f"| `{'.'.join(path[1:])}` | `{json.dumps(value)}` | {' '.join(above)} |"
                )
            above = []
        else:
            above = []
    return "\n".join(rows) + "\n"


def test_each_value_of_the_chart_is_explained(committed: Committed) -> None:
    path = FOLDER / "README.md"
    titles = "| Value | Default | Meaning |\n| --- | --- | --- |\n"
    head, begin, _ = path.read_text().partition(titles)
    committed(path, head + begin + values_table())
    top = {row.split("`")[1].partition(".")[0] for row in values_table().splitlines()}
    assert top == manifest("values.yaml").keys()


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
    done = run_to_end(command, given=json.dumps(IMAGE))
    assert done.returncode == 0, done.stdout
