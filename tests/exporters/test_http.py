"""The HTTP server: every route, coding and refusal."""

import asyncio
import gzip
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer, make_mocked_request

from exporters.documents import document
from exporters.http import AgentPages, wants_gzip
from exporters.live import page
from tests.support import exposition
from tests.support.exposition import GOLDEN_OPENMETRICS, GOLDEN_TEXT, OM_1, RICH, ExpositionBench

Client = TestClient[web.Request, web.Application]
Ask = Callable[[Client], Awaitable[None]]


def asking(bench: ExpositionBench, **options: Any) -> Client:
    """Serve the bench, and return a client of it."""
    app = AgentPages(bench.exposition, bench.latest, **options).application()
    return TestClient(TestServer(app), auto_decompress=False)


async def test_metrics_over_http() -> None:
    async with asking(ExpositionBench()) as client:
        plain = await client.get("/metrics", headers={"Accept-Encoding": "identity"})
        assert await plain.read() == GOLDEN_TEXT.encode()
        assert plain.headers["Content-Type"] == exposition.TEXT_0
        assert plain.headers["Cache-Control"] == "no-store"
        assert plain.headers["Vary"] == "Accept, Accept-Encoding"
        assert "Content-Encoding" not in plain.headers
        asked = {"Accept": exposition.PROMETHEUS_2, "Accept-Encoding": "gzip"}
        zipped = await client.get("/metrics", headers=asked)
        assert zipped.headers["Content-Encoding"] == "gzip"
        assert zipped.headers["Content-Type"] == OM_1
        assert gzip.decompress(await zipped.read()) == GOLDEN_OPENMETRICS.encode()


async def test_fifty_scrapes_at_once_build_once() -> None:
    bench = ExpositionBench()

    async with asking(bench) as client:

        async def scrape() -> bytes:
            headers = {"Accept-Encoding": "identity"}
            async with client.get("/metrics", headers=headers) as response:
                return await response.read()

        assert set(await asyncio.gather(*(scrape() for _ in range(50)))) == {GOLDEN_TEXT.encode()}
        assert bench.builds == 1


async def test_a_slow_render_does_not_hold_the_loop() -> None:
    bench = ExpositionBench()
    bench.pause.clear()

    async with asking(bench) as client:
        scrape = asyncio.create_task(client.get("/metrics"))
        await asyncio.to_thread(bench.building.wait, 10)
        assert (await client.get("/-/healthy")).status == 200
        assert not scrape.done()
        bench.pause.set()
        assert (await scrape).status == 200


@pytest.mark.parametrize(
    "path", ["/icon.svg", "/metrics", "/-/healthy", "/-/ready", "/api/v1/snapshot"]
)
async def test_head_says_what_get_would(path: str) -> None:
    async with asking(ExpositionBench()) as client:
        get, head = await client.get(path), await client.head(path)
        assert (head.status, await head.read()) == (200, b"")
        for name in ("Content-Type", "Content-Length", "Cache-Control"):
            assert head.headers[name] == get.headers[name]


async def test_ready_says_what_is_awaited() -> None:
    awaited = ["NVML has not been read yet."]

    async with asking(ExpositionBench(), awaited=lambda: awaited[0]) as client:
        waiting = await client.get("/-/ready")
        assert (waiting.status, await waiting.text()) == (503, "NVML has not been read yet.\n")
        healthy = await client.get("/-/healthy")
        assert (healthy.status, await healthy.text()) == (200, "ok\n")
        awaited[0] = ""
        done = await client.get("/-/ready")
        assert (done.status, await done.text()) == (200, "ready\n")


async def test_unknown_paths_and_methods_are_refused_in_plain_text() -> None:
    async with asking(ExpositionBench()) as client:
        unknown, method = await client.get("/nowhere"), await client.post("/metrics", data=b"x")
        for path in ("api/v1/hours?_=123", "api/v1/snapshot?pretty", "metrics?name[]=x"):
            assert (await client.get(f"/{path}")).status == 200  # of a cache buster, for example
        assert (await client.get("/api/v1/nothing?x=1")).status == 404
        api = await client.get("/api/v1")
        assert (unknown.status, method.status, api.status) == (404, 405, 404)
        assert (
            "are /api/v1/hours, /api/v1/jobs, /api/v1/snapshot\n" in await api.text()
        )  # no stream
        for response in (unknown, method, api):
            assert response.content_type == "text/plain"
            assert response.headers["Cache-Control"] == "no-store"
            assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert method.headers["Allow"] == "GET,HEAD"


async def test_the_page_is_locked_down() -> None:
    async with asking(ExpositionBench()) as client:
        for file in page.STATIC.iterdir():
            response = await client.get(f"/{file.name}")
            assert response.status == 200
            assert response.headers["Content-Security-Policy"] == page.POLICY
            if response.content_type.startswith("text/"):
                assert response.charset == "utf-8"
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            assert response.headers["X-Frame-Options"] == "DENY"
            assert response.headers["Cache-Control"] == "no-cache"
        assert "'unsafe" not in page.POLICY
        assert page.POLICY.startswith("default-src 'none'; ")


async def test_the_page_comes_with_all_that_it_names() -> None:
    async with asking(ExpositionBench(), status=lambda: b"{}") as client:
        index = await (await client.get("/index.html")).text()
        named = re.findall(r'(?:href|src)="([^"#:]+)"', index)
        assert {name.rpartition(".")[2] for name in named} >= {"css", "js"}
        for name in named:
            response = await client.get(f"/{name.removeprefix('/')}")
            assert response.status == 200, name
        assert not re.search(r"https?://", index.replace("http://www.w3.org/", ""))


async def test_a_file_that_the_browser_has_is_not_sent_again() -> None:
    async with asking(ExpositionBench()) as client:
        first = await client.get("/index.html")
        tag = first.headers["ETag"]
        again = await client.get("/index.html", headers={"If-None-Match": f'"other", {tag}'})
        assert (again.status, await again.read()) == (304, b"")
        assert again.headers["ETag"] == tag
        changed = await client.get("/index.html", headers={"If-None-Match": '"other"'})
        assert (changed.status, await changed.read()) == (200, await first.read())


@pytest.mark.parametrize("coding", ["identity", "gzip"])
async def test_the_document_over_http(coding: str) -> None:
    async with asking(ExpositionBench(RICH)) as client:
        response = await client.get("/api/v1/snapshot", headers={"Accept-Encoding": coding})
        body = await response.read()
        assert response.headers.get("Content-Encoding", "identity") == coding
        assert response.headers["Content-Type"] == "application/json; charset=utf-8"
        plain = gzip.decompress(body) if coding == "gzip" else body
        assert json.loads(plain) == document(RICH, 0.0)


@pytest.mark.parametrize(
    ("header", "gzip"),
    [("gzip", True), ("gzip;q=0", False), ("gzip; q=0.000, deflate", False), ("*;q=0.1", False),
     ("*, gzip;q=0", False), ("identity", False), ("", False), ("deflate, GZIP;q=0.5", True)],
)  # fmt: skip
def test_a_client_that_refuses_gzip_gets_none(header: str, gzip: bool) -> None:
    request = make_mocked_request("GET", "/metrics", {"Accept-Encoding": header})
    assert wants_gzip(request) is gzip
