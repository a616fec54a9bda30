"""Whatever is sent to the server's port: no crash, no hang, and the next one is answered."""

import asyncio
import logging
import re
import socket
import threading
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.patience import PATIENCE
from tests.support.served import served

SILENCE = 0.01
"""After which no more answer is waited for."""


class Target:
    """A server on a thread of its own."""

    def __init__(self) -> None:
        self.port = 0
        self._listens = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._listens.wait(PATIENCE)

    async def _serve(self) -> None:
        async with served() as at:
            self.port, self._loop, self._end = at.port, asyncio.get_running_loop(), asyncio.Event()
            self._listens.set()
            await self._end.wait()

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def send(self, *parts: bytes) -> bytes:
        """Send, and take what comes; after some silence close our half, and the server closes."""
        said = b""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as channel:
            with suppress(ConnectionError):  # it had heard enough
                for part in parts:
                    channel.sendall(part)
            channel.settimeout(SILENCE)
            with suppress(TimeoutError, ConnectionError):
                while chunk := channel.recv(1 << 16):
                    said += chunk
            channel.settimeout(PATIENCE)
            with suppress(OSError):  # it is closed already
                channel.shutdown(socket.SHUT_WR)
            with suppress(ConnectionError):
                while chunk := channel.recv(1 << 16):
                    said += chunk
        return said

    def answers(self) -> bool:
        url = f"http://127.0.0.1:{self.port}/-/healthy"
        with urllib.request.urlopen(url, timeout=PATIENCE) as page:
            return bool(page.read() == b"ok\n")


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    target = Target()
    yield target
    target.end()


HEAD = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
WRITTEN = tomllib.loads(Path(__file__).with_name("http_fuzz.toml").read_text(encoding="utf-8"))
ODD = {
    **{case: text.encode("latin-1") for case, text in WRITTEN["odd"].items()},
    "only ends": b"\r\n" * 2000,
    "zeros": b"\0" * 70_000,
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 508,
    "huge length": HEAD + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
    "endless chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 3000,
    "long accept": HEAD + b"Accept: " + b"text/plain;q=0.5," * 400 + b"\r\n\r\n",
    "long header": HEAD + b"X-Long: " + b"a" * 20_000 + b"\r\n\r\n",
    "many headers": HEAD + b"".join(b"X-%d: a\r\n" % n for n in range(5000)) + b"\r\n",
    "cookies": HEAD + b"Cookie: " + b"a=b; " * 10_000 + b"\r\n\r\n",
    "long target": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "odd password": HEAD + b"Authorization: Basic " + b"=" * 4000 + b"\r\n\r\n",
    "many at once": (HEAD + b"\r\n") * 100,
}


@pytest.mark.parametrize("case", ODD)
def test_odd_requests_end_and_the_next_is_answered(
    case: str, target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    said = target.send(ODD[case])
    assert said == b"" or said.startswith(b"HTTP/1.")
    assert b" 500 " not in said.split(b"\r\n")[0]
    assert not re.search(b"Traceback|Python|aiohttp", said)
    assert target.answers()
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


LINES = st.sampled_from(
    [line for text in ODD.values() if len(text) < 2000 for line in text.splitlines(keepends=True)]
)
MESSAGES = st.lists(LINES | st.binary(max_size=30), max_size=8).map(b"".join)


@given(parts=st.lists(MESSAGES, min_size=1, max_size=4))
def test_any_mixture_ends_and_the_next_is_answered(parts: list[bytes], target: Target) -> None:
    said = target.send(*parts)
    assert said == b"" or said.startswith(b"HTTP/1.")
    assert b"HTTP/1.1 500" not in said
    assert target.answers()
