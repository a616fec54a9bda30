"""TLS, passwords and headers over the wire."""

import ssl
from pathlib import Path

from aiohttp import ClientError

from tests.support.run_async import run_async
from tests.support.served import Served, hashed, served
from tests.support.web_files import TLS, trusting, web_file

PATHS = ("/", "/metrics", "/-/healthy", "/-/ready", "/metrics/dcgm", "/api/v1/snapshot", "/nowhere")


async def is_refused(at: Served, trust: ssl.SSLContext) -> bool:
    try:
        await at.status(trust=trust)
    except (ClientError, OSError):
        return True
    return False


def test_tls_is_served_and_plain_http_is_not(folder: Path) -> None:
    async def coroutine() -> None:
        async with served(web_file(folder, TLS)) as at:
            assert await at.status(trust=trusting(folder)) == 200
            assert not (
                await at.raw(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            ).startswith(b"HTTP")
            assert await at.status(trust=trusting(folder)) == 200

    run_async(coroutine)


def test_with_an_expired_certificate_it_serves_who_does_not_mind(folder: Path) -> None:
    async def coroutine() -> None:
        careless = trusting(folder)
        careless.check_hostname, careless.verify_mode = False, ssl.CERT_NONE
        async with served(web_file(folder, TLS.replace("server.", "expired."))) as at:
            assert await is_refused(at, trusting(folder))
            assert await at.status(trust=careless) == 200

    run_async(coroutine)


def test_every_path_asks_for_the_password(folder: Path) -> None:
    text = f"basic_auth_users:\n  alice: {hashed('pässword')}\n  bob: {hashed('')}\n"

    async def coroutine() -> None:
        async with served(web_file(folder, text)) as at:
            for path in PATHS:
                status, headers, _ = await at.ask(path)
                assert status == 401
                assert headers["WWW-Authenticate"].startswith("Basic realm=")
                assert headers["Cache-Control"] == "no-store"
            assert await at.status(auth=("alice", "pässword")) == 200
            assert await at.status("/-/healthy", auth=("bob", "")) == 200
            for auth in (("alice", "x"), ("alice", ""), ("carol", "pässword"), ("", "")):
                assert await at.status(auth=auth) == 401, auth

    run_async(coroutine)
