"""One Chromium for all browser tests, and machines with live pages."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.browser.chromium import Chromium
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
