"""The page's memory of 15 minutes: what it takes in, what it forgets, and what stays a gap."""

import json
from base64 import b64encode
from typing import Any

import pytest

from tests.browser.page import Page
from tests.browser.served_page import Serve
from tests.browser.status_server import STATES, WORDS, Json, example

pytestmark = pytest.mark.browser

BUSY, IDLE = "busy/none", "idle/none"
SERIES = {
    "power": {"unit": "watts", "scale": 0.1, "bytes": 2, "gap": 65535},
    "share": {"unit": "ratio", "scale": 0.005, "bytes": 1, "gap": 255},
}


def shown(newest: int, pairs: list[str], watts: list[int], *, whole: bool) -> Json:
    """A `history` event of one GPU; a pair that is empty is a gap."""
    columns = {
        "state": b64encode(bytes(STATES.index(pair or None) for pair in pairs)).decode(),
        "shares": {
            one: b64encode(bytes(200 * (pair == one) for pair in pairs)).decode()
            for one in (BUSY, IDLE)
        },
        "power": b64encode(b"".join(w.to_bytes(2, "little") for w in watts)).decode(),
    }
    document = {"whole": whole, "newest": newest, "slots": len(pairs), "words": WORDS}
    return {**document, "states": STATES, "series": SERIES, "gpus": {"GPU-1": columns}}


@pytest.fixture
def remembered(page: Page, served: Serve) -> Any:
    """`remembered(script)` is the answer of a fresh history: `h` is the history, `tick(second,
    pair)` a tick of GPU-1, `seen(n)` what is known of the last seconds."""
    page.go(f"{served(example()).address}?still")
    page.until(lambda p: p.all("body", "data-feed") == ["still"], "loaded")
    return lambda script: page.run(f"""import('/history.js').then(({{ History }}) => {{
      const h = new History();
      const figures = {{ power_watts: 100 }};
      const gpu = (shares) => ({{ uuid: 'GPU-1', lost: false, shares, figures }});
      const tick = (second, pair) => h.take({{ second, gpus: [gpu({{ [pair]: 1 }})] }});
      const seen = (last) => [...Array(last).keys()].reverse().map((age) => h.at('GPU-1', age))
        .map((one) => one ? [one.shares.join().slice(0, 9), Math.round(one.values.power)] : null);
      {script}
    }})""")


def test_it_takes_in_what_the_agent_remembers_and_what_was_missed(remembered: Any) -> None:
    first = shown(1000, [BUSY, BUSY, "", IDLE], [1000, 65535, 65535, 3000], whole=True)
    missed = shown(1003, [IDLE, BUSY], [500, 600], whole=False)  # 1001 was never known
    seen = remembered(
        f"h.remember({json.dumps(first)}); h.remember({json.dumps(missed)}); return seen(7);"
    )
    assert seen == [[BUSY, 100], [BUSY, None], None, [IDLE, 300], None, [IDLE, 50], [BUSY, 60]]


def test_a_second_is_reported_once(remembered: Any) -> None:
    same = shown(1000, [BUSY], [1000], whole=True)
    script = f"h.remember({json.dumps(same)}); tick(1000, '{IDLE}'); return seen(2);"
    assert remembered(script) == [None, [BUSY, 100]]


def test_another_run_of_the_agent_starts_afresh(remembered: Any) -> None:
    fresh = shown(3, [IDLE], [1000], whole=True)
    script = f"tick(5000, '{BUSY}'); h.remember({json.dumps(fresh)}); return h.totals();"
    assert remembered(script) == [[IDLE, 1]]


def test_it_holds_fifteen_minutes_and_no_more(remembered: Any) -> None:
    script = f"""
      for (let at = 0; at < 5000; at += 1) tick(at, at < 4400 ? '{BUSY}' : '{IDLE}');
      return [h.gpus.get('GPU-1').length, h.totals()];"""
    assert remembered(script) == [900, [[BUSY, 300], [IDLE, 600]]], "work stands first"


def test_seconds_without_a_tick_are_a_gap(remembered: Any) -> None:
    script = f"tick(10, '{BUSY}'); tick(14, '{BUSY}'); return seen(6);"
    assert remembered(script) == [None, [BUSY, 100], None, None, None, [BUSY, 100]]
    script = f"tick(10, '{BUSY}'); tick(5000, '{IDLE}'); return h.totals();"
    assert remembered(script) == [[IDLE, 1]]


def test_a_gpu_that_is_gone_is_forgotten_in_the_end(remembered: Any) -> None:
    script = f"""
      tick(1, '{BUSY}');
      for (let second = 2; second < 901; second += 1) h.take({{ second, gpus: [] }});
      const known = h.gpus.size;
      h.take({{ second: 901, gpus: [] }});
      return [known, h.gpus.size];"""
    assert remembered(script) == [1, 0]


def test_a_second_is_divided_into_its_shares(remembered: Any) -> None:
    script = f"""
      h.take({{ second: 1, gpus: [gpu({{ '{IDLE}': 0.25, '{BUSY}': 0.75 }})] }});
      tick(2, '{BUSY}');
      return h.totals();"""
    assert remembered(script) == [[BUSY, 1.75], [IDLE, 0.25]]


def test_a_gpu_that_is_lost_is_drawn_as_lost(remembered: Any) -> None:
    script = "h.take({ second: 1, gpus: [{ ...gpu({}), lost: true }] }); return h.totals();"
    assert remembered(script) == [["lost/none", 1]]
