"""TLS, passwords and headers over the wire."""

import asyncio
import ssl
from pathlib import Path

import pytest
from aiohttp import ClientError

from exporters import access_control
from exporters.access_control import Passwords
from tests.support.served import Served, hashed, served
from tests.support.web_files import TLS, trusting, web_file

PATHS = ("/", "/metrics", "/-/healthy", "/-/ready", "/metrics/dcgm", "/api/v1/snapshot", "/nowhere")


async def is_refused(at: Served, trust: ssl.SSLContext) -> bool:
    try:
        await at.status(trust=trust)
    except (ClientError, OSError):
        return True
    return False


async def test_with_an_expired_certificate_it_serves_who_does_not_mind(folder: Path) -> None:
    careless = trusting(folder)
    careless.check_hostname, careless.verify_mode = False, ssl.CERT_NONE
    async with served(web_file(folder, TLS.replace("server.", "expired."))) as at:
        assert await is_refused(at, trusting(folder))
        assert await at.status(trust=careless) == 200


async def test_every_path_asks_for_the_password(folder: Path) -> None:
    text = f"basic_auth_users:\n  alice: {hashed('pässword')}\n  bob: {hashed('')}\n"
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


USERS = {"alice": hashed("right")}


def verdicts(checker: Passwords, *pairs: tuple[str, str]) -> list[bool]:
    async def story() -> list[bool]:
        return [await checker.check(USERS, *pair) for pair in pairs]

    return asyncio.run(story())


async def test_a_right_password_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checker, asked, matches = Passwords(), list[str](), access_control.matches

    def counted(password: str, stored: str) -> bool:
        asked.append(password)
        return matches(password, stored)

    monkeypatch.setattr(access_control, "matches", counted)
    requests = [checker.check(USERS, "alice", word) for word in ("right", "right", "wrong")]
    assert await asyncio.gather(*requests) == [True, True, False]
    assert await checker.check(USERS, "alice", "right")
    assert not await checker.check(USERS, "carol", "right")
    assert asked == ["right", "wrong", "right"]


async def test_another_hash_asks_again() -> None:
    checker = Passwords()
    assert await checker.check(USERS, "alice", "right") is True
    changed = {"alice": hashed("new")}
    assert await checker.check(changed, "alice", "right") is False
    assert await checker.check(changed, "alice", "new") is True


def test_guesses_do_not_drive_out_what_was_right() -> None:
    checker = Passwords()
    verdicts(checker, ("alice", "right"), *(("alice", str(n)) for n in range(20)))
    assert checker._right.keys() == {"alice"}


async def test_an_unknown_user_costs_as_much_as_a_known_one_and_has_no_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    users = {"alice": hashed("x"), "bob": hashed("y", cost=5)}
    asked = []

    def matches(_: str, stored: str) -> bool:
        asked.append(stored)
        return True

    monkeypatch.setattr(access_control, "matches", matches)
    assert await Passwords().check(users, "eve", "y") is False
    assert asked == [users["bob"]]


def test_long_and_odd_passwords_are_only_wrong() -> None:
    checker = Passwords()
    odd = [("alice", "x" * 5000), ("alice", "\0"), ("a:b", "c"), ("alice", "right\0")]
    assert set(verdicts(checker, *odd)) == {False}


@pytest.mark.parametrize(
    "header",
    ["", "Basic", "Basic !!!", "Basic YWxpY2U=", "Basic /////w==", "Bearer YWxpY2U6c2VjcmV0"],
)
async def test_a_header_without_credentials_is_refused(folder: Path, header: str) -> None:
    text = f"basic_auth_users:\n  alice: {hashed('secret')}\n"
    async with served(web_file(folder, text)) as at:
        request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: %s\r\n\r\n"
        answer = await at.raw((request % header).encode())
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert answer.endswith(b"User and password are needed.\n")
        assert await at.status(auth=("alice", "secret")) == 200
