"""HTTP requests to the programs of the stack, on loopback."""

import asyncio
from contextlib import suppress

from agent.stack.ports import LOOPBACK

TIMEOUT = 5.0
"""Seconds for which an answer is waited for."""


async def answer(port: int, path: str) -> tuple[int, bytes]:
    """Status and body; status 0 where no one answers. HTTP/1.0: no chunks, one answer."""
    request = f"GET {path} HTTP/1.0\r\nHost: {LOOPBACK}:{port}\r\n\r\n"
    with suppress(OSError, LookupError, ValueError):  # a timeout is an OSError
        async with asyncio.timeout(TIMEOUT):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            try:
                writer.write(request.encode())
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
                return int(head.split(b" ", 2)[1]), body
            finally:
                writer.close()
    return 0, b""
