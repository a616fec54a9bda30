"""One Chromium for all browser tests, and machines with live pages."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.browser.chromium import Chromium
from tests.browser.page import Page
from tests.browser.status_server import Json, StatusServer
from tests.stack.fleet import Fleet


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    browser = Chromium()
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def machines() -> Iterator[Callable[..., Fleet]]:
    """`machines(2, one="dgx-h100:idle")`: a process with agents on a clock twice as fast."""
    with ExitStack() as stack:
        yield lambda speed=1.0, **specs: stack.enter_context(Fleet(speed, specs))


@pytest.fixture
def page(chromium: Chromium) -> Iterator[Page]:
    """A tab that may complain of nothing but how often a test reads its canvases."""
    with Page(chromium) as tab:
        yield tab
        assert [error for error in tab.errors if "Canvas2D" not in error] == []


@pytest.fixture
def served() -> Iterator[Callable[[Json], StatusServer]]:
    """`served(status)` is a server of a page that shows it."""
    with ExitStack() as stack:
        yield lambda status: stack.enter_context(StatusServer(status))
