"""Targets for Prometheus' `http_sd`: `/targets`, read again for each who asks.

Where they cannot be read the answer is 503 with the reason: Prometheus then keeps those it has.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import hdrs, web

from agent.errors import BadInput
from exporters.access_control import AccessControl
from exporters.http import add_headers, as_json


def target_application(
    read: Callable[[], list[dict[str, Any]]], access: AccessControl
) -> web.Application:
    """`read` runs on a thread, and raises BadInput."""
    reading = asyncio.Lock()  # who asks meanwhile waits: a command hangs once, not each time

    async def answer(_: web.Request) -> web.Response:
        async with reading:
            try:
                found = await asyncio.to_thread(read)
            except BadInput as error:
                return web.Response(text=f"{error}\n", status=503)
        body = as_json(found)
        return web.Response(body=body, headers={hdrs.CONTENT_TYPE: "application/json"})

    app = web.Application(middlewares=[access.admit])
    app.on_response_prepare.append(add_headers)
    app.router.add_get("/targets", answer)
    return app
