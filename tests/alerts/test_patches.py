"""`[alerts.NAME]`: a site drops a rule, or changes it."""

import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.cli.options import SECTIONS
from agent.config.configuration import ConfigError, load
from agent.config.settings import Settings
from agent.faults.thresholds import AlertThresholds
from alerts.build import alertmanager, rules
from tests.stack.running import run_to_end

CASES = tomllib.loads(Path(__file__).with_name("patches.toml").read_text("utf-8"))

STARVED = "[alerts]\nstarved_share = 0.4\n[alerts.DgxGpuStarved]\n"


def configured(folder: Path, text: str) -> Settings:
    path = folder / "config.toml"
    path.write_text(text)
    return load(SECTIONS, path, {})


def alerts(settings: Settings, scale: float = 1.0) -> list[dict[str, Any]]:
    files = (yaml.safe_load(text) for text in rules(settings, scale).values())
    found = [rule for file in files for group in file["groups"] for rule in group["rules"]]
    return [rule for rule in found if "alert" in rule]


def named(settings: Settings, name: str, scale: float = 1.0) -> list[dict[str, Any]]:
    return [rule for rule in alerts(settings, scale) if rule["alert"] == name]


def test_a_rule_is_dropped_and_no_other(tmp_path: Path) -> None:
    before, after = (
        alerts(Settings()),
        alerts(configured(tmp_path, "[alerts.DgxGpuHot]\nenabled = false\n")),
    )
    assert after == [rule for rule in before if rule["alert"] != "DgxGpuHot"]


def test_all_rules_of_an_alert_are_changed_beside_the_thresholds(tmp_path: Path) -> None:
    text = f'{STARVED}for = "5m"\nseverity = "critical"\nlabels = {{ team = "ml" }}\n'
    settings = configured(tmp_path, text)
    assert settings[AlertThresholds].starved_share == 0.4
    usual, changed = named(Settings(), "DgxGpuStarved"), named(settings, "DgxGpuStarved")
    assert len(changed) == len(usual) > 1
    for before, after in zip(usual, changed, strict=True):
        assert after["for"] == "5m"
        assert after["labels"] == {**before["labels"], "severity": "critical", "team": "ml"}
    assert any(">= 0.4" in rule["expr"] for rule in changed)
    assert {rule["for"] for rule in named(settings, "DgxGpuStarved", 1 / 60)} == {"5s"}
    assert alertmanager(settings) == alertmanager(Settings())


def test_at_once(tmp_path: Path) -> None:
    rule, _ = named(configured(tmp_path, '[alerts.DgxPcieReplays]\nfor = "0s"\n'), "DgxPcieReplays")
    assert "for" not in rule


WRONG = CASES["wrong"]


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_one_sentence(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        configured(tmp_path, text)
    message = str(refused.value).removeprefix(f"{tmp_path}/config.toml: ")
    assert message.startswith(WRONG[text])
    assert "\n" not in message


def test_build_refuses_an_alert_that_there_is_not(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[alerts.DgxGpuStarving]\nenabled = false\n")
    command = [sys.executable, "-m", "agent", "build", f"{tmp_path}/out", "--config", f"{path}"]
    end = run_to_end(command)
    assert end.returncode == 2
    assert "alerts.DgxGpuStarving is not a known key" in end.stderr
    assert not (tmp_path / "out").exists()
