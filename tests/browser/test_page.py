"""The page itself: its policy, who can use it, and on what width."""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from socket import gethostname

import pytest

from tests.browser.axe import grave
from tests.browser.chromium import Chromium
from tests.browser.page import NARROW, WIDE, Page
from tests.stack.fleet import Fleet

pytestmark = pytest.mark.browser

MACHINES = {
    "mesh": "dgx-1-v100:nvlink-down",
    "switch": "dgx-h100:starved-disk",
    "lost": "dgx-station-v100:gpu-lost",
    "single": "titan-x-pascal:held",
}
PHONE = (360, 740)
SIZES = {"wide": WIDE, "phone": PHONE, "narrow": NARROW}

SHOWN = "[...document.querySelectorAll('.lead:not([hidden])')].map((lead) => lead.textContent)"
OPEN = "document.querySelector('#evidence').open"
FOCUSED = "document.activeElement.textContent"
CAUGHT = """new Promise((resolve) => {
  const caught = [];
  document.addEventListener('securitypolicyviolation', (e) => caught.push(e.effectiveDirective));
  const add = (tag, fill) => {
    const node = document.createElement(tag);
    fill(node);
    document.body.append(node);
  };
  add('script', (node) => { node.textContent = 'globalThis.ran = true'; });
  add('style', (node) => { node.textContent = 'body { display: none }'; });
  add('img', (node) => { node.src = 'http://localhost:1/x.png'; });
  add('iframe', (node) => { node.src = 'http://localhost:1/'; });
  fetch('http://localhost:1/').catch(() => 0);
  setTimeout(() => resolve([caught, globalThis.ran === true]), 500);
})"""


@pytest.fixture(scope="module")
def fleet(machines: Callable[..., Fleet]) -> Fleet:
    return machines(1, **MACHINES)


@pytest.fixture
def page(chromium: Chromium) -> Iterator[Page]:
    with Page(chromium) as tab:
        yield tab


HOUR_OF_NINE_MINUTES = """import('/day.js').then(async ({ followDay }) => {
  const [now, of] = [new Date(), { 'starved/disk': 540 }];
  now.setHours(1, 30);
  const hour = Math.floor(now / 3.6e6) - 1;
  const rows = [{ seconds: of }, { seconds: of }];
  const found = { hours: [{ hour, rows, gpus: { a: of, b: of } }] };
  window.fetch = async () => ({ ok: true, json: async () => found });
  await followDay(document.getElementById('day'), () => now / 1000);
  return document.querySelector('#day + .key').textContent;
})"""
"""Two GPUs of which the last nine minutes of an hour are recorded; what is said of it."""


def says(place: str, words: str, page: Page) -> bool:
    return words in page.text(place).replace("\u00a0", " ")


def arrive(page: Page, address: str) -> None:
    page.go(address)
    page.until(lambda p: p.all(".tile", "data-gpu"), "tiles")
    page.until(lambda p: p.all("body", "data-feed") == ["live"], "live")


@pytest.mark.parametrize("name", MACHINES)
def test_nothing_is_asked_of_another_origin_and_nothing_complains(
    page: Page, fleet: Fleet, name: str
) -> None:
    address = fleet.page(name)
    arrive(page, address)
    page.run("document.querySelector('.tile button').click()")
    page.run("new Promise((done) => setTimeout(done, 1500))")
    strangers = [url for url in page.requests if not url.startswith((address, "about:", "data:"))]
    assert strangers == []
    assert page.errors == []


def test_a_still_page_is_whole_when_it_has_loaded(page: Page, fleet: Fleet) -> None:
    """It opens no stream, which would keep a browser's virtual time from passing."""
    arrive(page, fleet.page("switch"))
    page.requests.clear()
    page.go(f"{fleet.page('switch')}?still")
    page.until(lambda p: p.run("document.readyState") == "complete", "loaded")
    assert "starved" in page.text("#headline")
    assert len(page.all(".tile", "data-gpu")) == 8
    assert page.text("#feed-words").startswith("as of ")
    assert page.run("""document.querySelector('.tile canvas').getContext('2d')
      .getImageData(0, 0, 9999, 9).data.some(Boolean)""")
    assert not [url for url in page.requests if "api/v1/stream" in url]


def test_states_have_one_name_and_what_is_opened_stays_open(page: Page, fleet: Fleet) -> None:
    arrive(page, fleet.page("switch"))
    places = "#legend", ".lead .state", "#jobs", "#headline"
    page.until(lambda p: all("starved by disk" in p.text(w) for w in places), "one name")
    assert "metrics not known" in page.text("#unmeasured")
    assert "GPU-hours: " in page.text("#jobs")
    assert "notifies, does not page" in page.text("#headline")
    page.run("""document.querySelectorAll('.paths details').forEach((one) => {
      one.open = !one.open; one.dataset.was = one.open; })""")
    updated = page.text("#updated")
    page.until(lambda p: p.text("#updated") != updated, "another tick")
    page.run("new Promise((done) => setTimeout(done, 600))")
    assert page.run("""[...document.querySelectorAll('.paths details')]
      .every((one) => String(one.open) === one.dataset.was)""")


def test_the_policy_is_set_and_holds(page: Page, fleet: Fleet) -> None:
    address = fleet.page("single")
    arrive(page, address)
    policy = {k.lower(): v for k, v in page.headers[address].items()}["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    caught, ran = page.run(CAUGHT)
    wanted = {"script-src-elem", "style-src-elem", "img-src", "frame-src", "connect-src"}
    assert wanted <= set(caught)
    assert not ran


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["mesh", "lost"])
def test_the_page_is_accessible(page: Page, fleet: Fleet, name: str, theme: str) -> None:
    page.use_theme(theme)
    arrive(page, fleet.page(name))
    page.run("document.querySelector('details').open = true")
    assert grave(page) == []
    page.run("document.querySelector('.tile button').click()")
    assert page.run(OPEN)
    assert grave(page) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_runbook_is_read_on_a_phone(page: Page, fleet: Fleet, theme: str) -> None:
    page.use_theme(theme)
    page.resize(PHONE)
    page.go(f"{fleet.page('mesh')}runbook.html")
    page.until(lambda p: p.run("document.querySelectorAll('h2').length > 5"), "the runbook")
    assert grave(page) == []
    assert page.run("document.documentElement.scrollWidth") == PHONE[0]


def test_a_keyboard_is_enough(page: Page, fleet: Fleet) -> None:
    arrive(page, fleet.page("mesh"))
    for _ in range(14):  # what the banner and the findings link to comes first
        page.press("Tab")
        if page.run(FOCUSED) == "GPU 2":
            break
    assert page.run(FOCUSED) == "GPU 2"
    page.press("Enter")
    page.until(lambda p: p.run(OPEN), "the evidence opens")
    assert page.text("#evidence-title") == "GPU 2"
    assert page.run("document.querySelector('#evidence').contains(document.activeElement)")
    page.press("Tab")
    assert page.run("document.activeElement.closest('.tile')") is None, "the rest is out of reach"
    page.press("Escape")
    page.until(lambda p: not p.run(OPEN), "the evidence closes")
    assert page.run(FOCUSED) == "GPU 2"


@pytest.mark.parametrize("name", MACHINES)
def test_a_phone_needs_no_sideways_scrolling(page: Page, fleet: Fleet, name: str) -> None:
    page.resize(PHONE)
    arrive(page, fleet.page(name))
    assert page.run("document.documentElement.scrollWidth") == PHONE[0]
    page.run("document.querySelector('.tile button').click()")
    assert page.run("document.querySelector('#evidence').scrollWidth") <= PHONE[0]


@pytest.mark.parametrize("size", [(1000, 800), NARROW])
def test_the_first_screen_answers(page: Page, fleet: Fleet, size: tuple[int, int]) -> None:
    """The first screen shows machine, GPU, cause, begin, advice and job without scrolling."""
    page.resize(size)
    arrive(page, fleet.page("switch"))
    page.until(lambda p: "starved by disk" in p.text("#headline"), "the verdict")
    host = gethostname()
    assert page.text("#title") == host
    assert page.run("document.title").startswith(f"{host}: 8 GPUs starved by disk")
    assert "read less" in page.text(".verdict .do").lower()
    page.until(  # GPUs are judged by turns: what is alike is said once soon after
        lambda p: [text[:27] for text in p.run(SHOWN) if text] == ["All 8 GPUs: starved by disk"],
        "one sentence for GPUs that are alike",
    )
    first = "[...document.querySelectorAll('.row')][0].getBoundingClientRect().bottom"
    assert page.run(first) <= size[1]
    assert re.fullmatch(r"pid \d+", page.text(".who"))
    assert re.fullmatch(r"\d\d:\d\d:\d\d", page.text("#updated"))
    folded = "[...document.querySelectorAll('#paths details')].filter((p) => !p.open).length"
    assert page.run(folded) > 0, "paths at rest are one line"


def test_a_strip_shows_the_moment_under_the_pointer(page: Page, fleet: Fleet) -> None:
    arrive(page, fleet.page("switch"))
    page.until(lambda p: "disk since" in p.text(".lead .state"), "it stands")
    page.run("new Promise((done) => setTimeout(done, 4000))")
    page.run("""(() => {
      const strip = document.querySelector('.strip').getBoundingClientRect();
      document.querySelector('.row').dispatchEvent(new PointerEvent('pointermove', {
        bubbles: true, clientX: strip.right - 1, clientY: strip.top + 5 }));
    })()""")
    assert page.text("#tip").startswith("GPU 0, ")
    assert "starved by disk" in page.text("#tip")


def test_nodes_are_used_again(page: Page, fleet: Fleet) -> None:
    arrive(page, fleet.page("switch"))
    page.run("for (const node of document.querySelectorAll('.tile, tr, .node')) node.known = true")
    first = page.text("#updated")
    page.until(lambda p: p.text("#updated") not in {first, ""}, "another tick")
    fresh = "[...document.querySelectorAll('.tile, tr, .node')].filter((n) => !n.known).length"
    assert page.run(fresh) == 0


def test_nothing_is_drawn_while_the_page_is_hidden(page: Page, fleet: Fleet) -> None:
    arrive(page, fleet.page("single"))
    turn = """(hidden) => {
      Object.defineProperty(document, 'hidden', { configurable: true, get: () => hidden });
      document.dispatchEvent(new Event('visibilitychange'));
    }"""
    page.run(f"({turn})(true)")
    page.run("new Promise((done) => setTimeout(done, 300))")  # what was due is drawn
    shown = page.text("#updated")
    page.run("new Promise((done) => setTimeout(done, 1500))")
    assert page.text("#updated") == shown
    page.run(f"({turn})(false)")
    page.until(lambda p: p.text("#updated") != shown, "it catches up")


def test_what_was_before_the_page_opened_is_drawn(page: Page, fleet: Fleet) -> None:
    arrive(page, fleet.page("switch"))
    inked = """(() => {
      const strip = document.querySelector('.strip');
      const { width, height } = strip;
      const { data } = strip.getContext('2d').getImageData(0, height - 1, width, 1);
      return [...Array(width).keys()].filter((x) => data[4 * x + 3]).length / width;
    })()"""
    page.until(lambda p: p.run(inked) > 5 / 900, "the strip has more than this page has seen")


def test_screen_readers_hear_figures_only_when_their_meaning_changes(
    page: Page, fleet: Fleet
) -> None:
    arrive(page, fleet.page("single"))
    page.until(lambda p: "occupied" in p.text("#spoken"), "it is spoken")
    page.run("""globalThis.spoken = 0;
      new MutationObserver(() => { spoken += 1; })
        .observe(document.querySelector('#spoken'), {childList: true, characterData: true});""")
    before = page.text("#headline")
    page.until(lambda p: p.text("#headline") != before, "the figure in the sentence moves")
    assert "occupied" in page.text("#headline")
    assert page.run("spoken") <= 1  # `for 10 s` may join the sentence


def test_what_moves_a_little_is_not_0_per_cent(page: Page, fleet: Fleet) -> None:
    arrive(page, fleet.page("single"))
    flow = json.dumps({"ratio": 0, "bytes_per_second": 1e6, "limit": 3e10, "threshold": 0.8})
    found = page.run(f"""import('/paths.js').then((module) => {{
      const node = module.makeFlow();
      module.showFlow(node, {flow});
      return [node.textContent, node.firstChild.title];
    }})""")
    assert found == ["< 1 % 1 MB/s", "line: saturation threshold, 80 %"]


def test_data_is_text_and_never_markup(page: Page, fleet: Fleet) -> None:
    arrive(page, fleet.page("single"))
    evil = json.dumps({"sentence": "<img src=x onerror=alert(1)>"})
    found = page.run(f"""import('/problems.js').then((module) => {{
      const list = document.createElement('ul');
      module.showFindings(list, [{evil}], {{ banner: [], paths: [] }});
      return [list.textContent, list.querySelector('img')];
    }})""")
    assert found[0].startswith("<img src=x onerror=alert(1)>")
    assert found[1] is None


def test_a_link_opens_a_gpu_and_points_at_a_job_and_a_time(page: Page, fleet: Fleet) -> None:
    address = fleet.page("switch")
    arrive(page, f"{address}#gpu=3")
    page.until(lambda p: p.run(OPEN), "the evidence opens")
    assert page.text("#evidence-title") == "GPU 3"
    page.run("document.querySelector('#evidence').close()")
    page.until(lambda p: not p.run("location.hash"), "the address follows")
    page.until(lambda p: p.all(".job", "data-id"), "a job")
    pid = page.all(".job", "data-id")[0].rpartition("-")[2]
    page.run(f"location.hash = '#job={pid}'")
    page.until(lambda p: p.all(".job[data-pointed]", "data-id"), "the job, by its process")
    page.run("location.hash = '#t=' + new Date(Date.now() - 2000).toISOString()")
    page.until(lambda p: "GPU 7, " in p.text("#tip"), "every GPU at that time")
    page.run("location.hash = '#job=none-such'")
    page.until(lambda p: "No job none-such" in p.text("#link"), "that there is none")


def test_a_picture_says_what_it_draws_and_nothing_twice(
    chromium: Chromium, machines: Callable[..., Fleet]
) -> None:
    ill = "dgx-1-v100:starved-disk+nvlink-down+pcie-degraded"
    with Page(chromium, (1300, 1000)) as page:
        arrive(page, machines(4, ill=ill).page("ill"))
        page.until(lambda p: "not near its limit" in p.text(".faults"), "PCIe is read")
        page.until(lambda p: p.all("#events li", "data-level")[:1] == ["costly"], "its loss")
        for place, words in {
            "#headline": "GPU 0: NVLink 2 is down",
            "#events": "since the agent's start at ",
            "#graph-scale": "below 1 %GPU with a link down",
            "#paths-key": "saturation threshold (NVLink 85 %, PCIe 80 %",
            "[data-path=infiniband] summary": "4 x 100 Gb/s, all at full rate",
            "#absent": "GPU 0 link 2; GPU 3 link 0: not supported by this hardware",
            ".job-name": "GPUs 0-7, since ",
            ".lead": " or before",
        }.items():
            page.until(partial(says, place, words), place)
        assert "GPU 0: NVLink" not in page.text("#findings")
        assert page.all(".node[data-ring]", "data-gpu") == ["0", "3"]
        assert page.run(HOUR_OF_NINE_MINUTES).endswith("nothing is recorded before 00:51")
        drawn = """(({ width }, pen) => [...pen.getImageData(0, 5, width, 1).data]
          .filter((one, place) => place % 4 === 3 && one).length / width)(
          ...[[...document.querySelectorAll('#day canvas')].at(-2)]
          .flatMap((one) => [one, one.getContext('2d')]))"""
        page.until(lambda p: p.run(drawn), "the hour")
        assert 0.1 < page.run(drawn) < 0.2
        page.run("location.hash = '#gpu=0'")
        page.until(lambda p: p.run(OPEN), "the evidence opens")
        cures = page.text("#evidence .advice").split(" Also: ")
        firsts = [cure.split()[0] for cure in cures]
        assert firsts == ["Drain", "Nothing", "Read"], "of its faults and of its job"
