"""Passwords: what a check costs, what is remembered, and what guessing is worth."""

import asyncio

import bcrypt
import pytest

from exporters import passwords
from exporters.passwords import Passwords, Verdict, credentials, nobodys
from tests.served import hashed

USERS = {"alice": hashed("right")}


def verdicts(checker: Passwords, *pairs: tuple[str, str]) -> list[Verdict]:
    async def story() -> list[Verdict]:
        return [await checker.verdict(USERS, *pair) for pair in pairs]

    return asyncio.run(story())


def test_a_password_is_checked_once() -> None:
    checker = Passwords(pause=0.0)
    asked = [("alice", "right"), ("alice", "wrong"), ("carol", "right")]
    assert verdicts(checker, *asked, *asked) == [Verdict.RIGHT, Verdict.WRONG, Verdict.WRONG] * 2
    assert checker.checks == 3


def test_another_hash_asks_anew() -> None:
    checker = Passwords(pause=0.0)

    async def story() -> None:
        assert await checker.verdict(USERS, "alice", "right") is Verdict.RIGHT
        changed = {"alice": hashed("new")}
        assert await checker.verdict(changed, "alice", "right") is Verdict.WRONG
        assert await checker.verdict(changed, "alice", "new") is Verdict.RIGHT

    asyncio.run(story())


def test_guesses_do_not_drive_out_what_was_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "REMEMBERED", 4)
    checker = Passwords(pause=0.0)
    verdicts(checker, ("alice", "right"), *(("alice", str(n)) for n in range(20)))
    before = checker.checks
    assert verdicts(checker, ("alice", "right")) == [Verdict.RIGHT]
    assert checker.checks == before
    assert len(checker._wrong._keys) == 4


def test_who_guesses_waits_and_too_many_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "MOST_WAITING", 4)
    checker = Passwords(pause=0.02)

    async def story() -> list[Verdict]:
        guesses = (checker.verdict(USERS, "alice", str(n)) for n in range(50))
        return await asyncio.gather(*guesses)

    found = asyncio.run(story())
    assert found.count(Verdict.BUSY) == 46
    assert checker.checks == 4


def test_who_asks_the_same_meanwhile_costs_nothing() -> None:
    checker = Passwords(pause=0.0)

    async def story() -> list[Verdict]:
        return await asyncio.gather(*(checker.verdict(USERS, "alice", "right") for _ in range(10)))

    assert asyncio.run(story()) == [Verdict.RIGHT] * 10
    assert checker.checks == 1


def test_nobody_costs_as_much_as_somebody_and_has_no_password() -> None:
    users = {"alice": hashed("x", cost=5)}
    fake = nobodys(users)
    assert fake.startswith("$2b$05$")
    assert not passwords.matches("x", fake)
    assert not bcrypt.checkpw(b"", fake.encode())


def test_long_and_odd_passwords_are_only_wrong() -> None:
    checker = Passwords(pause=0.0)
    odd = [("alice", "x" * 5000), ("alice", "\0"), ("a:b", "c"), ("alice", "right\0")]
    assert set(verdicts(checker, *odd)) == {Verdict.WRONG}


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("Basic YWxpY2U6c2VjcmV0", ("alice", "secret")),
        ("bAsIc YWxpY2U6YTpi", ("alice", "a:b")),
        ("", None),
        ("Basic", None),
        ("Basic !!!", None),
        ("Basic YWxpY2U=", None),
        ("Basic /////w==", None),
        ("Bearer YWxpY2U6c2VjcmV0", None),
    ],
)
def test_credentials_are_read_or_there_are_none(header: str, found: tuple[str, str] | None) -> None:
    assert credentials(header) == found
