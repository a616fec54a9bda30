"""A simulated fleet in real Prometheus and Alertmanager: what arrives of a rack, and of a node."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from agent.config.settings import Settings
from agent.stack import programs
from agent.stack.programs import choose
from alerts.build import alertmanager, rules
from alerts.receivers import Receivers
from tests.stack.daemons import FREE, answers, started
from tests.stack.receivers import Inbox, webhook
from tests.stack.running import eventually
from tests.support.prometheus import wait_for

pytestmark = pytest.mark.stack

NODES, SYSTEM, CUT, SCALE = 12, "dgx-station-v100", 20.0, 1 / 5
"""Three racks, of which the last loses its power after so many seconds, and one job over six nodes;
the rules are five times as fast."""

DARK = {f"dgx-{number:03d}:9935" for number in range(9, 13)}


@pytest.fixture(scope="module")
def inbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inbox]:
    folder: Path = tmp_path_factory.mktemp("fleet")
    ports = choose(FREE)
    rule_files = rules(Settings(), SCALE)
    with ExitStack() as stack:
        inbox = stack.enter_context(webhook())
        shown = Settings(Receivers(webhook_url=f"http://127.0.0.1:{inbox.port}/alerts"))
        texts = {
            **rule_files,
            **alertmanager(shown, SCALE),
            "prometheus.yaml": programs.prometheus(
                ports, programs.FLEET_SCRAPE_SECONDS * SCALE, list(rule_files), fleet=True
            ),
        }
        for name, text in texts.items():
            (folder / name).write_text(text)
        fleet = programs.fleet_program(ports.agent, NODES, SYSTEM, 1.0)
        fleet = replace(fleet, arguments=[*fleet.arguments, f"{CUT:g}"])
        stack.enter_context(started(fleet, folder / "fleet.log"))
        wait_for(fleet.address + fleet.ready.lstrip("/"))
        for program in (
            programs.server_program("alertmanager", ports.alertmanager, folder),
            programs.server_program("prometheus", ports.prometheus, folder),
        ):
            stack.enter_context(started(program, folder / f"{program.name}.log"))
            eventually(partial(answers, program), f"{program.name} is ready")
        yield inbox


def test_a_rack_without_power_is_one_alert(inbox: Inbox) -> None:
    def gone() -> list[str]:
        return [d.text for d in list(inbox.deliveries) if d.labels.get("sign") == "rack"]

    eventually(gone, "the rack")
    assert len(gone()) == 1
    assert "nodes of rack r03 in cluster simulated have not responded" in gone()[0]
    assert {d.instance for d in inbox.deliveries if d.name == "DgxAgentDown"} & DARK == set()


def test_the_node_that_holds_up_its_job_is_named(inbox: Inbox) -> None:
    def slow() -> list[str]:
        return [d.text for d in list(inbox.deliveries) if d.name == "DgxNodeSlow"]

    eventually(slow, "the slow node")
    assert {d.instance for d in inbox.deliveries if d.name == "DgxNodeSlow"} == {"dgx-004:9935"}
    assert "it slows down job 4711" in slow()[0]
