"""Allowed imports: rooms in layers, and one place for each library."""

import ast
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

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
CLOSED = {
    room: (*closed, *(IMPORTS["running"] if room in ("alerts", "dashboards", "exporters") else ()))
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
    modules = {module_of(path) for path in files(*CODE)} - {"agent"}
    homeless = {module for module in modules if layer(module) is None}
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
