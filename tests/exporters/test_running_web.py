"""A real agent over a web configuration that changes, or is no file that can be read."""

import base64
import signal
import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.stack.running import Running, eventually
from tests.support.patience import PATIENCE
from tests.support.prometheus import free_port
from tests.support.served import hashed
from tests.support.web_files import TLS, trusting, web_file


def fetched(port: int, trust: ssl.SSLContext | None, pair: str = "") -> str:
    """The metrics of an agent that runs; empty where it refuses."""
    scheme = "https" if trust else "http"
    request = urllib.request.Request(f"{scheme}://127.0.0.1:{port}/metrics")
    if pair:
        encoded = base64.b64encode(pair.encode()).decode()
        request.add_header("Authorization", f"Basic {encoded}")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE, context=trust) as page:
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
        agent.line(f"event=started .*listen=https://127.0.0.1:{port}/")
        eventually(lambda: "dgx_gpu_power" in fetched(port, trust, "alice:a"), "metrics")
        assert fetched(port, trust) == ""
        assert fetched(port, None, "alice:a") == ""
        web_file(folder, users.replace("alice", "bob"))
        agent.line("event=needs_a_restart key=tls_server_config .*in_force=https new=http")
        web_file(folder, TLS + users.replace("alice", "bob"))
        agent.line("event=web_config_loaded")
        eventually(lambda: "dgx_gpu_power" in fetched(port, trust, "bob:a"), "the new users")
        assert fetched(port, trust, "alice:a") == ""
        assert agent.end(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("listen", "guarded", "warns"),
    [("0.0.0.0", False, True), ("0.0.0.0", True, False), ("127.0.0.2", False, False)],
)
def test_who_listens_wide_and_unguarded_is_warned_once(
    folder: Path, listen: str, *, guarded: bool, warns: bool
) -> None:
    path = web_file(folder, f"basic_auth_users: {{alice: {hashed('a')}}}\n")
    with Running(*RUN, f"{listen}:0", *(("--web.config.file", path) if guarded else ())) as agent:
        agent.line("event=nvml_connected")
        assert agent.end(signal.SIGTERM) == 0
        agent.line("event=stopped")
    assert "".join(agent.said).count("level=warning") == warns
    assert "".join(agent.said).count("event=listening_unguarded") == warns


def test_the_port_is_reported_and_serves_every_address_of_the_host() -> None:
    with Running(*RUN, f"localhost:{free_port()}") as agent:
        port = int(agent.line(r"event=started .*listen=http://localhost:(\d+)/")[1])
        for *_, address in socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM):
            with socket.create_connection((str(address[0]), port), 10) as channel:
                channel.sendall(b"GET /-/healthy HTTP/1.0\r\n\r\n")
                assert channel.recv(4096).startswith(b"HTTP/1.0 200")


def test_allowed_hosts_are_answered_and_follow_a_reload(folder: Path) -> None:
    config = folder / "config.toml"
    config.write_text('allowed_hosts = "gpu.example"')
    with Running(*RUN, "127.0.0.1:0", "--config", str(config)) as agent:
        port = int(agent.line(r"event=started .*:(\d+)/")[1])

        def status(host: str) -> int:
            headers = {"Host": host}
            request = urllib.request.Request(f"http://127.0.0.1:{port}/-/healthy", headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE) as page:
                    return int(page.status)
            except urllib.error.HTTPError as refusal:
                refusal.close()
                return refusal.code

        assert [status("gpu.example"), status("other.example")] == [200, 421]
        config.write_text('allowed_hosts = "new.example, other.example"')
        agent.process.send_signal(signal.SIGHUP)
        agent.line("event=reloaded")
        assert [status("gpu.example"), status("other.example")] == [421, 200]
