"""The core stays small: what a class may have at most, of methods and attributes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pipeline

ENGINE = Path(pipeline.__file__).parent / "engine"
MAX_METHODS = 25
MAX_ATTRIBUTES = 15
FILES = sorted(ENGINE.rglob("*.py"))


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield f"{file.relative_to(ENGINE)}:{node.name}", node


def attributes_of(found: ast.ClassDef) -> set[str]:
    """What its methods assign to `self`; the fields of a record are data."""
    return {
        node.attr
        for node in ast.walk(found)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


CLASSES = dict(classes())


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_of_the_core_is_small(name):
    methods = [
        n for n in CLASSES[name].body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert len(methods) <= MAX_METHODS
    assert len(attributes_of(CLASSES[name])) <= MAX_ATTRIBUTES


def test_the_core_is_found():
    assert {"engine.py:Engine", "executor.py:Executor", "op/dispatcher.py:OpDispatcher"} <= set(
        CLASSES
    )
