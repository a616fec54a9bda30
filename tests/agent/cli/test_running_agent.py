"""`once` and `watch` ask the agent that runs, and say so where none does."""

from argparse import Namespace

import pytest

from agent.cli.check import values
from agent.cli.once import StatusView, page
from agent.cli.running_agent import RunningAgent, asked
from agent.config.settings import Settings
from agent.report.questions import NoAnswer
from agent.status.model import Level
from exporters.settings import HttpConfig
from tests.support.answering import answering
from tests.support.statuses import shown as machine_of


def test_the_running_agent_is_asked() -> None:
    machine = machine_of("titan-x-pascal:starved-disk").run(70)
    with answering(machine.board.json()) as place:
        agent, note = asked(
            Namespace(simulate=None, replay=None, agent=""),
            Settings(HttpConfig(listen=place)),
        )
        assert agent is not None
        assert note == ""
        lines = list(page(StatusView(agent.first), 80))
        assert any(line.startswith("The GPU is starved by disk") for line in lines)
        assert max(map(len, lines)) <= 80
        assert agent.status() == machine.status
    with pytest.raises(NoAnswer, match="does not answer"):
        agent.status()


def test_an_agent_that_has_just_started_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = machine_of("k40:idle")
    first = [machine.run(ticks).board.status() for ticks in (1, 9)]
    monkeypatch.setattr(RunningAgent, "status", lambda *_: first.pop(0))
    agent, _ = asked(Namespace(simulate=None, replay=None, agent="http://x"), Settings())
    assert agent is not None
    assert (agent.first.tick, first) == (machine.status.tick, [])


@pytest.mark.parametrize(("name", "late"), [("k40:driver-hang", 3), ("dgx-a100:gpu-slow", 1)])
def test_a_late_read_has_one_severity_from_its_first_second(name: str, late: int) -> None:
    """That of its alert; of a node of which nothing is known `check` says 3."""
    machine, found = machine_of(name), []
    for status in (machine.run(1).status for _ in range(40)):
        found.append((status.level, values(status, {})["status"], bool(status.findings)))
        levels = {(one.level, Level(one.alert.severity)) for one in status.findings if one.alert}
        assert levels <= {(Level.WARNING, Level.WARNING)}
    assert (found[1], found[-1]) == ((Level.GOOD, 0, False), (Level.WARNING, late, True))
    assert {ends for _, ends, faulty in found if faulty} == {late}


def test_who_does_not_answer_is_named() -> None:
    here = Settings(HttpConfig(listen="127.0.0.1:1", web_config_file="tls.yaml"))
    nothing = Namespace(simulate=None, replay=None, agent="")
    agent, note = asked(nothing, here)
    assert agent is None
    assert "read here, without its history: http://127.0.0.1:1 does not answer" in note
    assert "--agent https://" in note
    with pytest.raises(NoAnswer, match=r"http://127\.0\.0\.1:2 does not answer"):
        asked(Namespace(simulate=None, replay=None, agent="http://127.0.0.1:2"), here)
    assert asked(Namespace(simulate="k40", replay=None, agent=""), here) == (None, "")


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"{}", "does not respond as an agent of version"), (b"{", "does not answer")],
)
def test_what_is_no_agent_of_this_version_is_refused(content: bytes, why: str) -> None:
    with answering(content) as place:
        with pytest.raises(NoAnswer, match=why):
            RunningAgent(f"http://{place}").status()
        here = Settings(HttpConfig(listen=place))
        agent, note = asked(Namespace(simulate=None, replay=None, agent=""), here)
        assert agent is None
        assert why in note
