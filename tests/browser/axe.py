"""axe-core in a page: its findings as sentences. `tests/run` puts it into `.venv`."""

import json
from functools import cache

import pytest

from tests.browser.page import Page
from tests.support.repository import ROOT

FOLDER = ROOT / ".venv/axe/axe_playwright_python"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@cache
def script() -> str:
    path = FOLDER / "axe.min.js"
    if not path.exists():
        pytest.skip(f"axe-core is not in {FOLDER}: tests/run installs it")
    return path.read_text(encoding="utf-8")


def grave(page: Page) -> list[str]:
    """Return the obstacles for a person with poor or no sight."""
    page.run(f"{script()}; 0")
    options = json.dumps({"runOnly": TAGS, "resultTypes": ["violations"]})
    found = page.run(f"axe.run(document, {options}).then((r) => r.violations)")
    return [
        f"{finding['id']} ({finding['impact']}): {node['html'][:120]} {node['failureSummary']}"
        for finding in found
        if finding["impact"] in {"serious", "critical"}
        for node in finding["nodes"]
    ]
