"""The page's files: light, in step with what the agent and the boards say. Needs no browser."""

import re

from agent.model import PAIRS, Cause
from agent.status.model import Level
from dashboards.board import STATES
from tests.support.repository import ROOT

STATIC = ROOT / "exporters/live/static"
RUNBOOK = "runbook.html"  # read by itself, by who follows the link of an alert
HEAVIEST = 150_000  # bytes of all other files together
LONGEST = 250  # lines of a module
MOST = 1600  # lines of all modules


def text(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def test_the_page_is_light() -> None:
    weight = sum(path.stat().st_size for path in STATIC.iterdir() if path.name != RUNBOOK)
    print(f"{weight} bytes in {len(list(STATIC.iterdir()))} files")
    assert weight < HEAVIEST


def test_nothing_comes_from_elsewhere() -> None:
    namespaces = "http://www.w3.org/"
    for path in STATIC.iterdir():
        found = re.findall(r"(?:https?:)?//[a-z][\w.]*\.[\w./]*", path.read_text(encoding="utf-8"))
        assert [url for url in found if not url.startswith(namespaces)] == [], path.name


def test_no_data_becomes_markup() -> None:
    doors = re.compile(r"(inner|outer|insertAdjacent)HTML|document\.write|\beval\b|Function\(")
    found = [path.name for path in STATIC.glob("*.js") if doors.search(text(path.name))]
    assert found == []
    assert "style=" not in text("index.html")


def test_every_state_is_drawn_in_its_own_way() -> None:
    block = re.search(r"FORMS = \{(.*?)\};", text("states.js"), re.DOTALL)
    assert block
    forms = dict(re.findall(r'"([a-z_]+/[a-z_]+)": "(\w+)"', block[1]))
    plain = {"busy/none", "idle/none"}
    assert set(forms) | plain == {f"{state}/{cause}" for state, cause in PAIRS}
    assert set(forms.values()) <= set(re.findall(r"(\w+): \[\[", text("states.js")))


def test_every_state_and_level_has_a_symbol() -> None:
    drawn = set(re.findall(r'<symbol id="(\w+)"', text("index.html")))
    shapes = {state.value for state, _ in PAIRS} | {"lost", "unknown"}
    assert shapes | {level.value for level in Level} <= drawn


def test_colours_of_states_are_those_of_the_boards() -> None:
    shown = dict(re.findall(r"--([a-z_-]+): (#[0-9A-F]{6});", text("style.css").split("}")[0]))
    for (state, cause), colour in STATES.items():
        name = state.value if cause is Cause.NONE else f"{state.value}-{cause.value}"
        assert shown[name] == colour, name


def test_modules_are_short() -> None:
    lengths = {path.name: len(text(path.name).splitlines()) for path in STATIC.glob("*.js")}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST} == {}
    assert sum(lengths.values()) <= MOST


DECISIONS = re.compile(
    r"\b(?:starts|ends)With\(|\.match\(|\.matchAll\(|\.search\(|\.test\(|\.exec\(|\bRegExp\b"
    r"|(?:text|do|brief|meaning|why|note)\??\.(?:includes|indexOf|slice|length|replace)\("
    r"|\.(?:text|do|brief|meaning|note)\s*[!=]==?"
)


def test_scripts_read_no_text() -> None:
    """Texts are for people: no script compares one, or looks for words in it. One regular
    expression binds a figure to its unit: typography."""
    scripts = {path.name: text(path.name) for path in STATIC.glob("*.js")}
    found = {name: DECISIONS.findall(script) for name, script in scripts.items()}
    assert {name: words for name, words in found.items() if words} == {"dom.js": ["text.replace("]}
    literal = re.compile(r"(?<=[(=,:] )/(?![/*])[^/\n]+/|\(/(?![/*])[^/\n]+/")
    expressions = {name: len(literal.findall(script)) for name, script in scripts.items()}
    assert {name: count for name, count in expressions.items() if count} == {"dom.js": 1}
