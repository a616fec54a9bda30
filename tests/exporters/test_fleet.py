"""The page of a simulated fleet: at the address that `up --fleet` prints."""

import asyncio

import aiohttp

from exporters.fleet import FleetServer


def test_the_address_of_the_fleet_lists_its_nodes() -> None:
    async def asked() -> tuple[str, str]:
        server = FleetServer(
            lambda: [
                {
                    "targets": [f"127.0.0.{n}:{server.port}"],
                    "labels": {"node": f"n{n}", "rack": "a"},
                }
                for n in (2, 3)
            ],
            str,
        )
        await server.start("127.0.0.1", 0)
        await server.turn_on("127.0.0.2", list)
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{server.port}/") as answer,
            ):
                assert answer.status == 200
                assert answer.content_type == "text/html"
                return await answer.text(), f"127.0.0.2:{server.port}"
        finally:
            await server.end()

    page, on = asyncio.run(asked())
    assert f'<tr><td>n2<td>a<td><a href="http://{on}/metrics">{on}</a>' in page
    assert "<tr><td>n3<td>a<td>does not answer" in page
    assert "2 nodes" in page
