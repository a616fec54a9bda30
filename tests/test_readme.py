"""README's "How do I ...": each command is run, each setting decides what it says."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from agent.stack.programs import ALERTMANAGER, alertmanager_program
from tests.stack.running import Running, clean_environment, eventually
from tests.support.patience import PATIENCE
from tests.support.prometheus import free_port, wait_for
from tests.support.repository import ROOT

README = (ROOT / "README.md").read_text()
SECTION = README.partition("## How do I ...")[2].partition("\n## ")[0]
ROWS = dict(re.findall(r"^\| ([^|`]+) \| (.+) \|$", SECTION, re.MULTILINE))
QUESTIONS = {
    "slack": "get alerts in Slack",
    "silence": "silence a node",
    "threshold": "change a threshold",
    "price": "see what waiting GPUs cost",
    "kubernetes": "run it in Kubernetes",
    "slurm": "drain broken Slurm nodes, and keep receipts of jobs",
    "opentelemetry": "feed OpenTelemetry",
    "tunnel": "open the page of a DGX on my computer",
    "boards": "load the boards into Grafana",
}
PROGRAMS = {
    *("dgx-telemetry", "amtool", "helm", "kubectl", "install", "otelcol-contrib", "ssh", "cp")
}


def spans(question: str) -> list[str]:
    return re.findall(r"`([^`]+)`", ROWS[QUESTIONS[question]])


def commands(question: str) -> list[str]:
    return [span for span in spans(question) if span.split()[0] in PROGRAMS]


def settings(question: str, folder: Path) -> Path:
    """The configuration that is shipped, with the settings of a row below its tables."""
    text = (ROOT / "deploy/config.toml").read_text()
    table = ""
    for span in spans(question):
        if span.startswith("["):
            table = span
            text += f"\n{table}\n" if f"\n{table}\n" not in text else ""
        elif " = " in span:
            text = text.replace(f"\n{table}\n", f"\n{table}\n{span}\n")
    path = folder / "config.toml"
    path.write_text(text)
    return path


def run(line: str, cwd: Path = ROOT, **environment: str) -> str:
    """Return the output of a shell line; it must succeed."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        line,
        shell=True,
        cwd=cwd,
        env=clean_environment(PATH=path, **environment),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, (line, done.stdout, done.stderr)
    return done.stdout


def needs(*programs: str) -> pytest.MarkDecorator:
    missing = [name for name in programs if not shutil.which(name)]
    return pytest.mark.skipif(bool(missing), reason=f"needs {' and '.join(missing)}")


def built(question: str, folder: Path) -> Path:
    """Return the output of `build` with the settings of a row."""
    (line,) = (one for one in commands(question) if one.startswith("dgx-telemetry build"))
    assert line == "dgx-telemetry build DIR"
    run(f"dgx-telemetry build {folder}/out --config {settings(question, folder)}")
    rules = (folder / "out/prometheus").iterdir()
    assert all(path.stat().st_mode & 0o004 for path in rules), "Prometheus is another user"
    return folder / "out"


def test_every_row_is_tried_and_every_command_known() -> None:
    assert set(ROWS) == set(QUESTIONS.values())
    said = {span.split()[0] for question in QUESTIONS for span in commands(question)}
    assert said == PROGRAMS
    assert len(SECTION) < 3000, "README is a product page"


@pytest.mark.stack
def test_slack(tmp_path: Path) -> None:
    out = built("slack", tmp_path)
    run(f"amtool check-config {out}/alertmanager/alertmanager.yaml")
    receivers = yaml.safe_load((out / "alertmanager/alertmanager.yaml").read_text())["receivers"]
    slack = [config for one in receivers for config in one.get("slack_configs", ())]
    assert slack
    for one in slack:
        assert one["api_url_file"] == "/etc/dgx-telemetry/slack-url"
        assert one["channel"] == "#gpus"


@pytest.mark.stack
def test_silence(tmp_path: Path) -> None:
    (line,) = commands("silence")
    shutil.copy(ROOT / "deploy/alertmanager/alertmanager.yaml", tmp_path)
    port = free_port()
    program = alertmanager_program(ALERTMANAGER.need(), port, tmp_path)
    with subprocess.Popen(program.arguments, stderr=subprocess.DEVNULL) as alertmanager:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(f"{url}/-/ready")
            run(line.replace("http://127.0.0.1:9093", url))
            said = run(f"amtool silence query --alertmanager.url={url}")
        finally:
            alertmanager.terminate()
    assert 'instance=~"node7(:.*)?"' in said
    assert "new power supply" in said


@pytest.mark.promtool
def test_threshold(tmp_path: Path) -> None:
    out = built("threshold", tmp_path)
    run(f"promtool check rules {out}/prometheus/*.yaml")
    rules = [
        rule
        for path in (out / "prometheus").glob("*.yaml")
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
    ]
    hot = [rule for rule in rules if rule.get("alert") == "DgxGpuHot"]
    assert {rule["labels"]["severity"] for rule in hot} == {"info"}
    assert any("0.4" in rule["expr"] for rule in rules if rule.get("alert") == "DgxGpuStarved")


def test_price(tmp_path: Path) -> None:
    """Of an agent here, as the command has it; at another port, for one may run already."""
    (line,) = commands("price")
    config = str(settings("price", tmp_path))
    listen = f"127.0.0.1:{free_port()}"
    simulated = ("--simulate", "dgx-station-v100:starved-disk", "--simulate-speed", "60")
    with Running("agent", "run", "--listen", listen, "--config", config, *simulated):
        wait_for(f"http://{listen}/-/ready")

        def said() -> str:
            return run(f"{line} --config {config}", DGX_TELEMETRY_LISTEN=listen)

        eventually(lambda: re.search(r"cost", said(), re.IGNORECASE), "what it costs")


@needs("helm", "kubectl")
def test_kubernetes() -> None:
    """As far as it goes without a cluster."""
    helm, kubectl = commands("kubernetes")
    assert "kind: DaemonSet" in run(helm.replace("helm install", "helm template"))
    assert "kind: DaemonSet" in run(kubectl.replace("kubectl apply -k", "kubectl kustomize"))


def test_slurm(tmp_path: Path) -> None:
    assert "SchedulerParameters=nohold_on_prolog_fail" in spans("slurm")
    for line, name in zip(commands("slurm"), ("prolog", "epilog"), strict=True):
        run(line.replace("/etc/slurm/", f"{tmp_path}/"))
        assert f"{name.title()}=/etc/slurm/dgx-{name}" in spans("slurm")
        assert os.access(tmp_path / f"dgx-{name}", os.X_OK)
        run(f"sh -n {tmp_path}/dgx-{name}")


def test_opentelemetry() -> None:
    """The file; what is in it is tried in test_opentelemetry.py."""
    (line,) = commands("opentelemetry")
    _, _, path = shlex.split(line)
    assert yaml.safe_load((ROOT / path).read_text())["service"]


@needs("ssh")
def test_tunnel() -> None:
    """As ssh understands it, without a connection."""
    (line,) = commands("tunnel")
    said = run(line.replace("ssh ", "ssh -G -F none ", 1))
    assert "localforward 9935 [127.0.0.1]:9935\n" in said
    assert "hostname dgx1\n" in said
    assert spans("tunnel")[1] == "http://127.0.0.1:9935/"


def test_boards(tmp_path: Path) -> None:
    out = built("boards", tmp_path)
    _, boards, provider = commands("boards")
    run(boards.replace("DIR", str(out)).replace("/etc/", f"{tmp_path}/"))
    run(provider.replace("/etc/grafana/provisioning/dashboards/", f"{tmp_path}/"))
    (read,) = yaml.safe_load((tmp_path / "dgx.yaml").read_text())["providers"]
    there = tmp_path / Path(read["options"]["path"]).relative_to("/etc")
    names = {path.name for path in there.glob("*.json")}
    assert names == {path.name for path in (ROOT / "deploy/grafana/dashboards").glob("*.json")}


def test_a_link_in_the_table_leads_somewhere() -> None:
    deploy = (ROOT / "deploy/README.md").read_text()
    for anchor in re.findall(r"\(deploy/README\.md#(\w+)\)", SECTION):
        assert re.search(rf"^##+ {anchor}$", deploy, re.IGNORECASE | re.MULTILINE)
