"""The page lays out a status as it is: levels, folds, figures, commands. No agent runs."""

import re
from pathlib import Path

import pytest

from tests.browser.page import Page
from tests.browser.served_page import OPEN, Serve, arrive, words
from tests.browser.status_server import Json, example, history

pytestmark = pytest.mark.browser


def test_what_is_hidden_is_folded_under_its_cause(page: Page, served: Serve) -> None:
    status = example()
    under_the_port = {
        **status["findings"][1],
        "id": "errors",
        "text": "its errors",
        "hidden_by": "port_down:mlx5_0:1",
    }
    astray = {**under_the_port, "id": "astray", "text": "alone", "hidden_by": "none such"}
    status["findings"] += [under_the_port, astray]
    arrive(page, served(status))
    assert words(page, "#headline summary") == ["and 1 that follows from it"]
    assert words(page, "#findings > li > div > .words") == [
        "InfiniBand port mlx5_0:1 is down",
        "GPU 0: NVLink 4 has had 12 errors",
        "alone",
    ]
    assert words(page, "#findings summary") == ["and 1 that follows from it"]
    page.run("document.querySelector('#headline details').open = true")
    assert words(page, "#headline details .words") == [
        "GPU 3: XID 79, the GPU has fallen off the bus"
    ]
    assert page.all("#headline details li", "data-level") == ["critical"]
    assert words(page, "[data-gpu='3'] .faults li") == ["lost: 7 of 8 respond"]


def test_levels_and_states_are_those_of_the_status(page: Page, served: Serve) -> None:
    status = example()
    arrive(page, served(status))
    assert page.all("#headline", "data-level") == ["critical"]
    assert page.all(".lead", "data-level")[:2] == ["critical", "critical"]
    assert page.all("#jobs > li", "data-level") == ["critical"]
    assert page.all("tr[data-level]", "data-device") == ["mlx5_0:1"]
    full = "[data-path=infiniband] [data-device='mlx5_1:1'] .flow[data-level]"
    assert page.all(full, "data-level") == ["warning"]
    assert page.all("[data-path=infiniband]", "open") == [""]
    assert page.all("#graph-drawing .edge[data-load=less]", "data-gpus") == ["0"]
    assert page.all(".node[data-lost]", "data-gpu") == ["3"]
    states = dict(zip(page.all(".tile", "data-gpu"), page.all(".tile", "data-state"), strict=True))
    assert states["3"] == "lost"
    assert {state for gpu, state in states.items() if gpu != "3"} == {"hung"}
    used = {href[1:] for href in page.all("main .symbol use", "href")}
    assert used == {"critical", "warning", "info", "good", "lost", "hung"}
    drawn = set(page.all(".symbols symbol", "id"))
    assert used <= drawn


def test_commands_are_marked_by_their_text_alone(page: Page, served: Serve) -> None:
    status = example()
    status["headline"][0]["do"] = "Run `some thing --new` and not nvidia-smi -q."
    arrive(page, served(status))
    clause = "#headline > li:first-child"
    assert words(page, f"{clause} .do") == ["Do: Run some thing --new and not nvidia-smi -q."]
    assert words(page, f"{clause} .do .command") == ["some thing --new"]


def test_data_is_text_and_never_markup(page: Page, served: Serve) -> None:
    evil = "<img src=x onerror=alert(1)>"
    status = example()
    for one in (*status["headline"], *status["findings"], *status["groups"], *status["events"]):
        one["text"] = evil
    status["jobs"][0]["title"] = status["gpus"][0]["who"] = status["machine"]["host"] = evil
    server = served(status)
    arrive(page, server)
    assert set(words(page, "#headline .words")) == {evil}
    assert page.run("document.querySelector('img')") is None


def test_a_gpus_evidence_is_all_that_is_known_of_it(page: Page, served: Serve) -> None:
    status = example()
    arrive(page, served(status), "#gpu=3")
    page.until(lambda p: p.run(OPEN), "the evidence opens")
    assert words(page, "#evidence .lead")[0].startswith("lost since ")
    assert words(page, "#evidence .problems > li > div > .words") == [
        "GPU 3 is lost: 7 of 8 respond"
    ]
    gpu = status["gpus"][2]
    page.run(f"location.hash = '#gpu={gpu['uuid']}'")
    page.until(lambda p: p.text("#evidence-title") == "GPU 2", "another GPU")
    shown = " ".join(words(page, "#evidence-body"))
    process = gpu["processes"][0]
    for text in (
        *gpu["why"],
        gpu["do"].replace("`", ""),
        gpu["basis"],
        gpu["uuid"],
        f"{process['program']}, pid {process['pid']}, of {process['user']}, 65.8 GiB",
        "121 of 700 W",
        "hung10 % of 5 min",
    ):
        assert text in shown, text


def test_a_strip_shows_the_moment_under_the_pointer(page: Page, served: Serve) -> None:
    arrive(page, served(example()))
    page.run("""(() => {
      const strip = document.querySelector('[data-gpu="0"] .strip').getBoundingClientRect();
      document.querySelector('[data-gpu="0"] .row').dispatchEvent(new PointerEvent('pointermove', {
        bubbles: true, clientX: strip.right - strip.width / 9, clientY: strip.top + 5 }));
    })()""")
    assert re.fullmatch(r"GPU 0, \d\d:\d\d:\d\d, 1 min ago: busy 100 %", page.text("#tip"))
    assert words(page, "#legend li")[-1].startswith("hung")


def test_two_runs_of_a_job_are_compared(page: Page, served: Serve) -> None:
    status = example()
    run: Json = {
        "id": "1230", "name": "train", "job_id": "1230", "title": "train", "gpus": [{}, {}],
        "seconds": 7200.0, "mean_steps_per_second": 4.0, "gpu_seconds": {"busy/none": 3600.0},
        "tensor_throughput": None, "joules": 3.6e6, "cost": None,
    }  # fmt: skip
    shares = {"busy/none": 1800.0, "starved/disk": 1800.0}
    now = {**run, "id": "1234", "job_id": "1234", "mean_steps_per_second": 2.0}
    server = served(status)
    documents = {"running": [{**now, "gpu_seconds": shares}], "ended": [run]}
    server.documents = {**server.documents, "/api/v1/jobs": documents}
    arrive(page, server)
    assert page.all("#jobs a[href^='#compare']", "href") == ["#compare=1230,1234"]
    for link in ("#compare=1230,1234", "#compare=1234"):
        page.run(f"location.hash = '{link}'")
        page.until(lambda p: p.run("document.querySelector('#compare').open"), "opens")
        rows = words(page, "#compare tr")
        assert "steps a second42\N{MINUS SIGN}50 %" in rows
        assert "at work100 %50 %\N{MINUS SIGN}50 points" in rows
        assert "starved by disk0 %50 %+50 points" in rows
        assert "of the tensor peaknot knownnot known" in rows
        page.run("document.querySelector('#compare').close()")
        page.until(lambda p: not p.run("location.hash"), "closed")


HOUR_OF_NINE_MINUTES = Path(__file__).with_name("hour_of_nine_minutes.js").read_text("utf-8")
"""Two GPUs of which the last nine minutes of an hour are recorded; what is said of it."""


def test_an_hour_that_was_recorded_in_part_is_drawn_in_part(page: Page, served: Serve) -> None:
    server = served(example())
    page.go(f"{server.address}?still")
    page.until(lambda p: p.all("body", "data-feed") == ["still"], "drawn")
    page.run("document.getElementById('day-section').hidden = false")
    assert page.run(HOUR_OF_NINE_MINUTES).endswith("nothing is recorded before 00:51")
    drawn = """(({ width }, pen) => [...pen.getImageData(0, 5, width, 1).data]
      .filter((one, place) => place % 4 === 3 && one).length / width)(
      ...[[...document.querySelectorAll('#day canvas')].at(-2)]
      .flatMap((one) => [one, one.getContext('2d')]))"""
    page.until(lambda p: p.run(drawn), "the hour")
    assert 0.1 < page.run(drawn) < 0.2


def test_the_history_before_a_page_was_opened_is_drawn(page: Page, served: Serve) -> None:
    server = served(example())
    arrive(page, server)
    inked = """(() => {
      const { width, height } = document.querySelector('[data-gpu="0"] .strip');
      const pen = document.querySelector('[data-gpu="0"] .strip').getContext('2d');
      const { data } = pen.getImageData(0, height - 1, width, 1);
      return [...Array(width).keys()].filter((x) => data[4 * x + 3]).length / width;
    })()"""
    page.until(lambda p: p.run(inked) > 0.25, "a third of 15 minutes")
    assert history(server.status)["slots"] == 300
