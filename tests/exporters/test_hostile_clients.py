"""Clients that guess, linger, pretend to be others or send what is no HTTP: others are answered."""

import asyncio
import tomllib
from base64 import b64encode
from pathlib import Path

import pytest
from aiohttp import ClientError, ClientSession, TCPConnector
from aiohttp.test_utils import make_mocked_request

from agent import __version__
from exporters.access_control import STREAM, is_cross_site, is_misdirected
from tests.benchmarks import load
from tests.stack.running import eventually
from tests.support.nightly import NIGHTLY
from tests.support.served import Served, hashed, served
from tests.support.web_files import web_file

CASES = tomllib.loads(Path(__file__).with_name("hostile_clients.toml").read_text("utf-8"))

USERS = f"basic_auth_users: {{alice: {hashed('right')}, bob: {hashed('right')}}}\n"
GUESSERS = 24


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"}


async def guess(at: Served, address: str, name: int, met: set[int]) -> None:
    """Guess for ever, from this address; collects the answers' statuses."""
    connector = TCPConnector(local_addr=(address, 0))
    async with ClientSession(connector=connector) as client:
        for number in range(1_000_000):
            try:
                headers = basic("alice", f"{name}-{number}")
                url = f"http://127.0.0.1:{at.port}/metrics"
                async with client.get(url, headers=headers) as answer:
                    met.add(answer.status)
            except ClientError:  # its connection made room for another
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "address",
    [pytest.param("127.0.0.1", marks=NIGHTLY), "127.0.0.9", "127.0.1.{}"],
    ids=["same", "one other", "many"],
)
async def test_who_guesses_keeps_no_right_password_out(folder: Path, address: str) -> None:
    async with served(web_file(folder, USERS)) as at:
        met: set[int] = set()
        guesses = [
            asyncio.create_task(guess(at, address.format(n + 1), n, met)) for n in range(GUESSERS)
        ]
        await asyncio.sleep(1.0)
        while 401 not in met:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert [await at.status(auth=(user, "right")) for user in ("alice", "bob")] == [200] * 2
        assert met == {401}
        for one in guesses:
            one.cancel()
        await asyncio.gather(*guesses, return_exceptions=True)


def request(host: str, *more: str, path: str = "/-/healthy") -> bytes:
    lines = (f"GET {path} HTTP/1.1", f"Host: {host}", *more)
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


REFUSED = {
    "401, none": (USERS, request("localhost"), 401),
    "401, wrong": (USERS, request("localhost", "Authorization: Basic YTpi"), 401),
    "403": ("", request("localhost", "Sec-Fetch-Site: cross-site", path=STREAM), 403),
    "421": ("", request("rebound.example"), 421),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_who_is_refused_keeps_no_connection(folder: Path, case: str) -> None:
    text, sent, status = REFUSED[case]
    async with served(web_file(folder, text)) as at:
        said = await at.raw(sent)  # until the server closes
        last = said[said.rindex(b"HTTP/1.1 ") :]
        assert last.startswith(f"HTTP/1.1 {status} ".encode())
        assert b"\r\nConnection: close\r\n" in last
        assert f"\r\nServer: dgx-telemetry/{__version__}\r\n".encode() in last


@pytest.mark.parametrize(("host", "status"), CASES["names"])
async def test_on_loopback_only_known_names_are_answered(host: str, status: int) -> None:
    async with served(names=("gpu.example",)) as at:
        for path in ("/", "/metrics", "/api/v1/snapshot", "/-/healthy"):
            said = await at.raw(request(host, "Connection: close", path=path))
            assert said.startswith(f"HTTP/1.1 {status} ".encode()), path


@pytest.mark.parametrize(("url", "status"), CASES["urls"])
async def test_the_name_in_a_whole_url_counts_too(url: str, status: int) -> None:
    async with served() as at:
        said = await at.raw(request("localhost", "Connection: close", path=url))
        assert said.startswith(f"HTTP/1.1 {status} ".encode())
        said = await at.raw(b"GET /-/healthy HTTP/1.0\r\n\r\n")  # no browser's
        assert said.startswith(b"HTTP/1.0 200 ")


class Arrived(asyncio.Transport):
    """A connection that came in at this address of the machine."""

    def __init__(self, address: str) -> None:
        super().__init__({"sockname": (address, 9935)})


@pytest.mark.parametrize(
    ("address", "misdirected"),
    [("127.0.0.1", True), ("::1", True), ("10.1.2.3", False), ("2001:db8::1", False)],
)
def test_names_matter_on_loopback_alone(address: str, misdirected: bool) -> None:
    headers = {"Host": "whatever.example"}
    asked = make_mocked_request("GET", "/", headers=headers, transport=Arrived(address))
    assert is_misdirected(asked, ()) is misdirected


@pytest.mark.parametrize(("headers", "refused"), CASES["stream"])
def test_the_stream_is_for_the_own_page(headers: dict[str, str], refused: bool) -> None:
    headers = {"Host": "localhost:9935", **headers}
    assert is_cross_site(make_mocked_request("GET", STREAM, headers=headers)) is refused
    assert not is_cross_site(make_mocked_request("GET", "/metrics", headers=headers))


CLIENTS = 64


def test_everyone_is_answered_and_the_ticks_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    with load.agent("dgx-h100:training") as (port, tick_times):
        before = len(tick_times.at)
        found = load.measure(port, tick_times, CLIENTS, seconds=3.0)
        assert len(found.scrapes) >= CLIENTS
        assert len(found.scrapes) % CLIENTS == 0, "each round was answered to the last client"
        eventually(lambda: len(tick_times.at) >= before + 3, "ticks under load")
    with capsys.disabled():
        print(f"\nload, {CLIENTS} clients, 3 s: {found}")
