"""Allowed imports: rooms in layers, and one place for each library."""

import ast
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from agent.status import model
from tests.support.repository import ROOT
from tests.support.source_code import CODE, breaches, files, imports, relative, tree

ROWS = re.findall(r"^\| (`[^|]*`) \|", (ROOT / "agent/README.md").read_text(), re.MULTILINE)
LAYERS = (
    *(
        room if above else f"agent.{room}"
        for row in ROWS
        for above, room in re.findall(r"`(\.\./)?(\w+)(?:\.py|/)`", row)
    ),
    "agent.__main__",
)
"""The rooms, lowest first, as agent/README.md lists them: a room imports only what stands before
it. Data flows the same way."""

IMPORTS = tomllib.loads(Path(__file__).with_name("layers.toml").read_text(encoding="utf-8"))
SHOWING = ("alerts", "dashboards", "exporters")
CLOSED = {
    room: (*closed, *(IMPORTS["running"] if room in SHOWING else ()))
    for room, closed in IMPORTS["closed"].items()
}
"""Imports that are forbidden to a room although they stand lower, or are libraries."""


def layer(module: str) -> int | None:
    """The place of a module in LAYERS; None for the root of the package and for libraries."""
    found = [n for n, room in enumerate(LAYERS) if module == room or module.startswith(f"{room}.")]
    return found[0] if found else None


def module_of(path: Path) -> str:
    return relative(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def test_every_room_has_a_place() -> None:
    homeless = {module_of(path) for path in files(*CODE) if layer(module_of(path)) is None} - {
        "agent"
    }
    assert homeless == set()


@pytest.mark.parametrize("room", LAYERS)
def test_a_room_imports_only_lower_ones(room: str) -> None:
    mine = LAYERS.index(room)
    paths = [path for path in files(*CODE) if layer(module_of(path)) == mine]
    assert paths, f"{room} is gone: move its rule"
    found = [
        str(i)
        for path in paths
        for i in imports(path)
        if ((theirs := layer(i.module)) is not None and theirs > mine)
        or i.reaches(*CLOSED.get(room, ()))
    ]
    assert found == []


def test_no_files_import_each_other_in_a_circle() -> None:
    """Nor for their types alone."""
    needs = {module_of(path): {i.module for i in imports(path)} for path in files(*CODE)}
    packages = {relative(path.parent).replace("/", ".") for path in files(*CODE)}
    known = needs.keys() - packages
    sorter = TopologicalSorter({one: (its & known) - {one} for one, its in needs.items()})
    sorter.prepare()  # raises CycleError, which names the files


def test_no_part_of_the_diagnosis_writes_into_another() -> None:
    """What a part needs is an argument, and what it finds a result."""
    found = [
        f"{relative(path)}:{node.lineno}"
        for path in files("agent/diagnosis", "agent/jobs")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Attribute)
    ]
    assert found == []


def test_the_model_stands_on_the_standard_library_alone() -> None:
    modules = {found.module.split(".")[0] for found in imports(ROOT / "agent/model.py")}
    modules |= {found.module.split(".")[0] for found in imports(ROOT / "agent/ranges.py")}
    assert modules - {"agent"} <= sys.stdlib_module_names


SHARED_SOURCES = {"agent.sources", "agent.sources.context"}


def test_a_source_imports_no_other() -> None:
    found = [
        str(i)
        for path in files("agent/sources")
        if path.name != "table.py"
        for i in imports(path)
        if i.reaches("agent.sources") and i.module not in SHARED_SOURCES
    ]
    assert found == []


LIBRARIES = {library: tuple(places) for library, places in IMPORTS["libraries"].items()}
"""Each library has one place."""


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_has_one_place(library: str) -> None:
    found = [
        str(i)
        for path in files(*CODE)
        for i in imports(path)
        if i.reaches(library) and not i.within.startswith(LIBRARIES[library])
    ]
    assert found == []


def test_code_does_not_import_tests() -> None:
    forbidden = ("tests", "pytest", "hypothesis")
    assert [b for path in files(*CODE) for b in breaches(path, *forbidden)] == []


def test_only_the_command_line_imports_itself() -> None:
    found = [
        str(i)
        for path in files(*CODE)
        for i in imports(path)
        if i.reaches("agent.__main__", "agent.cli")
        and i.within != "agent/__main__.py"
        and not i.within.startswith("agent/cli/")
    ]
    assert found == []


def test_a_laptop_without_extras_can_import_everything_but_boards() -> None:
    modules = [
        relative(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        for path in files(*CODE)
        if path.name != "__main__.py" and not relative(path).startswith("dashboards/")
    ]
    code = f"import sys; sys.modules['grafanalib'] = None\nimport {', '.join(modules)}"
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize(
    "module", ["agent.polling.gpu_watch", "agent.polling.poller", "agent.sources.table"]
)
def test_modules_can_be_imported_alone(module: str) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", f"import {module}"], cwd=ROOT, check=True)


TEXTS = frozenset(
    {"text", "brief", "do", "note", "why", "doubts", "hours", "money", "saving", "rates", "limits"}
    | {"highest", "meaning", "detail", "divided", "sound", "unknown", "sentence", "evidence"}
)
"""Fields of the status, and of what it is made of, that are for people."""

READS = frozenset({"startswith", "endswith", "removeprefix", "removesuffix", "find", "index"})
READS |= {"split", "partition", "rpartition", "match", "search", "fullmatch", "findall", "sub"}


def texts_in(node: ast.AST) -> list[str]:
    return [n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute) and n.attr in TEXTS]


def read(node: ast.AST) -> list[str]:
    """The fields for people that this expression compares or searches."""
    if isinstance(node, ast.Compare):
        whole = [*map(type, node.ops)]
        if set(whole) <= {ast.Is, ast.IsNot}:
            return []
        return [n for part in (node.left, *node.comparators) for n in texts_in(part)]
    called = node.func if isinstance(node, ast.Call) else None
    if isinstance(node, ast.Call) and isinstance(called, ast.Attribute) and called.attr in READS:
        return [n for part in (called.value, *node.args) for n in texts_in(part)]
    return []


OF_THE_KERNEL = "kernel_lines"
"""The function that reads lines of the kernel's log, which no part of the agent writes."""


def own_nodes(module: ast.Module) -> list[ast.AST]:
    functions = [n for n in module.body if isinstance(n, ast.FunctionDef)]
    apart = [n for f in functions if f.name == OF_THE_KERNEL for n in ast.walk(f)]
    return [node for node in ast.walk(module) if node not in apart]


@pytest.mark.parametrize("room", ["exporters", "agent/cli"])
def test_no_text_for_people_is_read(room: str) -> None:
    found = [
        f"{relative(path)}:{getattr(node, 'lineno', 0)} {name}"
        for path in files(room)
        for node in own_nodes(tree(path))
        for name in read(node)
    ]
    assert found == []


def test_the_search_finds_what_it_is_for() -> None:
    for code in ("x.text in y", "a.do == b.do", "f.text.startswith('x')", "re.search('x', g.text)"):
        assert [name for node in ast.walk(ast.parse(code)) for name in read(node)], code
    assert not [n for node in ast.walk(ast.parse("x.do is None")) for n in read(node)]


def test_the_status_has_the_fields_that_are_looked_for() -> None:
    structs = [one for one in vars(model).values() if hasattr(one, "__struct_fields__")]
    fields = {name for one in structs for name in one.__struct_fields__}
    assert {"text", "brief", "do", "note", "why", "saving", "limits"} <= fields & TEXTS
