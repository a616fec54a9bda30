"""The page's memory of 15 minutes: what it takes in, what it forgets, and what stays a gap."""

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.browser.chromium import Chromium
from tests.browser.page import Page
from tests.stack.fleet import Fleet

pytestmark = pytest.mark.browser

BUSY, IDLE = 18, 1  # codes of the page
STATES = [None, "busy/none", "idle/none"]  # the agent's codes: its place in this list
SERIES = {
    "power": {"unit": "watts", "scale": 0.1, "bytes": 2, "gap": 65535},
    "share": {"unit": "ratio", "scale": 0.005, "bytes": 1, "gap": 255},
}


@pytest.fixture(scope="module")
def page(chromium: Chromium, machines: Callable[..., Fleet]) -> Iterator[Page]:
    with Page(chromium) as tab:
        tab.go(machines(1, one="titan-x-pascal:idle").page("one"))
        tab.until(lambda p: p.all(".tile", "data-gpu"), "tiles")
        yield tab


def shown(newest: int, states: list[int], watts: list[int], *, whole: bool) -> dict[str, Any]:
    """A `history` event of one GPU."""
    columns = {
        "state": b64encode(bytes(states)).decode(),
        "shares": {
            pair: b64encode(bytes(200 * (state == code) for state in states)).decode()
            for code, pair in enumerate(STATES)
            if pair
        },
        "power": b64encode(b"".join(w.to_bytes(2, "little") for w in watts)).decode(),
    }
    document = {"whole": whole, "newest": newest, "slots": len(states)}
    return {**document, "states": STATES, "series": SERIES, "gpus": {"GPU-1": columns}}


def remembered(page: Page, script: str) -> Any:
    """Return the answer of a fresh history; `h` is the history, `tick(second, code)` a tick of
    GPU-1."""
    return page.run(f"""import('/history.js').then(({{ History, SPAN }}) => {{
      const h = new History();
      const tick = (second, code) =>
        h.append(second, new Map([
          ['GPU-1', {{ code, values: {{ power: 100 }}, shares: [[code, 1]] }}],
        ]));
      const codes = () => [...h.slots()].map(([slot]) => h.tracks.get('GPU-1').codes[slot]);
      const series = () => [...h.slots()].map(([slot]) => h.tracks.get('GPU-1').series.power[slot]);
      {script}
    }})""")


def test_it_takes_in_what_the_agent_remembers_and_what_was_missed(page: Page) -> None:
    first = shown(1000, [1, 1, 0, 2], [1000, 65535, 65535, 3000], whole=True)
    missed = shown(1003, [2, 1], [500, 600], whole=False)  # 1001 was never known
    codes, watts = remembered(
        page,
        f"h.remember({json.dumps(first)}); h.remember({json.dumps(missed)});"
        "return [codes().slice(-7), series().slice(-7).map((v) => Number.isNaN(v) ? null : v)];",
    )
    assert codes == [BUSY, BUSY, 0, IDLE, 0, IDLE, BUSY]
    assert watts == pytest.approx([100, None, None, 300, None, 50, 60])


def test_a_second_is_reported_once(page: Page) -> None:
    same = shown(1000, [1], [1000], whole=True)
    script = f"h.remember({json.dumps(same)}); tick(1000, {IDLE}); return codes().slice(-2);"
    assert remembered(page, script) == [0, BUSY]


def test_another_run_of_the_agent_starts_afresh(page: Page) -> None:
    fresh = shown(3, [2], [1000], whole=True)
    script = f"tick(5000, {BUSY}); h.remember({json.dumps(fresh)}); return [...h.totals()];"
    assert remembered(page, script) == [[IDLE, 1]]


def test_it_holds_fifteen_minutes_and_no_more(page: Page) -> None:
    script = f"""
      for (let at = 0; at < 5000; at += 1) tick(at, at < 4400 ? {BUSY} : {IDLE});
      return [h.tracks.get('GPU-1').codes.length, [...h.totals()].sort((a, b) => a[0] - b[0])];"""
    assert remembered(page, script) == [900, [[IDLE, 600], [BUSY, 300]]]


def test_seconds_without_a_tick_are_a_gap(page: Page) -> None:
    script = f"tick(10, {BUSY}); tick(14, {BUSY}); return codes().slice(-6);"
    assert remembered(page, script) == [0, BUSY, 0, 0, 0, BUSY]
    script = f"tick(10, {BUSY}); tick(5000, {IDLE}); return [...h.totals()];"
    assert remembered(page, script) == [[IDLE, 1]]


def test_a_gpu_that_is_gone_is_forgotten_in_the_end(page: Page) -> None:
    script = f"""
      tick(1, {BUSY});
      for (let second = 2; second < 901; second += 1) h.append(second, new Map());
      const known = h.tracks.size;
      h.append(901, new Map());
      return [known, h.tracks.size];"""
    assert remembered(page, script) == [1, 0]


def test_a_second_is_divided_into_its_shares(page: Page) -> None:
    script = f"""
      h.append(1, new Map([['GPU-1', {{ code: {BUSY}, values: {{}},
                                        shares: [[{BUSY}, 0.75], [{IDLE}, 0.25]] }}]]));
      tick(2, {BUSY});
      return [...h.totals()].sort((a, b) => a[0] - b[0]);"""
    assert remembered(page, script) == [[IDLE, 0.25], [BUSY, 1.75]]
