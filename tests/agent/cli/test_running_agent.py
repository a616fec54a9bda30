"""`once` and `watch` ask the agent that runs, and say so where none does."""

from argparse import Namespace

import msgspec
import pytest

from agent.cli.once import StatusView, page
from agent.cli.running_agent import RunningAgent, asked
from agent.config.settings import Settings
from agent.report.questions import NoAnswer
from exporters.settings import HttpConfig
from tests.support.answering import answering
from tests.support.statuses import shown as machine_of

EVENTS = "text/event-stream; charset=utf-8"


def stream_of(name: str, seconds: int) -> bytes:
    board = machine_of(name).run(seconds).board
    history = msgspec.json.encode(board.history.document())
    return event("history", history) + event("status", board.json())


def event(name: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)


def test_the_running_agent_is_asked() -> None:
    with answering(stream_of("titan-x-pascal:starved-disk", 70), kind=EVENTS) as place:
        agent, note = asked(
            Namespace(simulate=None, replay=None, agent=""),
            Settings(HttpConfig(listen=place)),
        )
        assert agent is not None
        assert note == ""
        lines = list(page(StatusView(agent.first), 80))
        assert any(line.startswith("The GPU is starved by disk") for line in lines)
        assert max(map(len, lines)) <= 80
        with pytest.raises(NoAnswer, match="no longer responds"):
            list(agent.statuses())


def test_an_agent_that_has_just_started_is_awaited() -> None:
    machine = machine_of("k40:idle")
    early, later = (event("status", machine.run(ticks).board.json()) for ticks in (1, 9))
    with answering(early + later, kind=EVENTS) as place:
        agent, _ = asked(Namespace(simulate=None, replay=None, agent=f"http://{place}"), Settings())
    assert agent is not None
    assert agent.first.tick == machine.status.tick


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
    ("events", "why"),
    [
        ([event("status", b"{}")], "does not respond as an agent of version"),
        ([event("status", b"{")], "does not respond as an agent of version"),
    ],
)
def test_what_is_no_agent_of_this_version_is_refused(events: list[bytes], why: str) -> None:
    with answering(b"".join(events), kind=EVENTS) as place:
        with pytest.raises(NoAnswer, match=why):
            next(RunningAgent(f"http://{place}").statuses())
        here = Settings(HttpConfig(listen=place))
        agent, note = asked(Namespace(simulate=None, replay=None, agent=""), here)
        assert agent is None
        assert why in note


def test_a_server_that_sends_no_events_is_another_program() -> None:
    """Its answer may never end."""
    refused = pytest.raises(NoAnswer, match="is another program: it sends no stream of events")
    with answering(b"{", kind="application/json") as place, refused:
        next(RunningAgent(f"http://{place}").statuses())
