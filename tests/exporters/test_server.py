"""Connections: bounded in number, in size and in time, whatever the other end does."""

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.http_exceptions import BadStatusLine

from exporters.access_control import client_of
from exporters.server import REPEAT_AFTER, Connections, RequestErrorFilter, serve
from exporters.settings import parse_listen
from tests.support.patience import PATIENCE
from tests.support.served import Served, served

PASSIVE = socket.AI_PASSIVE
GET = b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n"


def quick() -> Connections:
    return Connections(first=0.2, next=0.3)


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not met():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_client_that_never_ends_its_headers_is_cut_off() -> None:
    async with served(connections=quick()) as at:
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
        writer.write(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        cut = asyncio.create_task(reader.read())
        while not cut.done():  # it goes on sending, ever so slowly
            writer.write(b"a")
            await asyncio.sleep(0.05)
        assert isinstance(cut.exception(), ConnectionError) or cut.result() == b""
        writer.close()
        assert await at.status() == 200


@pytest.mark.parametrize("sent", [b"", b"G", GET, GET + b"GET /"])
async def test_who_says_nothing_more_is_cut_off(sent: bytes) -> None:
    async with served(connections=quick()) as at:
        said = await at.raw(sent)
        assert said.startswith(b"HTTP/1.1 200") == sent.startswith(GET)
        await until(lambda: at.server.connections.count() == 0)


async def test_who_does_not_take_the_answer_is_cut_off() -> None:
    async with served(connections=quick()) as at:
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        deaf.setblocking(False)
        await asyncio.get_running_loop().sock_connect(deaf, ("127.0.0.1", at.port))
        request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
        await asyncio.wait_for(
            asyncio.get_running_loop().sock_sendall(deaf, request * 200), PATIENCE
        )
        await until(lambda: at.server.connections.count() == 1)
        await until(lambda: at.server.connections.count() == 0)
        assert await at.status() == 200
        deaf.close()


async def test_a_request_that_is_worked_on_has_no_deadline() -> None:
    connections = Connections(first=0.05, next=0.05)
    async with served(connections=connections) as at:
        at.bench.pause.clear()
        asked = asyncio.create_task(at.ask("/metrics"))
        await asyncio.to_thread(at.bench.building.wait, 10)
        await asyncio.sleep(0.3)
        at.bench.pause.set()
        assert (await asked)[0] == 200


@asynccontextmanager
async def visitors(at: Served) -> AsyncIterator[Callable[[str], Awaitable[asyncio.StreamReader]]]:
    """A function that connects from an address, is answered, and stays."""
    writers = []

    async def request_until_closed(address: str) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", at.port, local_addr=(address, 0)
        )
        writers.append(writer)
        writer.write(GET)
        assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
        return reader

    yield request_until_closed
    for writer in writers:
        writer.close()


def is_open(reader: asyncio.StreamReader) -> bool:
    return not reader.at_eof() and reader.exception() is None


async def test_who_is_worked_for_keeps_the_place_and_places_come_free() -> None:
    async with served(connections=Connections(most=4)) as at:
        at.bench.pause.clear()
        working = [asyncio.create_task(at.ask()) for _ in range(4)]
        await until(lambda: at.server.connections.count() == 4)
        await asyncio.to_thread(at.bench.building.wait, 10)
        for _ in range(10):
            assert await at.raw(b"") == b""
        at.bench.pause.set()
        assert [(await task)[0] for task in working] == [200] * 4
        await until(lambda: at.server.connections.count() == 0)
        assert await at.status() == 200


async def test_when_full_the_longest_idle_goes() -> None:
    async with (
        served(connections=Connections(most=4)) as at,
        visitors(at) as request_until_closed,
    ):
        at.bench.pause.clear()
        working = asyncio.create_task(at.ask())
        await asyncio.to_thread(at.bench.building.wait, 10)
        readers = [await request_until_closed("127.0.0.1") for _ in range(3)]
        newer = [await request_until_closed("127.0.0.1") for _ in range(2)]
        await until(lambda: [is_open(r) for r in readers] == [False, False, True])
        assert all(is_open(reader) for reader in newer)
        at.bench.pause.set()
        assert (await working)[0] == 200, "it was never idle"


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("::1", "::"),
    ],
)
def test_a_client_is_an_address_or_the_network_of_a_host(address: str, client: str) -> None:
    assert client_of(address) == client


FIRST = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
HUGE = {
    "long": FIRST + b"X-Long: " + b"a" * 20_000,
    "many": FIRST + b"".join(b"X-%d: a\r\n" % n for n in range(5000)) + b"X-Last: a",
    "cookies": FIRST + b"Cookie: " + b"a=b; " * 10_000,
    "target": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost",
}


@pytest.mark.parametrize("head", HUGE.values(), ids=HUGE)
async def test_huge_requests_are_refused(head: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with served() as at:
        said = await at.raw(head + b"\r\n\r\n")
        assert said[8:12] in (b" 400", b" 414", b" 431", b"")
        assert b"Traceback" not in said
        assert await at.status() == 200
    assert caplog.records == [], "what others do wrong is no event"


async def test_a_body_without_end_is_not_listened_to() -> None:
    async with served() as at:
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
        writer.write(
            b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999999\r\n\r\n"
        )
        said = asyncio.create_task(reader.read())
        sent = 0
        try:
            while not said.done() and sent < 1 << 28:
                writer.write(b"a" * 65536)
                await writer.drain()
                sent += 65536
        except ConnectionError:
            pass
        await asyncio.wait({said}, timeout=PATIENCE)
        assert isinstance(said.exception(), ConnectionError | None)
        writer.close()
        assert await at.status() == 200


async def test_a_client_that_resets_is_no_event(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as at:
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", at.port)
            linger = struct.pack("ii", 1, 0)
            channel = writer.get_extra_info("socket")
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.write(GET)
            writer.close()
        await until(lambda: at.server.connections.count() == 0)
        assert await at.status() == 200
    assert [r for r in caplog.records if r.levelno > 20] == []


async def test_cleanup_ends_everything_at_once() -> None:
    async with served() as at:
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
        await until(lambda: at.server.connections.count() == 1)
    assert await reader.read() == b""
    writer.close()
    assert len(asyncio.all_tasks()) <= 2


def record(error: Exception) -> logging.LogRecord:
    shown = "Error handling request"
    return logging.LogRecord("x", logging.ERROR, "", 0, shown, (), (type(error), error, None))


def test_bad_requests_are_not_logged_and_a_bug_once_an_hour() -> None:
    now = [0.0]
    request_errors = RequestErrorFilter(lambda: now[0])
    assert not request_errors.filter(record(BadStatusLine("x")))
    assert not request_errors.filter(record(ConnectionResetError()))
    assert request_errors.filter(record(ZeroDivisionError()))
    assert not request_errors.filter(record(ZeroDivisionError()))
    assert request_errors.filter(record(KeyError())), "another bug"
    now[0] = REPEAT_AFTER + 1
    assert request_errors.filter(record(ZeroDivisionError()))


@pytest.mark.parametrize("listen", [":0", "[::]:0"])
async def test_every_address_is_one_of_both_families(listen: str) -> None:
    server = await serve(web.Application(), *parse_listen(listen))
    try:
        families = {family for family, *_ in socket.getaddrinfo(None, 80, flags=PASSIVE)}
        assert len(server.addresses) == len(families)
        for host in ("127.0.0.1", "::1")[: len(families)]:
            _, writer = await asyncio.open_connection(host, server.port)
            writer.close()
        assert not server.is_local
    finally:
        await server.cleanup()


async def test_a_client_that_takes_no_answer_holds_up_no_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served() as at:
        at.server.runner._shutdown_timeout = 10 * PATIENCE  # aiohttp's own
        channel = socket.socket()
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        channel.setblocking(False)
        await asyncio.get_running_loop().sock_connect(channel, ("127.0.0.1", at.port))
        ask = b"GET /api/v1/snapshot HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200
        await asyncio.get_running_loop().sock_sendall(channel, ask)
        await asyncio.sleep(0.5)
        await asyncio.wait_for(at.server.cleanup(), PATIENCE)
        channel.close()


async def test_a_flood_of_one_client_costs_no_other_its_connection() -> None:
    connections = Connections(most=8, of_one=4)
    pairs = [socket.socketpair() for _ in range(60)]
    others = [one for one, _ in pairs[:6]]
    for number, channel in enumerate(others):
        assert connections.admit(channel, f"10.0.0.{number}")
    for channel, _ in pairs[6:]:
        connections.admit(channel, "10.0.1.1")
    await asyncio.sleep(0)
    assert all(not other.recv(1, socket.MSG_DONTWAIT) for _, other in pairs[6:-4])
    for _, other in pairs[:6]:
        with pytest.raises(BlockingIOError):
            other.recv(1, socket.MSG_DONTWAIT)
    for pair in pairs:
        for channel in pair:
            channel.close()
