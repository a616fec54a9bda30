"""Messages of the page when the agent stands, dies, comes back, or has too many guests."""

import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from agent.stack import programs
from agent.stack.programs import choose
from exporters.live.page import MOST_STREAMS
from tests.browser.chromium import Chromium
from tests.browser.page import Page
from tests.stack.daemons import FREE, started
from tests.stack.fleet import Fleet
from tests.stack.running import eventually

pytestmark = pytest.mark.browser

FLAGS = ("--simulate", "dgx-station-v100:training")


@pytest.fixture
def page(chromium: Chromium) -> Iterator[Page]:
    with Page(chromium) as tab:
        yield tab


def feed(page: Page) -> str:
    """Return the state of the connection, in a word."""
    return "".join(page.all("body", "data-feed"))


def answers(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5):
            return True
    except OSError:
        return False


def test_it_says_stale_and_since_when_and_goes_on_by_itself(page: Page, tmp_path: Path) -> None:
    port = choose(FREE).agent
    log = tmp_path / "agent.log"
    with started(programs.agent_program(port, FLAGS), log) as agent:
        eventually(lambda: answers(port), "the agent is ready")
        page.go(f"http://127.0.0.1:{port}/")
        page.until(lambda p: feed(p) == "live", "live")

        agent.send_signal(signal.SIGSTOP)  # the connection stands, and nothing comes
        page.until(lambda p: feed(p) == "stale", "stale")
        assert re.fullmatch(r"stale since \d+:\d\d:\d\d.*", page.text("#feed-words"))
        agent.send_signal(signal.SIGCONT)
        page.until(lambda p: feed(p) == "live", "live again")
        assert page.errors == []

        agent.kill()
        page.until(lambda p: feed(p) == "reconnecting", "reconnecting")
        assert re.fullmatch(r"reconnecting, stale since \d+:\d\d:\d\d.*", page.text("#feed-words"))
        assert page.all(".tile", "data-gpu"), "what was last known stays to be read"
    with started(programs.agent_program(port, FLAGS), log):
        page.until(lambda p: feed(p) == "live", "live with another agent")
        shown = page.text("#updated")
        page.until(lambda p: p.text("#updated") != shown, "ticks go on")


def test_it_says_why_it_is_refused_and_comes_in_later(
    page: Page, machines: Callable[..., Fleet]
) -> None:
    address = machines(1, one="dgx-station-v100:training").page("one")
    place = urlsplit(address)
    with ExitStack() as guests:
        for _ in range(MOST_STREAMS):
            guest = guests.enter_context(socket.create_connection((place.hostname, place.port), 30))
            guest.sendall(b"GET /api/v1/stream HTTP/1.1\r\nHost: x\r\n\r\n")
            assert guest.recv(15) == b"HTTP/1.1 200 OK"
        page.go(address)
        page.until(lambda p: feed(p) == "refused", "refused")
        assert "too many pages are open" in page.text("#feed-words")
    page.until(lambda p: feed(p) == "live", "live when others have gone")
