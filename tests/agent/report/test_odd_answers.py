"""Answers of servers that are none, and odd time zones."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from agent.cli.table import local
from agent.report import questions
from agent.report.questions import NoAnswer, fetched

DEEP = b"[" * 200_000
PIECE = b"[1,2,3," * 10_000


@contextmanager
def answering(status: int, content: bytes, times: int = 1) -> Iterator[str]:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            try:
                for _ in range(times):
                    self.wfile.write(content)
            except OSError:  # the client has had enough
                return

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "content", "times"),
    [
        (200, DEEP, 1),
        (200, PIECE, 10**9),
        (200, b"\xff\xfe\xfd", 1),
        (200, b"", 1),
        (503, DEEP, 99),
    ],
    ids=["deep", "endless", "no text", "empty", "an error without an end"],
)
def test_whatever_a_server_answers_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, status: int, content: bytes, times: int
) -> None:
    monkeypatch.setattr(questions, "MOST_BYTES", 4 << 20)
    with answering(status, content, times) as url, pytest.raises(NoAnswer):
        fetched(url)


def test_a_program_without_the_path_is_another() -> None:
    """Of `--agent` at an exporter of something else `once` said no more than 404."""
    with answering(404, b"404 page not found") as url, pytest.raises(NoAnswer) as caught:
        fetched(f"{url}api/v1/stream")
    assert str(caught.value) == f"{url[:-1]} is another program: it has no /api/v1/stream"


@pytest.mark.parametrize("zone", ["AAA-200", "UTC+25", "ZZZ-24:59:59", ":/etc/passwd", "?", ""])
def test_an_odd_time_zone_is_utc(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    import time

    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        assert local(0.0).timestamp() == 0.0
    time.tzset()
