"""The style guide, executable: who may import whom, how large things are, what they are called."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from agent.catalogue import DECLARED, METRICS
from agent.jobs.identity import JobLabels
from agent.model import GPU_LABELS, Kind, Metric
from tests.stack.running import run_to_end
from tests.support.each import of_each
from tests.support.repository import ROOT
from tests.support.source_code import CODE, breaches, files, relative, tree

TOP = {
    "pyproject.toml",
    *CODE,
    "tests",
    "deploy",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "uv.lock",
}
"""DESIGN: the top level is fixed; dot-files, a lock file and a licence may stand beside."""

LONGEST_FILE = 400
LONGEST_FUNCTION = 40
MEDIAN_FUNCTION = 12
GENERIC = {"utils", "util", "helpers", "helper", "manager", "base", "common", "misc"}


def test_a_file_has_one_subject() -> None:
    lines = {path: path.read_text(encoding="utf-8").count("\n") for path in files(*CODE, "tests")}
    assert {relative(path): n for path, n in lines.items() if n > LONGEST_FILE} == {}


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


def test_what_is_public_is_explained() -> None:
    assert [relative(path) for path in files(*CODE) if not ast.get_docstring(tree(path))] == []
    missing = [
        f"{relative(path)}:{node.lineno} {node.name}"
        for path in files(*CODE)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef | Function)
        and not node.name.startswith("_")
        and (
            isinstance(node, ast.ClassDef)
            or (node in tree(path).body and length(node) > MEDIAN_FUNCTION)
        )
        and not ast.get_docstring(node)
    ]
    assert missing == []


MOST_PER_THOUSAND = {"what": 2, "where": 2, "ones?": 5, "whom?": 0.5}
"""Words of clauses that stand in the place of a noun, per thousand words of docstrings."""


def test_docstrings_name_their_subject() -> None:
    nodes = (node for path in files(*CODE) for node in ast.walk(tree(path)))
    values = (node.value for node in nodes if isinstance(node, ast.Expr))
    texts = [v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)]
    found = re.findall(r"[a-z]+", " ".join(texts).lower())
    used = {word: sum(bool(re.fullmatch(word, one)) for one in found) for word in MOST_PER_THOUSAND}
    most = {word: count * len(found) / 1000 for word, count in MOST_PER_THOUSAND.items()}
    assert {word: count for word, count in used.items() if count > most[word]} == {}


def test_a_public_class_name_stands_once() -> None:
    named: dict[str, list[str]] = {}
    for path in files(*CODE):
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                named.setdefault(node.name, []).append(relative(path))
    assert {name: places for name, places in named.items() if len(places) > 1} == {}


def test_prints_stand_in_commands_only() -> None:
    found = [
        f"{relative(path)}:{node.lineno}"
        for path in files(*CODE)
        if not relative(path).startswith(("agent/cli/", "agent/__main__.py"))
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
    listed = run_to_end(["git", "ls-files", "--cached", "--others", "--exclude-standard"])
    names = {line.split("/")[0] for line in listed.stdout.splitlines()}
    names = names or {path.name for path in ROOT.iterdir()}
    assert {name for name in names if not name.startswith(".")} <= TOP


UNITS = {"share": "ratio", "mean share": "ratio", "degrees celsius": "celsius"}
IN_UNITS = re.compile(
    r"(?:\bin |^)(watts|joules|degrees celsius|hertz|bytes|seconds)\b|^((?:mean )?share)\b",
    re.IGNORECASE,
)
"""The unit that the meaning of a metric states."""

VENDOR_UNITS = re.compile(r"_(percent|milliwatts|mj|mhz|mib|kib|mb|gb|kb|ms|us|ns|ppm|watt)(_|$)")
LABELS = tomllib.loads(Path(__file__).with_name("style.toml").read_text(encoding="utf-8"))
IDENTITY = {*GPU_LABELS, *JobLabels._fields, *LABELS["identity"]}
KINDS_OF = set(LABELS["kinds"])
"""Labels that distinguish the parts of one metric; each has few values. A declaration lists further
ones in `parts`."""


def test_no_metric_is_declared_twice() -> None:
    assert {*DECLARED} == {*METRICS.values()}


@of_each(METRICS.values())
def test_a_metric_is_named_by_the_base_unit_of_its_meaning(metric: Metric) -> None:
    assert re.fullmatch(r"dgx_[a-z0-9]+(_[a-z0-9]+)+", metric.name)
    assert (metric.kind is Kind.COUNTER) == metric.name.endswith("_total")
    assert not VENDOR_UNITS.search(metric.name), "base units only"
    for found in IN_UNITS.findall(metric.meaning):
        unit = "".join(found).lower()
        assert UNITS.get(unit, unit) in metric.name.split("_"), unit


@of_each(METRICS.values())
def test_labels_are_identity_only(metric: Metric) -> None:
    labels = metric.labels
    assert len(set(labels)) == len(labels)
    if {"gpu", "uuid"} & set(labels) and "path" not in labels:
        assert labels[:2] == GPU_LABELS, "GPU and UUID come first, and together"
    if not str(metric).endswith("_info"):
        assert set(labels) <= IDENTITY | KINDS_OF | {"name", *metric.parts}


@of_each(METRICS.values())
def test_a_metric_says_what_it_means_and_where_it_comes_from(metric: Metric) -> None:
    meaning, origin = metric.meaning, metric.origin
    assert meaning.endswith((".", ")."))
    assert meaning[0].isupper() or meaning[0].isdigit()
    assert origin
    assert not origin.endswith(".")
    assert "\n" not in meaning + origin


def test_names_of_gpu_metrics_show_that_they_are_of_a_gpu() -> None:
    per_gpu = [m for m in METRICS.values() if m.labels[:2] == GPU_LABELS]
    prefixes = ("dgx_gpu_", "dgx_nvlink_", "dgx_pcie_", "dgx_workload_")
    assert [m.name for m in per_gpu if not m.name.startswith(prefixes)] == []
    assert {m.kind for m in METRICS.values()} == set(Kind)


ODD = re.compile(
    r"\beach\s+(?:#\s+)?\d[\d.,]*\s?(?:ms|s|min|seconds?|minutes?|hours?|ticks?)\b"
    r"|ask(?:s|ed)?\s+for\s+service\b|pages\s+somebody\b|so\s+many\s+degrees"
)


def test_texts_say_every_15_s_and_open_a_support_case() -> None:
    rooms = (ROOT / room for room in (*CODE, "tests", "deploy", ".github"))
    found = [
        f"{relative(path)}: {' '.join(words[0].split())}"
        for path in (*ROOT.glob("*.md"), *(path for room in rooms for path in room.rglob("*.*")))
        if path.suffix in {".md", ".py", ".toml", ".js", ".sh", ".service"}
        for words in ODD.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []
