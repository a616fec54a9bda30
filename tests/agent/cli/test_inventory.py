"""Targets from lists, files and Slurm: who is one, and with which labels."""

import json
import os
import signal
import tomllib
import urllib.error
import urllib.request
from base64 import b64encode
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert

from agent.cli.inventory import (
    EXPECTED,
    FleetFile,
    FleetNode,
    hosts_of,
    nodes,
    slurm_nodes,
    targets,
)
from agent.cli.parser import run_command
from agent.config.decoding import Mismatch, decode
from agent.errors import BadInput
from agent.hardware.schedulers import SlurmNode
from tests.stack.running import Running, eventually
from tests.support.served import hashed
from tests.support.web_files import TLS, make_certificates, trusting, web_file

CASES = tomllib.loads(Path(__file__).with_name("inventory.toml").read_text("utf-8"))

SHOWN = Path(__file__).with_name("scontrol.json").read_text(encoding="utf-8")
"""As data_parser/v0.0.39 to v0.0.44 write it (Slurm 23.02 to 25.11); keys that no one reads are
left out."""

WRONG = CASES["wrong"]


def no_slurm() -> list[SlurmNode]:
    raise AssertionError


def listed() -> list[SlurmNode]:
    return convert(json.loads(SHOWN)["nodes"], list[SlurmNode])


def test_slurm_shows_who_is_out() -> None:
    assert list(slurm_nodes(listed())) == [
        FleetNode("dgx001", "10.0.0.1"),
        FleetNode("dgx002", "dgx002", drained="GPU 3: lost, board [ordered]"),
        FleetNode("dgx003", "dgx003"),  # it does not answer, and no one took it out
        FleetNode("dgx005", "dgx005", drained="no reason given"),
        FleetNode("dgx006", "dgx006"),
    ]


def test_racks_of_a_file_are_looked_up_for_slurm() -> None:
    text = {"slurm": True, "rack": [{"name": "r01", "hosts": "dgx[001-099]"}]}
    found = nodes(decode(text, FleetFile), listed)
    assert {node.rack for node in found} == {"r01"}
    assert len(found) == 5


def test_labels_without_a_value_are_left_out() -> None:
    found = nodes(decode({"hosts": "a"}, FleetFile), no_slurm)
    assert targets(FleetFile(), found) == [{"targets": ["a:9935"], "labels": {"node": "a"}}]


def test_a_node_has_the_name_of_slurm_whatever_its_address() -> None:
    (only,) = targets(FleetFile(cluster="c"), [FleetNode("dgx001", "10.0.0.1", "r01")])
    assert only["targets"] == ["10.0.0.1:9935"]
    assert only["labels"] == {
        "instance": "dgx001:9935",
        "cluster": "c",
        "rack": "r01",
        "node": "dgx001",
    }


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(BadInput, match="there is no node in the list, expected at least one"):
        nodes(FleetFile(slurm=True), list)


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_file_is_one_sentence(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(text)
    assert run_command(["inventory", "--file", str(file)]) == 2
    assert capsys.readouterr().err == f"dgx-telemetry: {file}: {WRONG[text]}\n"


@pytest.mark.parametrize(("words", "sentence"), CASES["flags"])
def test_wrong_flags_are_one_sentence(
    words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["inventory", *words]) == 2
    assert capsys.readouterr().err == f"dgx-telemetry: {sentence}\n"


def test_a_file_is_written_where_it_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = tmp_path / "fleet.toml", tmp_path / "dgx.json"
    source.write_text(Path(__file__).with_name("fleet.toml").read_text(encoding="utf-8"))
    for _ in range(2):
        assert run_command(["inventory", "--file", str(source), "--output", str(output)]) == 0
    assert capsys.readouterr().out == f"{output}: 4 targets, 1 of them drained\n"
    assert output.stat().st_mode & 0o777 == 0o644
    found = {one["labels"]["node"]: one for one in json.loads(output.read_text())}
    assert found["dgx002"]["labels"] == {
        "cluster": "seed",
        "rack": "r01",
        "node": "dgx002",
        "drained": "board ordered",
    }
    assert found["login1"]["targets"] == ["login1:9999"]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `scontrol` that prints a file, and fails where there is none."""
    said = tmp_path / "nodes"
    said.write_text(SHOWN)
    program = tmp_path / "bin/scontrol"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n[ "$*" = "--json --all show nodes" ] && cat {said}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return said


def test_the_file_stays_while_slurm_does_not_answer(slurm: Path, tmp_path: Path) -> None:
    output = tmp_path / "dgx.json"
    words = ("inventory", "--slurm", "--every", "0.1", "--output", str(output))
    with Running("agent", *words) as program:
        program.line("5 targets, 2 of them drained")
        slurm.rename(tmp_path / "away")
        program.line("the nodes of Slurm .* cannot be listed: scontrol fails")
        assert len(json.loads(output.read_text())) == 5
        slurm.write_text(SHOWN.replace('"IDLE", "DRAIN"', '"IDLE"'))
        program.line("5 targets, 1 of them drained")


def test_the_file_stays_current_without_a_reader(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another(_: float) -> None:
        states = slurm.read_text()
        slurm.write_text(states.replace('"IDLE", "DRAIN"', '"IDLE"'))
        if states == slurm.read_text():
            raise KeyboardInterrupt

    def gone(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("agent.cli.inventory.time", SimpleNamespace(sleep=another))
    monkeypatch.setattr("agent.cli.inventory.print", gone, raising=False)
    words = ["inventory", "--slurm", "--every", "1", "--output", str(tmp_path / "dgx.json")]
    assert run_command(words) == 130
    assert (tmp_path / "dgx.json").read_text().count('"drained"') == 1


def test_targets_are_served_with_tls_and_a_password(slurm: Path, tmp_path: Path) -> None:
    users = f"basic_auth_users: {{prometheus: {hashed('secret')}}}\n"
    web = web_file(make_certificates(tmp_path), TLS + users)
    words = ("inventory", "--slurm", "--listen", "127.0.0.1:0", "--web.config.file", web)
    with Running("agent", *words) as program:
        address = program.line(r"https://127.0.0.1:\d+/targets")[0]
        trust = trusting(tmp_path)

        def ask(password: str = "secret") -> tuple[int, str]:
            coded = b64encode(f"prometheus:{password}".encode()).decode()
            request = urllib.request.Request(address, headers={"Authorization": f"Basic {coded}"})
            try:
                with urllib.request.urlopen(request, context=trust) as page:
                    assert page.headers["Content-Type"] == "application/json"
                    return page.status, page.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        status, body = ask()
        assert (status, len(json.loads(body))) == (200, 5)
        assert ask("wrong")[0] == 401
        slurm.rename(tmp_path / "away")
        status, body = ask()
        assert (status, body[:18]) == (503, "the nodes of Slurm")
        slurm.write_text(SHOWN)
        eventually(lambda: ask()[0] == 200, "Slurm is back")
        assert program.end(signal.SIGTERM) == 0


LISTS = CASES["lists"]
WRONG_LISTS = {"a b;c": "b;c"} | {
    text: text
    for text in ("dgx[1-", "dgx[]", "dgx[\u0663]", "dgx[3-1]", "dgx[0-999999]", "a[1-300]b[1-300]")
}


@pytest.mark.parametrize("text", LISTS)
def test_a_list_is_expanded(text: str) -> None:
    assert hosts_of(text) == LISTS[text]


@pytest.mark.parametrize("text", WRONG_LISTS)
def test_what_is_no_list_is_reported_in_one_sentence(text: str) -> None:
    with pytest.raises(Mismatch) as caught:
        hosts_of(text, "rack[2].hosts")
    assert str(caught.value) == f"rack[2].hosts: '{WRONG_LISTS[text]}' is not {EXPECTED}"


@given(st.text(alphabet="ab-.,[]0123456789 \n", max_size=24))
def test_any_text_is_a_list_or_a_sentence(text: str) -> None:
    with suppress(Mismatch):
        assert all(name and not set(name) & set("[], \n") for name in hosts_of(text))


NODE = CASES["node"]


@pytest.mark.parametrize(("state", "reason", "drained"), CASES["states"])
def test_states_are_slurms_own_and_free_text_is_none(
    state: list[str], reason: str, drained: list[str]
) -> None:
    node = convert(NODE | {"state": state, "reason": reason}, SlurmNode)
    assert [node.drained for node in slurm_nodes([node])] == drained


def test_nodes_without_gpus_or_a_name_are_no_targets() -> None:
    rows = [NODE | {"gres": ""}, NODE | {"gres": None}, NODE | {"name": ""}]
    assert list(slurm_nodes(convert(rows, list[SlurmNode]))) == []


@pytest.mark.parametrize("answer", ["NodeName=n1 State=IDLE", "{", '{"nodes": [{"name": "a"}]}'])
def test_other_answers_of_slurm_are_one_sentence(
    answer: str, slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.write_text(answer)
    assert run_command(["inventory", "--slurm"]) == 2
    assert "(23.02 or newer) cannot be listed: scontrol answers" in capsys.readouterr().err


def test_an_address_of_ipv6_stands_in_brackets() -> None:
    (node,) = slurm_nodes([convert(NODE | {"address": "fd00::7"}, SlurmNode)])
    fleet = FleetFile(hosts="fd00::8,n1")
    found = targets(fleet, [node, *nodes(fleet, no_slurm)])
    assert [one["targets"] for one in found] == [
        ["[fd00::7]:9935"],
        ["[fd00::8]:9935"],
        ["n1:9935"],
    ]
