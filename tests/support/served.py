"""The agent's HTTP server over a web configuration that tests write, on a real socket."""

import asyncio
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import bcrypt
from aiohttp import ClientSession, TCPConnector

from exporters.access_control import AccessControl
from exporters.http import AgentPages
from exporters.server import Server, serve
from exporters.web_file import WebFile
from tests.support.exposition import ExpositionBench
from tests.support.patience import PATIENCE


def hashed(password: str, cost: int = 4) -> str:
    """A bcrypt hash as cheap as there is."""
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(cost)).decode()


@dataclass
class Served:
    """A server that listens, and how to ask it."""

    server: Server
    web: WebFile
    bench: ExpositionBench

    @property
    def port(self) -> int:
        return int(self.server.addresses[0][1])

    async def status(
        self,
        path: str = "/metrics",
        *,
        trust: ssl.SSLContext | None = None,
        auth: tuple[str, str] | None = None,
    ) -> int:
        """The status of one request over a connection of its own."""
        return (await self.ask(path, trust=trust, auth=auth))[0]

    async def ask(
        self,
        path: str = "/metrics",
        *,
        trust: ssl.SSLContext | None = None,
        auth: tuple[str, str] | None = None,
    ) -> tuple[int, dict[str, str], str]:
        """Status, headers and text."""
        scheme = "https" if trust else "http"
        url = f"{scheme}://127.0.0.1:{self.port}{path}"
        connector = TCPConnector(force_close=True, ssl=trust or False)
        pair = b64encode(":".join(auth).encode()).decode() if auth else ""
        headers = {"Authorization": f"Basic {pair}"} if auth else {}
        async with (
            ClientSession(connector=connector, headers=headers) as client,
            client.get(url) as response,
        ):
            return response.status, dict(response.headers), await response.text()

    async def raw(self, sent: bytes) -> bytes:
        """Return the bytes that come back for these until the server closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(sent)
            return await asyncio.wait_for(reader.read(), PATIENCE)
        except ConnectionError:
            return b""
        finally:
            writer.close()


@asynccontextmanager
async def served(web_file: str = "", *, names: tuple[str, ...] = ()) -> AsyncIterator[Served]:
    """A server on a free port of loopback; `web_file` is the path of a web configuration."""
    bench = ExpositionBench()
    web = WebFile(web_file)
    access = AccessControl(lambda: web.now.users, lambda: names)
    app = AgentPages(bench.exposition, bench.latest).application([access.admit])
    server = await serve(app, "127.0.0.1:0", context=web.context)
    try:
        yield Served(server, web, bench)
    finally:
        await server.cleanup()
