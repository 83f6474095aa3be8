"""Sizes: what a class and a function of `pipeline/` may have at most."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import sources

import pipeline

ROOT = Path(pipeline.__file__).parent
MAX_METHODS = 25
MAX_LINES = 60
MAX_ATTRIBUTES = 15  # of a class of the engine
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef

MAY_HAVE_MORE = {
    "dropin/client/httpclient.py:HttpClient",  # 25 are those of paddle_serving_client's
}


@functools.cache  # not when it is imported: every process that collects tests would parse all
def nodes() -> dict[str, list[ast.AST]]:
    """Return the classes and functions of each file that is not generated, by their names."""
    collected: dict[str, list[ast.AST]] = {}
    for file in sorted(ROOT.rglob("*.py")):
        if "_pb2" in file.name:
            continue
        where = file.relative_to(ROOT)
        for node in sources.nodes(file):
            if isinstance(node, ast.ClassDef | FUNCTION):
                collected.setdefault(f"{where}:{node.name}", []).append(node)
    return collected


def methods_of(found: ast.ClassDef) -> int:
    return sum(isinstance(node, FUNCTION) for node in found.body)


def attributes_of(found: ast.ClassDef) -> int:
    """Count what its methods assign to `self`; the fields of a record are data."""
    names = {
        node.attr
        for node in ast.walk(found)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    return len(names)


def lines_of(found: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert found.end_lineno is not None
    return found.end_lineno - found.lineno + 1


def nodes_that(kind: type | object, is_too_large) -> set[str]:
    return {
        name
        for name, group in nodes().items()
        if any(isinstance(node, kind) and is_too_large(node) for node in group)
    }


def test_a_class_has_few_methods():
    result = nodes_that(ast.ClassDef, lambda node: methods_of(node) > MAX_METHODS)
    assert result == MAY_HAVE_MORE


def test_a_class_of_the_engine_has_few_attributes():
    result = nodes_that(ast.ClassDef, lambda node: attributes_of(node) > MAX_ATTRIBUTES)
    assert {name for name in result if name.startswith("engine/")} == set()


def test_a_function_is_short():
    result = nodes_that(FUNCTION, lambda node: lines_of(node) > MAX_LINES)
    assert result == set()


def test_the_tree_is_found():
    assert {"cli/main.py:main", "engine/engine.py:Engine", "workers/thread.py:ThreadKind"} <= set(
        nodes()
    )
