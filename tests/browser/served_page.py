"""A page that a status server serves: arrive, send another status, read what can be seen."""

from collections.abc import Callable
from datetime import datetime, timedelta

from tests.browser.page import Page
from tests.browser.status_server import Json, StatusServer

OPEN = "document.querySelector('#evidence').open"

Serve = Callable[[Json], StatusServer]


def arrive(page: Page, server: StatusServer, hash_: str = "") -> None:
    page.go(server.address + hash_)
    page.until(lambda p: p.all("body", "data-feed") == ["live"], "live")


def send(page: Page, server: StatusServer, status: Json) -> None:
    """Show a later status, and wait until the page has drawn it."""
    moved = datetime.fromisoformat(status["at"]) + timedelta(seconds=1)
    status["at"] = moved.isoformat().replace("+00:00", "Z")
    server.show(status)
    page.until(lambda p: p.all("#updated", "datetime") == [status["at"]], "drawn")


def words(page: Page, selector: str) -> list[str]:
    """Texts of elements that can be seen, with plain spaces."""
    found = page.run(
        f"[...document.querySelectorAll({selector!r})].filter((e) => e.checkVisibility())"
        ".map((e) => e.textContent.replaceAll('\\u00a0', ' '))"
    )
    return [str(text) for text in found]
