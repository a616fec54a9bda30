"""Connections: bounded in number, in size and in time, whatever the other end does."""

import asyncio
import gc
import socket
import struct
from asyncio.sslproto import SSLProtocol
from contextlib import suppress
from pathlib import Path

import pytest
from aiohttp import web

from exporters.server import MOST_CONNECTIONS, TLS_BUFFER, serve
from tests.support.patience import PATIENCE
from tests.support.served import served
from tests.support.web_files import TLS, trusting, web_file

GET = b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n"


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
        assert await at.status() == 200
    assert [r for r in caplog.records if r.levelno > 20] == []


async def test_cleanup_ends_everything_at_once() -> None:
    async with served() as at:
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
        writer.write(GET)
        await reader.readuntil(b"ok\n")
    assert await reader.read() == b""
    writer.close()
    assert len(asyncio.all_tasks()) <= 2


@pytest.mark.parametrize("host", ["", "[::]"])
async def test_every_address_is_one_of_both_families(host: str) -> None:
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    server = await serve(web.Application(), f"{host}:{port}")
    try:
        families = {family for family, *_ in socket.getaddrinfo(None, 80, flags=socket.AI_PASSIVE)}
        assert len(server.addresses) == len(families)
        for address in ("127.0.0.1", "::1")[: len(families)]:
            _, writer = await asyncio.open_connection(address, port)
            writer.close()
    finally:
        await server.cleanup()


async def test_a_client_that_takes_no_answer_holds_up_no_end() -> None:
    async with served() as at:
        channel = socket.socket()
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        channel.setblocking(False)
        await asyncio.get_running_loop().sock_connect(channel, ("127.0.0.1", at.port))
        ask = b"GET /api/v1/snapshot HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200
        await asyncio.get_running_loop().sock_sendall(channel, ask)
        await asyncio.sleep(0.5)
        await asyncio.wait_for(at.server.cleanup(), PATIENCE)
        channel.close()


async def visit(port: int, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect from an address, be answered, and stay."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    writer.write(GET)
    assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
    return reader, writer


async def test_a_flood_of_many_clients_leaves_files_to_the_agent() -> None:
    """Each user of the machine has all addresses of loopback."""
    addresses = [f"127.0.0.{number}" for number in range(3, 10)]
    async with served() as at:
        other, _ = pair = await visit(at.port, "127.0.0.2")
        pairs = [pair, *[await visit(at.port, one) for one in addresses for _ in range(50)]]
        assert at.server.server
        assert len(at.server.server.connections) == MOST_CONNECTIONS
        assert not other.at_eof()
        for _, writer in pairs:
            writer.close()


async def test_a_flood_of_one_client_costs_no_other_its_connection() -> None:
    async with served() as at:
        pairs = [await visit(at.port, "127.0.0.2")]
        pairs += [await visit(at.port, "127.0.0.1") for _ in range(MOST_CONNECTIONS + 1)]
        other, *flood = (reader for reader, _ in pairs)
        for oldest in flood[:2]:
            with suppress(ConnectionError):
                assert await asyncio.wait_for(oldest.read(), PATIENCE) == b""
        open_still = [one for one in (other, *flood) if not one.at_eof() and not one.exception()]
        assert open_still == [other, *flood[2:]]
        for _, writer in pairs:
            writer.close()


async def test_handshakes_that_never_begin_leave_files_to_the_agent(folder: Path) -> None:
    async with served(web_file(folder, TLS)) as at:
        silent = [
            await asyncio.open_connection("127.0.0.1", at.port) for _ in range(MOST_CONNECTIONS + 2)
        ]
        for reader, _ in silent[:2]:
            with suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        assert not silent[2][0].at_eof()
        assert await at.status(trust=trusting(folder)) == 200
        for _, writer in silent:
            writer.close()


async def test_handshakes_that_end_in_the_middle_leave_little_memory(folder: Path) -> None:
    """4,000 of them took 680 MB: each left 0.2 in a cycle."""
    gc.disable()
    try:
        async with served(web_file(folder, TLS)) as at:
            for _ in range(8):
                _, writer = await asyncio.open_connection("127.0.0.1", at.port)
                writer.write(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a ClientHello
                await asyncio.sleep(0)
                writer.close()
            left = [one for one in gc.get_objects() if isinstance(one, SSLProtocol)]
            assert {len(one._ssl_buffer) for one in left} == {TLS_BUFFER}  # type: ignore[attr-defined]
    finally:
        gc.enable()
