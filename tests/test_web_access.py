"""TLS and passwords over the wire, and a web configuration that changes while the agent serves."""

import asyncio
import base64
import logging
import shutil
import signal
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientError

from exporters.web_file import WebFile
from tests.certificates import Authority, Pair
from tests.served import Served, hashed, served
from tests.stack.running import Running, eventually

PATHS = ("/", "/metrics", "/-/healthy", "/-/ready", "/api/v1/snapshot", "/nowhere")


def play(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 60))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, pairs of a server and of two clients, and a client of another authority."""
    folder = tmp_path_factory.mktemp("made")
    authority = Authority(folder)
    for name in ("server", "newer"):
        authority.sign(name)
    authority.sign("prometheus", "DNS:prometheus.example")
    authority.sign("visitor", "DNS:visitor.example", "IP:192.0.2.7")
    Authority(folder, "stranger").sign("impostor", "DNS:prometheus.example")
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "web"))


TLS = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"


def web_file(folder: Path, text: str) -> str:
    """Write the web configuration as an editor does: another file under the same name."""
    (folder / "web.new").write_text(text)
    (folder / "web.new").replace(folder / "web.yml")
    return str(folder / "web.yml")


def trusting(folder: Path, pair: str = "") -> ssl.SSLContext:
    """A client that trusts the authority and shows a certificate where one is named."""
    context = ssl.create_default_context(cafile=folder / "authority.crt")
    if pair:
        shown = Pair(folder / f"{pair}.crt", folder / f"{pair}.key")
        context.load_cert_chain(shown.cert, shown.key)
    return context


async def is_refused(at: Served, trust: ssl.SSLContext) -> bool:
    try:
        await at.status(trust=trust)
    except (ClientError, OSError):
        return True
    return False


def test_tls_is_served_and_plain_http_is_not(folder: Path) -> None:
    async def story() -> None:
        async with served(web_file(folder, TLS)) as at:
            assert await at.status(trust=trusting(folder)) == 200
            assert not (await at.raw(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")).startswith(
                b"HTTP"
            )
            assert await at.status(trust=trusting(folder)) == 200

    play(story())


def test_versions_are_as_configured(folder: Path) -> None:
    async def story() -> None:
        async with served(web_file(folder, TLS + "  min_version: TLS13\n")) as at:
            old = trusting(folder)
            old.maximum_version = ssl.TLSVersion.TLSv1_2
            assert await is_refused(at, old)
            assert await at.status(trust=trusting(folder)) == 200

    play(story())


CLIENTS = """  client_ca_file: authority.crt
  client_auth_type: RequireAndVerifyClientCert
"""


def test_a_client_certificate_can_be_required(folder: Path) -> None:
    async def story() -> None:
        async with served(web_file(folder, TLS + CLIENTS)) as at:
            assert await at.status(trust=trusting(folder, "visitor")) == 200
            assert await is_refused(at, trusting(folder))
            assert await is_refused(at, trusting(folder, "impostor"))

    play(story())


def test_a_client_certificate_can_be_optional_but_not_wrong(folder: Path) -> None:
    text = TLS + CLIENTS.replace("RequireAndVerifyClientCert", "VerifyClientCertIfGiven")

    async def story() -> None:
        async with served(web_file(folder, text)) as at:
            assert await at.status(trust=trusting(folder)) == 200
            assert await at.status(trust=trusting(folder, "visitor")) == 200
            assert await is_refused(at, trusting(folder, "impostor"))

    play(story())


@pytest.mark.parametrize("name", ["prometheus.example", "192.0.2.7"])
def test_only_some_names_may_connect(folder: Path, name: str) -> None:
    clients = {"prometheus.example": "prometheus", "192.0.2.7": "visitor"}
    other = {"prometheus": "visitor", "visitor": "prometheus"}[clients[name]]
    text = f"{TLS}{CLIENTS}  client_allowed_sans: [{name}]\n"

    async def story() -> None:
        async with served(web_file(folder, text)) as at:
            assert await at.status(trust=trusting(folder, clients[name])) == 200
            for path in PATHS:
                assert await at.status(path, trust=trusting(folder, other)) == 403

    play(story())


def serial(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=10)


def test_certificates_are_replaced_without_a_restart(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def story() -> None:
        async with served(web_file(folder, TLS)) as at:
            first = await asyncio.to_thread(serial, at.port)
            (folder / "newer.crt").replace(folder / "server.crt")
            for _ in range(3):  # the key is not there yet: the old pair goes on
                assert await asyncio.to_thread(serial, at.port) == first
            (folder / "newer.key").replace(folder / "server.key")
            assert await asyncio.to_thread(serial, at.port) != first
            assert await at.status(trust=trusting(folder)) == 200

    play(story())
    told = [r.getMessage().split()[0] for r in caplog.records if "web_config" in r.getMessage()]
    assert told == ["event=web_config_failed", "event=web_config_loaded"]


def test_a_guard_that_is_dropped_is_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    web = WebFile(web_file(folder, TLS))
    assert web.now.is_guarded
    web_file(folder, "basic_auth_users: [")
    assert web.now.is_guarded
    assert not web.good
    web_file(folder, "")
    assert not web.now.is_guarded
    assert web.good
    assert [r for r in caplog.records if "event=guard_dropped" in r.getMessage()]


def test_a_broken_file_keeps_the_old_and_is_told_once_a_change(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alice = f"basic_auth_users: {{alice: {hashed('a')}}}\n"
    bob = f"basic_auth_users: {{bob: {hashed('b')}}}\n"

    async def story() -> None:
        path = web_file(folder, alice)
        async with served(path) as at:
            assert await at.status(auth=("alice", "a")) == 200
            web_file(folder, "basic_auth_users: [")
            for _ in range(5):
                assert await at.status(auth=("alice", "a")) == 200
                assert await at.status() == 401
            Path(path).unlink()  # noqa: ASYNC240
            assert await at.status(auth=("alice", "a")) == 200
            web_file(folder, bob)
            assert await at.status(auth=("bob", "b")) == 200
            assert await at.status(auth=("alice", "a")) == 401

    play(story())
    errors = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert ["not YAML" in errors[0], "cannot be read" in errors[1]] == [True, True]
    assert len(errors) == 2


def test_tls_can_be_switched_on_while_the_agent_serves(folder: Path) -> None:
    async def story() -> None:
        async with served(web_file(folder, "")) as at:
            assert await at.status() == 200
            web_file(folder, TLS)
            assert await at.status(trust=trusting(folder)) == 200

    play(story())


def test_every_path_asks_for_the_password(folder: Path) -> None:
    text = f"basic_auth_users:\n  alice: {hashed('pässword')}\n  bob: {hashed('')}\n"

    async def story() -> None:
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

    play(story())


def test_headers_are_added_and_a_limit_is_kept(folder: Path) -> None:
    text = (
        "http_server_config:\n  headers:\n    X-Frame-Options: sameorigin\n"
        "rate_limit: {interval: 1h, burst: 3}\n"
    )

    async def story() -> None:
        async with served(web_file(folder, text)) as at:
            status, headers, _ = await at.ask("/")
            assert (status, headers["X-Frame-Options"]) == (200, "sameorigin")
            assert [await at.status() for _ in range(4)] == [200, 200, 429, 429]

    play(story())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def fetched(port: int, trust: ssl.SSLContext | None, pair: str = "") -> str:
    """The metrics of an agent that runs; empty where it refuses."""
    scheme = "https" if trust else "http"
    request = urllib.request.Request(f"{scheme}://127.0.0.1:{port}/metrics")
    if pair:
        encoded = base64.b64encode(pair.encode()).decode()
        request.add_header("Authorization", f"Basic {encoded}")
    try:
        with urllib.request.urlopen(request, timeout=10, context=trust) as page:
            return str(page.read().decode())
    except urllib.error.HTTPError as refusal:
        refusal.close()
    except (urllib.error.URLError, ConnectionError):
        pass
    return ""


RUN = ("agent", "run", "--simulate", "k40:idle", "--listen")


def test_a_real_agent_serves_tls_with_passwords_and_follows_its_file(folder: Path) -> None:
    port = free_port()
    users = f"basic_auth_users: {{alice: {hashed('a')}}}\n"
    path = web_file(folder, TLS + users)
    trust = trusting(folder)
    with Running(*RUN, f"127.0.0.1:{port}", "--web.config.file", path) as agent:
        agent.line(f"event=started .*listen=https://127.0.0.1:{port}/", 20)
        eventually(lambda: "dgx_gpu_power" in fetched(port, trust, "alice:a"), 20, "metrics")
        assert fetched(port, trust) == ""
        assert fetched(port, None, "alice:a") == ""
        web_file(folder, users.replace("alice", "bob"))
        eventually(lambda: "dgx_gpu_power" in fetched(port, None, "bob:a"), 20, "the new file")
        agent.line("event=web_config_loaded", 5)
        assert agent.end(signal.SIGTERM) == 0


def test_the_web_configuration_may_be_named_in_the_configuration_and_reloaded(
    folder: Path,
) -> None:
    port = free_port()
    config = folder / "config.toml"
    config.write_text("")
    path = web_file(folder, f"basic_auth_users: {{alice: {hashed('a')}}}\n")
    with Running(*RUN, f"127.0.0.1:{port}", "--config", str(config)) as agent:
        agent.line("event=started", 20)
        eventually(lambda: "dgx_gpu_power" in fetched(port, None), 20, "metrics")
        config.write_text(f'web_config_file = "{path}"')
        agent.process.send_signal(signal.SIGHUP)
        agent.line("event=reloaded", 20)
        assert fetched(port, None) == ""
        assert "dgx_gpu_power" in fetched(port, None, "alice:a")
        config.write_text('web_config_file = "/nonexistent"')
        agent.process.send_signal(signal.SIGHUP)
        agent.line("event=reload_failed .*/nonexistent: cannot be read", 20)
        assert fetched(port, None) == "", "the old one is still in force"


@pytest.mark.parametrize(
    ("listen", "guarded", "warns"),
    [("0.0.0.0", False, True), ("0.0.0.0", True, False), ("127.0.0.2", False, False)],
)
def test_who_listens_wide_and_unguarded_is_warned_once(
    folder: Path, listen: str, *, guarded: bool, warns: bool
) -> None:
    path = web_file(folder, f"basic_auth_users: {{alice: {hashed('a')}}}\n" if guarded else "")
    with Running(*RUN, f"{listen}:0", "--web.config.file", path) as agent:
        agent.line("event=nvml_connected", 20)
        assert agent.end(signal.SIGTERM) == 0
        agent.line("event=stopped", 20)
    assert "".join(agent.said).count("level=warning") == warns
    assert "".join(agent.said).count("event=listening_unguarded") == warns
