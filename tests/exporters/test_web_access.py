"""TLS, passwords and headers over the wire."""

import asyncio
import ssl
from pathlib import Path

import bcrypt
import pytest
from aiohttp import ClientError

from exporters import access_control
from exporters.access_control import Passwords, unmatched_hash
from tests.support.patience import PATIENCE
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


HERE = "192.0.2.1"
USERS = {"alice": hashed("right")}


def verdicts(checker: Passwords, *pairs: tuple[str, str]) -> list[bool]:
    async def story() -> list[bool]:
        return [await checker.check(USERS, *pair, HERE) for pair in pairs]

    return asyncio.run(story())


def test_a_right_password_is_checked_once() -> None:
    checker = Passwords(pause=0.0)
    asked = [("alice", "right"), ("alice", "wrong"), ("carol", "right")]
    expected = [True, False, False]
    assert verdicts(checker, *asked, *asked) == expected * 2
    assert checker.checks == 5


async def test_another_hash_asks_again() -> None:
    checker = Passwords(pause=0.0)
    assert await checker.check(USERS, "alice", "right", HERE) is True
    changed = {"alice": hashed("new")}
    assert await checker.check(changed, "alice", "right", HERE) is False
    assert await checker.check(changed, "alice", "new", HERE) is True


def test_guesses_do_not_drive_out_what_was_right() -> None:
    checker = Passwords(pause=0.0)
    verdicts(checker, ("alice", "right"), *(("alice", str(n)) for n in range(20)))
    before = checker.checks
    assert verdicts(checker, ("alice", "right")) == [True]
    assert checker.checks == before
    assert len(checker._right) == 1


async def test_who_asks_the_same_meanwhile_costs_nothing() -> None:
    checker = Passwords(pause=0.0)
    assert (
        await asyncio.gather(*(checker.check(USERS, "alice", "right", HERE) for _ in range(10)))
    ) == [True] * 10
    assert checker.checks == 1


def test_an_unknown_user_costs_as_much_as_a_known_one_and_has_no_password() -> None:
    users = {"alice": hashed("x", cost=5)}
    fake = unmatched_hash(users)
    assert fake.startswith("$2b$05$")
    assert not access_control.matches("x", fake)
    assert not bcrypt.checkpw(b"", fake.encode())


def test_long_and_odd_passwords_are_only_wrong() -> None:
    checker = Passwords(pause=0.0)
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


async def test_each_client_has_a_turn_and_a_rest_of_its_own() -> None:
    checker = Passwords(pause=30.0)
    guess = asyncio.create_task(checker.check(USERS, "alice", "0", "192.0.2.9"))
    while not checker.checks:  # noqa: ASYNC110
        await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE):
        for client in (HERE, "192.0.2.9"):  # checked, then remembered
            assert await checker.check(USERS, "alice", "right", client)
    guess.cancel()
    await asyncio.gather(guess, return_exceptions=True)
    assert len(checker._turns) == 0
