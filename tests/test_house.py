"""The style guide, executable: who may import whom, how large things are, what they are called."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

import pytest

from agent.catalogue import METRICS
from agent.model import GPU_LABELS, Kind

ROOT = Path(__file__).parents[1]
CODE = ("agent", "exporters", "dashboards", "alerts")
TOP = {"pyproject.toml", *CODE, "tests", "deploy", "README.md", "LICENSE", "uv.lock"}
"""DESIGN: the top level is fixed; dot-files, a lock file and a licence may stand beside."""

LONGEST_FILE = 400
LONGEST_FUNCTION = 40
MEDIAN_FUNCTION = 12
GENERIC = {"utils", "util", "helpers", "helper", "manager", "base", "common", "misc"}


@dataclass(frozen=True)
class Import:
    """One imported module, by its full name."""

    module: str
    within: str  # the file that imports it, relative to the root
    line: int

    def __str__(self) -> str:
        return f"{self.within}:{self.line} imports {self.module}"

    def reaches(self, *modules: str) -> bool:
        return any(self.module == m or self.module.startswith(f"{m}.") for m in modules)


def files(*rooms: str) -> list[Path]:
    return sorted(path for room in rooms for path in (ROOT / room).rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").exists() or path.is_dir()


def imports(path: Path) -> Iterator[Import]:
    """Every import of a file, also those inside functions; `from a import b` is a.b if a module."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, relative(path), node.lineno)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{relative(path)}:{node.lineno}: imports are absolute"
            module = node.module or ""
            yield Import(module, relative(path), node.lineno)
            for alias in node.names:
                if module.split(".")[0] in (*CODE, "tests") and is_module(f"{module}.{alias.name}"):
                    yield Import(f"{module}.{alias.name}", relative(path), node.lineno)


def breaches(path: Path, *forbidden: str) -> list[str]:
    return [str(found) for found in imports(path) if found.reaches(*forbidden)]


BOUNDARIES = {
    "agent/model.py": ("agent", *CODE[1:], "aiohttp", "prometheus_client", "psutil", "pynvml"),
    "agent/clock.py": CODE,
    "agent/sources": (
        *("pynvml", "psutil", "aiohttp", "subprocess", "exporters", "dashboards", "alerts"),
        *("agent.poller", "agent.assembly", "agent.commands", "agent.config", "agent.catalogue"),
        *("agent.backends.simulated", "agent.backends.tape"),
    ),
    "agent/backends": (
        *("agent.sources", "agent.poller", "agent.gpus", "agent.assembly", "agent.commands"),
        *("agent.specs", "exporters", "dashboards", "alerts", "aiohttp"),
    ),
    "agent/specs": ("agent.backends", "agent.sources", "exporters", "dashboards", "alerts"),
    "agent/poller.py": ("agent.sources", "agent.backends", "agent.gpus", "exporters", "aiohttp"),
    "agent/lane.py": ("agent.sources", "agent.backends", "agent.gpus", "exporters", "aiohttp"),
    "exporters": (
        *("agent.poller", "agent.gpus", "agent.backends", "agent.assembly", "agent.commands"),
        *("agent.lane", "agent.agenda", "agent.reads", "agent.probe"),
        *("dashboards", "alerts", "pynvml", "psutil"),
    ),
    "dashboards": ("exporters", "agent.backends", "agent.poller", "agent.gpus", "agent.commands"),
    "alerts": (
        *("exporters", "dashboards", "agent.backends", "agent.poller", "agent.gpus"),
        "agent.commands",
    ),
}
"""What a file, or all files of a folder, must not import. Names of modules, with all below."""


@pytest.mark.parametrize("place", BOUNDARIES)
def test_stays_in_its_room(place: str) -> None:
    path = ROOT / place
    found = [path] if path.is_file() else files(place)
    assert found, f"{place} is gone: move its rule"
    assert [b for file in found for b in breaches(file, *BOUNDARIES[place])] == []


def test_the_model_stands_on_the_standard_library_alone() -> None:
    modules = {found.module.split(".")[0] for found in imports(ROOT / "agent/model.py")}
    assert modules <= sys.stdlib_module_names


SHARED_SOURCES = {"agent.sources", "agent.sources.options"}


def test_a_source_imports_no_other() -> None:
    found = [
        str(i)
        for path in files("agent/sources")
        if path.name != "table.py"
        for i in imports(path)
        if i.reaches("agent.sources") and i.module not in SHARED_SOURCES
    ]
    assert found == []


LIBRARIES = {
    "pynvml": ("agent/backends/",),
    "psutil": ("agent/backends/host.py",),
    "grafanalib": ("dashboards/panels.py",),
    "aiohttp": ("exporters/",),
    "prometheus_client": ("exporters/",),
    "yaml": ("alerts/", "exporters/web_yaml.py"),
    "bcrypt": ("exporters/passwords.py",),
    "subprocess": ("agent/commands/",),
}
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


def test_nobody_imports_the_command_line_but_itself() -> None:
    found = [
        str(i)
        for path in files(*CODE)
        for i in imports(path)
        if i.reaches("agent.__main__", "agent.commands")
        and i.within != "agent/__main__.py"
        and not i.within.startswith("agent/commands/")
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


@pytest.mark.parametrize("module", ["agent.gpus", "agent.poller", "agent.sources.table"])
def test_modules_can_be_imported_alone(module: str) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", f"import {module}"], cwd=ROOT, check=True)


@pytest.mark.parametrize("path", files(*CODE, "tests"), ids=relative)
def test_a_file_tells_one_story(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(*rooms: str) -> Iterator[tuple[str, Function]]:
    for path in files(*rooms):
        for node in ast.walk(tree(path)):
            if isinstance(node, Function):
                yield f"{relative(path)}:{node.lineno} {node.name}", node


def length(function: Function) -> int:
    """Lines of a function without its docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function):
        first = function.body[0]
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def test_functions_are_short() -> None:
    found = [(where, length(node)) for where, node in functions(*CODE)]
    assert [entry for entry in found if entry[1] > LONGEST_FUNCTION] == []
    assert median(size for _, size in found) <= MEDIAN_FUNCTION


def words(name: str) -> set[str]:
    """`RateHelper`, `rate_helpers` -> rate, helper(s)."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name)}


def test_no_name_says_nothing() -> None:
    found = []
    for path in files(*CODE, "tests"):
        names = [path.stem, *(n.name for n in ast.walk(tree(path)) if isinstance(n, ast.ClassDef))]
        found += [f"{relative(path)}: {name}" for name in names if words(name) & GENERIC]
    assert found == []


@pytest.mark.parametrize("path", files(*CODE), ids=relative)
def test_what_is_public_is_explained(path: Path) -> None:
    module = tree(path)
    assert ast.get_docstring(module), "the file has no docstring"
    missing = [
        f"line {node.lineno}: {node.name}"
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef | Function)
        and not node.name.startswith("_")
        and (isinstance(node, ast.ClassDef) or is_long_and_outermost(node, module))
        and not ast.get_docstring(node)
    ]
    assert missing == []


def is_long_and_outermost(function: Function, module: ast.Module) -> bool:
    return function in module.body and length(function) > MEDIAN_FUNCTION


def test_prints_stand_in_commands_only() -> None:
    found = [
        f"{relative(path)}:{node.lineno}"
        for path in files(*CODE)
        if not relative(path).startswith(("agent/commands/", "agent/__main__.py"))
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
    ]
    assert found == []


UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|NotImplementedError|pytest\.mark\.skip\b")


def test_nothing_is_left_for_later() -> None:
    found = [
        f"{relative(path)}:{number}"
        for path in files(*CODE, "tests")
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert found == []


def test_tests_hand_fakes_in_and_patch_nothing() -> None:
    assert [b for path in files("tests") for b in breaches(path, "unittest", "mock")] == []


def test_the_top_level_is_what_was_agreed() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    names = {line.split("/")[0] for line in listed.stdout.splitlines()}
    names = names or {path.name for path in ROOT.iterdir()}
    assert {name for name in names if not name.startswith(".")} <= TOP


UNITS = {
    *("ratio", "watts", "joules", "celsius", "hertz", "bytes", "seconds", "ticks", "mode"),
    *("info", "second"),
}
COUNTABLE = re.compile(
    r"_(gpus|gpus_expected|processes|links|links_expected|up|state|failure|pending|generation"
    r"|generation_limit|width|width_limit|values|action|active|successful|process"
    r"|members|members_expected|cores|loaders|job|mounts"
    r"|errors_total|replays_total|rows_total|pages_total)$"
)
"""Metrics without a unit: counts and states, by what their name ends in."""

VENDOR_UNITS = re.compile(r"_(percent|milliwatts|mj|mhz|mib|kib|mb|gb|kb|ms|us|ns|ppm|watt)(_|$)")
IDENTITY = {
    *(*GPU_LABELS, "device", "port", "link", "source", "metric", "system", "path", "direction"),
    *("pid", "origin", "sensor", "job", "user", "runtime", "key"),
}
KINDS_OF = {
    *("state", "cause", "reason", "kind", "clock", "limit", "xid", "severity", "lifetime"),
    "resource",
}
"""Labels that tell apart the parts of one metric; each has few values."""


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_ends_in_its_base_unit(name: str) -> None:
    stem = name.removesuffix("_total")
    assert not VENDOR_UNITS.search(name), "base units only"
    assert stem.rsplit("_", 1)[-1] in UNITS or COUNTABLE.search(name), "neither unit nor count"


@pytest.mark.parametrize("metric", METRICS.values(), ids=str)
def test_labels_are_identity_only(metric: object) -> None:
    labels = metric.labels  # type: ignore[attr-defined]
    assert len(set(labels)) == len(labels)
    if {"gpu", "uuid"} & set(labels) and "path" not in labels:
        assert labels[:2] == GPU_LABELS, "GPU and UUID come first, and together"
    if not str(metric).endswith("_info"):
        assert set(labels) <= IDENTITY | KINDS_OF | {"name"}


@pytest.mark.parametrize("metric", METRICS.values(), ids=str)
def test_a_metric_says_what_it_means_and_where_it_comes_from(metric: object) -> None:
    meaning, origin = metric.meaning, metric.origin  # type: ignore[attr-defined]
    assert meaning.endswith((".", ")."))
    assert meaning[0].isupper() or meaning[0].isdigit()
    assert origin
    assert not origin.endswith(".")
    assert "\n" not in meaning + origin


def test_names_of_gpu_metrics_tell_that_they_are_of_a_gpu() -> None:
    per_gpu = [m for m in METRICS.values() if m.labels[:2] == GPU_LABELS]
    prefixes = ("dgx_gpu_", "dgx_nvlink_", "dgx_pcie_", "dgx_workload_")
    assert [m.name for m in per_gpu if not m.name.startswith(prefixes)] == []
    assert {m.kind for m in METRICS.values()} == set(Kind)
