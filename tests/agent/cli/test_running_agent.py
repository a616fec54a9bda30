"""`once` and `watch` ask the agent that runs, and say so where none does."""

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from time import monotonic, sleep

import pytest

from agent.cli.once import page
from agent.cli.running_agent import SPAN, Recent, RunningAgent, asked
from agent.config.settings import Settings
from agent.report.questions import NoAnswer
from exporters.live.feed import event
from exporters.live.history import History
from exporters.settings import HttpConfig
from tests.support.live_machines import watched


@contextmanager
def serving(
    *events: bytes, status: int = 200, hours: bytes = b"{}", drips: int = 0
) -> Iterator[str]:
    """The address of what answers as an agent does, with this stream; its hours come with this
    status, after so many seconds in which a byte drips now and then."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            streamed = self.path == "/api/v1/stream"
            self.send_response(200 if streamed else status)
            self.end_headers()
            with suppress(OSError):  # who asked is gone
                for _ in range(0 if streamed else 10 * drips):
                    self.wfile.write(b" ")
                    sleep(0.1)
                self.wfile.write(b"".join(events) if streamed else hours)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def stream_of(name: str, seconds: int) -> list[bytes]:
    machine = watched(name)
    history, state = History(machine.view), machine.page_state
    for _ in range(seconds):
        history.take(machine.tick())
    machine.frame()
    parts = {"history": history.document(), "machine": state.machine(), "tick": state.tick()}
    return [event(kind, content) for kind, content in parts.items()]


def test_the_running_agent_is_asked_with_its_past() -> None:
    with serving(*stream_of("dgx-station-v100:starved-disk", 70)) as url:
        agent, note = asked(
            Namespace(simulate=None, replay=None, agent=""),
            Settings(HttpConfig(listen=url.removeprefix("http://"))),
        )
        assert agent is not None
        assert note == ""
        lines = list(page(agent.first, 80, agent.recent))
        assert lines[0].startswith("4 GPUs starved by disk")
        (row,) = (line for line in lines if line.startswith("    0"))
        assert row[-2:].strip()
        assert row[-3] == " "
        assert max(map(len, lines)) <= 80
        with pytest.raises(NoAnswer, match="does not answer any more"):
            list(agent.frames())


def test_the_hours_before_are_shown_for_all_and_for_one() -> None:
    now, disk = 500_000 * 3600.0 + 1200, {"busy/none": 20.0, "starved/disk": 80.0}
    hours = [
        {"hour": 499_990, "rows": [{"seconds": disk}], "gpus": {}},
        {
            "hour": 499_999,
            "rows": [{"seconds": {"busy/none": 92.0}}, {"seconds": {"idle/none": 8}}],
        },
        {"hour": 500_000, "rows": [{"seconds": disk}], "gpus": {"GPU-1": {"hung/none": 1.0}}},
    ]
    recent = Recent(hours=[{"gpus": {}, **hour} for hour in hours])
    at = [datetime.fromtimestamp(n * 3600, UTC).astimezone() for n in (499_999, 500_000)]
    assert recent.by_hour(now) == (
        f"all GPUs by the hour: from {at[0]:%H:%M} busy 92 %, idle 8 %; "
        f"from {at[1]:%H:%M} until now starved by disk 80 %, busy 20 %"
    )
    assert "until now hung 100 %" in recent.by_hour(now, "GPU-1")
    assert recent.by_hour(now, "GPU-2") == ""
    recent.hours = recent.hours[2:]
    assert recent.by_hour(now).startswith("all GPUs by the hour (nothing is recorded before ")
    recent.hours[0]["since"] = now - 540.0
    recent.hours[0]["rows"][0]["seconds"] |= {"starved/cpu": 5.0}
    since = f"{datetime.fromtimestamp(now - 540, UTC).astimezone():%H:%M}"
    assert recent.by_hour(now) == (
        f"all GPUs by the hour (nothing is recorded before {since}): from {since} until now "
        "starved by disk 76 %, busy 19 %, starved by the CPU 5 %"
    )


@pytest.mark.parametrize(
    ("status", "hours", "drips", "why"),
    [
        (404, b"no such address", 0, "answers 404: no such address"),
        (500, b"", 0, "answers 500"),
        (200, b"<html>", 0, "does not answer: Expecting value"),
        (200, b"[]", 0, "not known, "),
        (200, b"{}", 60, "no answer in 2 s"),
    ],
)
def test_hours_that_do_not_come_cost_their_line_alone(
    status: int, hours: bytes, drips: int, why: str
) -> None:
    stream = stream_of("k40:training", 2)
    with serving(*stream, stream[-1], status=status, hours=hours, drips=drips) as url:
        asking, _ = asked(Namespace(simulate=None, replay=None, agent=url), Settings(HttpConfig()))
        assert asking is not None
        line = next(x for x in page(asking.first, 400, asking.recent) if "hours before" in x)
        assert why in line
        began, frames = monotonic(), asking.frames()
        for _ in range(2):
            next(frames)
            asking._due = 0.0  # at each frame it is time to look again
        assert monotonic() - began < 1.5


def test_who_does_not_answer_is_named() -> None:
    here = Settings(HttpConfig(listen="127.0.0.1:1", web_config_file="tls.yaml"))
    nothing = Namespace(simulate=None, replay=None, agent="")
    agent, note = asked(nothing, here)
    assert agent is None
    assert "read here, without history and jobs: http://127.0.0.1:1 does not answer" in note
    assert "--agent https://" in note
    with pytest.raises(NoAnswer, match=r"http://127\.0\.0\.1:2 does not answer"):
        asked(Namespace(simulate=None, replay=None, agent="http://127.0.0.1:2"), here)
    assert asked(Namespace(simulate="k40", replay=None, agent=""), here) == (None, "")


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([event("machine", {"machine": {"version": "0.0"}})], "is of version 0.0, not "),
        ([event("tick", {})], "does not answer as an agent does"),
        ([b"event: tick\ndata: {\n\n"], "does not answer as an agent does"),
    ],
)
def test_what_is_no_agent_of_this_version_is_refused(events: list[bytes], why: str) -> None:
    with serving(*events) as url:
        with pytest.raises(NoAnswer, match=why):
            next(RunningAgent(url).frames())
        here = Settings(HttpConfig(listen=url.removeprefix("http://")))
        agent, note = asked(Namespace(simulate=None, replay=None, agent=""), here)
        assert agent is None
        assert why in note


def test_the_past_is_drawn_in_parts_with_gaps() -> None:
    recent = Recent()
    values = [None] * (SPAN // 3) + [0.0] * (SPAN // 3) + [1.0] * (SPAN // 3)
    for value in values:
        gpu = {"uuid": "GPU-0", "meters": [{"name": "activity", "value": value}]}
        recent.take({"gpus": [gpu]})
    assert recent.line("GPU-0", 6) == "  ▁▁██"
    recent.encoding = "ascii"
    assert recent.line("GPU-0", 6) == "  ..##"
    assert recent.line("GPU-1", 3) == "   "
