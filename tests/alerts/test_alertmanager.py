"""The Alertmanager configuration: valid, routed by severity, without a secret in it."""

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from msgspec.structs import fields, replace

from agent.cli.options import SECTIONS
from agent.config.configuration import ConfigError, load
from agent.config.settings import Settings
from agent.errors import BadInput
from agent.faults.hiding import inhibitions
from alerts.build import alertmanager, alerts_of, groups
from alerts.receivers import NEEDS, Receivers
from tests.stack.running import run_to_end

ALL = Receivers(
    webhook_url="https://hooks.example/dgx",
    webhook_token_file="/run/secrets/token",
    watchdog_url="https://dead.example/man",
    watchdog_token_file="/run/secrets/watchdog",
    email_to="ops@example.org",
    email_from="dgx@example.org",
    email_smarthost="mail.example.org:587",
    email_username="dgx",
    email_password_file="/run/secrets/mail",
    slack_url_file="/run/secrets/slack",
    slack_channel="#gpus",
    pagerduty_key_file="/run/secrets/pager",
)
ONE_WAY = {
    "none": Receivers(),
    "a webhook": Receivers(webhook_url="http://127.0.0.1:1/x"),
    "mail": Receivers(email_to="a@b", email_from="c@d", email_smarthost="h:25", email_tls=False),
    "slack": Receivers(slack_url_file="/s", slack_channel="#x"),
    "a pager": Receivers(pagerduty_key_file="/p"),
    "a watchdog": Receivers(watchdog_url="http://127.0.0.1:1/w"),
    "all": ALL,
}


def text_of(receivers: Receivers, scale: float = 1.0) -> str:
    return alertmanager(Settings(receivers), scale)["alertmanager.yaml"]


def amtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_to_end(["amtool", *arguments])


@pytest.mark.stack
@pytest.mark.parametrize("scale", [1.0, 1 / 60], ids=["users", "scaled"])
@pytest.mark.parametrize("receivers", ONE_WAY.values(), ids=ONE_WAY)
def test_amtool_accepts_it(receivers: Receivers, scale: float, tmp_path: Path) -> None:
    path = tmp_path / "alertmanager.yaml"
    path.write_text(text_of(receivers, scale))
    done = amtool("check-config", path)
    assert done.returncode == 0, done.stdout + done.stderr


ROUTED = {
    "severity=critical": "critical",
    "severity=warning": "warning",
    "severity=info": "info",
    "severity=none": "watchdog",
    "alertname=SomebodyElses": "warning",
}


@pytest.mark.stack
@pytest.mark.parametrize("label", ROUTED)
def test_severity_decides_who_hears(label: str, tmp_path: Path) -> None:
    path = tmp_path / "alertmanager.yaml"
    path.write_text(text_of(ALL))
    done = amtool("config", "routes", "test", f"--config.file={path}", label, "instance=box:9935")
    assert done.stdout.strip() == ROUTED[label]


def test_the_pager_hears_what_is_critical_alone_and_the_watchdog_nothing_else() -> None:
    everywhere = {"webhook_configs", "email_configs", "slack_configs"}
    receivers = yaml.safe_load(text_of(ALL))["receivers"]
    assert {one["name"]: set(one) - {"name"} for one in receivers} == {
        "critical": {*everywhere, "pagerduty_configs"},
        "warning": everywhere,
        "info": everywhere,
        "watchdog": {"webhook_configs"},
    }


def test_messages_are_grouped_by_rack_and_cause() -> None:
    route = yaml.safe_load(text_of(ALL))["route"]
    assert route["group_by"] == ["cluster", "rack", "alertname"]
    assert not any("group_by" in one for one in route["routes"])


def test_secrets_are_named_by_file() -> None:
    """Every secret of the table is a path, and each path stands under a key that ends in _file."""
    lines = text_of(ALL).splitlines()
    for name in [entry.name for entry in fields(Receivers) if entry.name.endswith("_file")]:
        path = getattr(ALL, name)
        found = [line.strip() for line in lines if path in line]
        assert found
        assert all(line.lstrip("- ").split(":")[0].endswith("_file") for line in found), found


@pytest.mark.parametrize("key", NEEDS)
def test_half_a_receiver_is_refused(key: str) -> None:
    alone = replace(Receivers(), **{key: getattr(ALL, key)})
    with pytest.raises(BadInput, match=rf"alertmanager\.{key} needs alertmanager\.\w+"):
        text_of(alone)


WRONG = tomllib.loads(Path(__file__).with_name("alertmanager.toml").read_text("utf-8"))["wrong"]


@pytest.mark.parametrize("key", WRONG)
def test_a_wrong_value_is_refused_in_one_sentence(key: str, tmp_path: Path) -> None:
    table, name = key.split(".")
    for value in WRONG[key]:
        path = tmp_path / "config.toml"
        path.write_text(f"[{table}]\n{name} = {json.dumps(value)}\n")
        with pytest.raises(ConfigError) as refused:
            load(SECTIONS, path, {})
        assert f"{key}: " in str(refused.value)
        assert not re.search(r"\n|regex", str(refused.value))


def test_a_lost_gpu_and_a_silent_node_hold_back_the_right_alerts() -> None:
    """Of the first inhibitions: what they are sourced by, what they hold back, what they join."""
    silent, lost, *others = yaml.safe_load(text_of(ALL))["inhibit_rules"]
    assert silent["equal"] == ["cluster", "instance"]
    assert 'severity!="none"' in silent["target_matchers"], "the watchdog must not fall silent"
    assert lost["equal"] == ["cluster", "instance", "uuid"]
    assert 'uuid!=""' in lost["source_matchers"], "else it held back all that has no GPU"
    for rule in others:
        of_rack = rule["source_matchers"] == ['alertname="DgxNodeMissing"']
        wanted = "cluster" if of_rack else "instance"
        assert wanted in rule["equal"], "another machine's fault"
        assert "cluster" in rule["equal"], "another cluster's fault"


def test_inhibitions_name_alerts_that_there_are() -> None:
    """Those of jobs and nodes are other rules' business; an alert never holds back itself alone."""
    faults = alerts_of(groups(Settings()))
    known = {fault.alert for fault in faults}
    named = set(re.findall(r"Dgx[A-Za-z]+(?![A-Za-z.])", json.dumps(inhibitions(faults))))
    assert named - known <= {"DgxJobHung"}
    assert all(rule.source_matchers != rule.target_matchers for rule in inhibitions(faults))
