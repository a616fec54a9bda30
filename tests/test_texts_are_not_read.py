"""No text for people is compared or searched in exporters and commands: they lay it out."""

import ast

import pytest

from agent.status import model
from tests.support.source_code import files, relative, tree

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
        if set(map(type, node.ops)) <= {ast.Is, ast.IsNot}:
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
