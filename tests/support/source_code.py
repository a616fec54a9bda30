"""The project's own source code, read as data: files, modules, imports."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.repository import ROOT

CODE = ("agent", "exporters", "dashboards", "alerts")


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


@cache
def imports(path: Path) -> tuple[Import, ...]:
    """Every import of a file, also those inside functions; `from a import b` is a.b if a module."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[Import]:
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
