"""Parts of PromQL expressions, as a parser finds them."""

from collections.abc import Iterator

import promql_parser as promql

Above = tuple[object, ...]
"""What stands above a part, the nearest first."""


def walk(node: object, above: Above = ()) -> Iterator[tuple[object, Above]]:
    """Every part of an expression, with what stands above it."""
    yield node, above
    inner = [getattr(node, name, None) for name in ("expr", "lhs", "rhs", "param")]
    for part in (*inner, *getattr(node, "args", ())):
        if isinstance(part, promql.Expr):
            yield from walk(part, (node, *above))
    if isinstance(node, promql.MatrixSelector):
        yield from walk(node.vector_selector, (node, *above))


def selectors(expr: str) -> Iterator[tuple[promql.VectorSelector, Above]]:
    """The vector selectors of an expression, with what stands above them."""
    for node, above in walk(promql.parse(expr)):
        if isinstance(node, promql.VectorSelector):
            yield node, above
