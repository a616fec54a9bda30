"""The recipes of deploy/README: each command is run, each setting decides as the recipe says."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from agent.stack.programs import server_program
from tests.stack.running import Running, clean_environment, eventually
from tests.support.patience import PATIENCE
from tests.support.prometheus import free_port, wait_for
from tests.support.repository import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
MANUAL = (ROOT / "deploy/README.md").read_text(encoding="utf-8")
LISTED = README.partition("## How do I ...")[2].partition("\n## ")[0]
RECIPES = tomllib.loads(Path(__file__).with_name("readme.toml").read_text("utf-8"))["recipes"]


def lines(recipe: str, language: str) -> list[str]:
    """Return the lines of the blocks of a recipe in a language, without comments."""
    section = re.split(rf"^##+ {RECIPES[recipe]}$", MANUAL, flags=re.MULTILINE)[1]
    section = re.split(r"^##+ ", section, flags=re.MULTILINE)[0]
    blocks = re.findall(rf"^```{language}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    text = "".join(blocks).replace("\\\n", "")
    return [line for part in text.splitlines() if (line := re.sub(r"\s+# .*", "", part))]


def commands(recipe: str) -> list[str]:
    return lines(recipe, "sh")


def settings(recipe: str, folder: Path) -> Path:
    """The configuration that is shipped, with the settings of a recipe below its tables."""
    text = (ROOT / "deploy/config.toml").read_text()
    table = ""
    for line in lines(recipe, "toml"):
        if line.startswith("["):
            table = line
            text += f"\n{table}\n" if f"\n{table}\n" not in text else ""
        else:
            text = text.replace(f"\n{table}\n", f"\n{table}\n{line}\n")
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


def built(recipe: str, folder: Path) -> Path:
    """Return the output of `build` with the settings of a recipe."""
    assert commands(recipe)[0] == "dgx-telemetry build DIR"
    run(f"dgx-telemetry build {folder}/out --config {settings(recipe, folder)}")
    rules = (folder / "out/prometheus").iterdir()
    assert all(path.stat().st_mode & 0o004 for path in rules), "Prometheus is another user"
    return folder / "out"


def test_readme_is_a_product_page_that_leads_to_each_recipe() -> None:
    assert len(README.splitlines()) <= 150
    anchors = re.findall(r"\(deploy/README\.md#([\w-]+)\)", LISTED)
    wanted = [re.sub(r"[^\w-]", "", name.lower().replace(" ", "-")) for name in RECIPES.values()]
    assert anchors == wanted


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
    program = server_program("alertmanager", port, tmp_path)
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


@pytest.mark.needs("helm", "kubectl")
def test_kubernetes() -> None:
    """As far as it goes without a cluster."""
    *_, kubectl, helm = commands("kubernetes")
    assert "kind: DaemonSet" in run(helm.replace("helm install", "helm template"))
    assert "kind: DaemonSet" in run(kubectl.replace("kubectl apply -k", "kubectl kustomize"))


def test_slurm(tmp_path: Path) -> None:
    said = lines("slurm", "ini")
    assert "SchedulerParameters=nohold_on_prolog_fail" in said
    for line, name in zip(commands("slurm"), ("prolog", "epilog"), strict=True):
        run(line.replace("/etc/slurm/", f"{tmp_path}/"))
        assert f"{name.title()}=/etc/slurm/dgx-{name}" in said
        assert os.access(tmp_path / f"dgx-{name}", os.X_OK)
        run(f"sh -n {tmp_path}/dgx-{name}")


def test_opentelemetry() -> None:
    """The file; what is in it is tried in test_requirements.py."""
    _, line = commands("opentelemetry")
    _, _, path = shlex.split(line)
    assert yaml.safe_load((ROOT / path).read_text())["service"]


@pytest.mark.needs("ssh")
def test_tunnel() -> None:
    """As ssh understands it, without a connection."""
    (line,) = commands("tunnel")
    said = run(line.replace("ssh ", "ssh -G -F none ", 1))
    assert "localforward 9935 [127.0.0.1]:9935\n" in said
    assert "hostname dgx1\n" in said


def test_boards(tmp_path: Path) -> None:
    out = built("boards", tmp_path)
    _, boards, provider = commands("boards")
    run(boards.replace("DIR", str(out)).replace("/etc/", f"{tmp_path}/"))
    run(provider.replace("/etc/grafana/provisioning/dashboards/", f"{tmp_path}/"))
    (read,) = yaml.safe_load((tmp_path / "dgx.yaml").read_text())["providers"]
    there = tmp_path / Path(read["options"]["path"]).relative_to("/etc")
    names = {path.name for path in there.glob("*.json")}
    assert names == {path.name for path in (ROOT / "deploy/grafana/dashboards").glob("*.json")}
