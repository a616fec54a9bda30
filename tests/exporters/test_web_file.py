"""The web configuration while the agent serves: what changes, what breaks, what hangs."""

import asyncio
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.errors import BadInput
from exporters import web_file
from exporters.web_file import WebFile
from tests.support.patience import PATIENCE
from tests.support.served import Served, hashed, served
from tests.support.web_files import TLS, trusting
from tests.support.web_files import web_file as written

USERS = f"basic_auth_users: {{alice: {hashed('a')}}}\n"


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    shown = [record.getMessage().split()[0] for record in caplog.records]
    return [event.removeprefix("event=") for event in shown if event.startswith("event=")]


async def certificate(at: Served) -> str:
    """Return the certificate in a handshake now, after a look at the files."""
    await asyncio.to_thread(at.web.poll)
    where = ("127.0.0.1", at.port)
    return await asyncio.to_thread(ssl.get_server_certificate, where, timeout=PATIENCE)


async def test_certificates_are_replaced_without_a_restart(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with served(written(folder, TLS)) as at:
        first = await certificate(at)
        (folder / "newer.crt").replace(folder / "server.crt")
        for _ in range(3):  # the key is not there yet: the old pair goes on
            assert await certificate(at) == first
        (folder / "newer.key").replace(folder / "server.key")
        assert await certificate(at) != first
        assert await at.status(trust=trusting(folder)) == 200
    assert events(caplog) == ["web_config_failed", "web_config_loaded"]


async def test_a_certificate_that_keeps_its_time_and_size_is_seen_to_change(folder: Path) -> None:
    crt, key = folder / "server.crt", folder / "server.key"
    for file in (crt, folder / "newer.crt", key, folder / "newer.key"):
        file.write_text(file.read_text().ljust(4000, "\n"))
    async with served(written(folder, TLS)) as at:
        first = await certificate(at)
        for file, newer in ((crt, "newer.crt"), (key, "newer.key")):
            times = file.stat()
            with file.open("r+") as same:  # the same inode
                same.write((folder / newer).read_text())
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert await certificate(at) != first


def test_what_could_not_be_read_for_a_moment_is_read_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: str) -> bytes:
        raise PermissionError(13, "Permission denied")

    web = WebFile(written(folder, TLS))
    before = web.now
    monkeypatch.setattr(web_file, "file_content", refuse)
    for _ in range(3):
        web.poll()
    assert web.now is before
    assert not web.good
    assert events(caplog) == ["web_config_failed"], "logged once"
    assert "web.yml: cannot be read: Permission denied" in caplog.text
    monkeypatch.undo()
    web.poll()  # and no file has changed
    assert web.good
    assert web.now is not before


@pytest.mark.parametrize("then", ["", "# nothing", "~", "basic_auth_users:", "{}"])
def test_a_reload_drops_no_last_guard(
    folder: Path, then: str, caplog: pytest.LogCaptureFixture
) -> None:
    web = WebFile(written(folder, USERS))
    before = web.now
    written(folder, then)
    for _ in range(2):
        web.poll()
    assert (web.now, web.good) == (before, False)
    assert events(caplog) == ["web_config_failed"]
    assert "has no tls_server_config and no basic_auth_users any more" in caplog.text


@pytest.mark.parametrize("text", ["", "# nothing", "basic_auth_users:"])
def test_a_file_without_a_guard_at_the_start_is_reported(
    folder: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert not WebFile(written(folder, text)).now.is_guarded
    assert events(caplog) == ["no_guard"]


async def test_a_broken_file_keeps_the_old_and_is_reported_once_a_change(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(folder, USERS)
    async with served(path) as at:
        assert await at.status(auth=("alice", "a")) == 200
        written(folder, "basic_auth_users: [")
        for _ in range(5):
            await asyncio.to_thread(at.web.poll)
            assert await at.status(auth=("alice", "a")) == 200
            assert await at.status() == 401
        Path(path).unlink()  # noqa: ASYNC240
        await asyncio.to_thread(at.web.poll)
        assert await at.status(auth=("alice", "a")) == 200
        written(folder, f"basic_auth_users: {{bob: {hashed('b')}}}\n")
        await asyncio.to_thread(at.web.poll)
        assert await at.status(auth=("bob", "b")) == 200
        assert await at.status(auth=("alice", "a")) == 401
    errors = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert ["not YAML" in errors[0], "cannot be read" in errors[1]] == [True, True]
    assert len(errors) == 2


@pytest.mark.parametrize(("first", "then"), [("{}", TLS), (TLS, USERS)], ids=["on", "off"])
async def test_switching_tls_needs_a_restart_and_says_so(
    folder: Path, first: str, then: str, caplog: pytest.LogCaptureFixture
) -> None:
    trust = trusting(folder) if first == TLS else None
    async with served(written(folder, first)) as at:
        assert await at.status(trust=trust) == 200
        written(folder, then)
        await asyncio.to_thread(at.web.poll)
        assert await at.status(trust=trust) == (401 if then == USERS else 200)
    assert "needs_a_restart" in events(caplog)
    assert "key=tls_server_config" in caplog.text


def hanging(monkeypatch: pytest.MonkeyPatch, name: str) -> Callable[[], None]:
    """Every use of this function waits, as on a file system that is gone, until it is released."""
    released = threading.Event()

    def hang(*_: object) -> None:
        released.wait(PATIENCE)
        raise BadInput("it is gone")

    monkeypatch.setattr(web_file, name, hang)
    return released.set


@pytest.mark.parametrize("call", ["content", "load"])
async def test_a_file_system_that_hangs_delays_nothing_else(
    folder: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_file, "POLL_INTERVAL", 0.01)
    async with served(written(folder, USERS)) as at:
        release = hanging(monkeypatch, call)
        written(folder, "{}")
        at.web.watch()
        await asyncio.sleep(0.1)
        assert await at.status(auth=("alice", "a")) == 200
        assert await at.status() == 401
        monkeypatch.setattr(web_file, "POLL_INTERVAL", 3600.0)
        release()


def test_the_end_of_the_certificate_follows_the_file(folder: Path) -> None:
    web = WebFile(written(folder, TLS))
    first = web.now.certificate_ends
    assert first is not None
    assert first > time.time()
    for end in ("crt", "key"):
        (folder / f"expired.{end}").replace(folder / f"server.{end}")
    web.poll()
    assert web.now.certificate_ends is not None
    assert web.now.certificate_ends < time.time()
    assert WebFile(written(folder, "{}")).now.certificate_ends is None
