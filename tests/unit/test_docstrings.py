"""Docstrings begin with a verb (functions) or a noun (classes, modules), and name the actor."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from paths import ROOT
from sources import nodes

PACKAGE = ROOT / "pipeline"
QUESTION = re.compile(r"(What|Whether|How|Who|Whose|Whom|Where|When|Which|Why)\b")
PARTS = sorted(path for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir())


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    for node in nodes(path):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text.splitlines()[0]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_no_docstring_begins_as_a_question(part):
    results = [
        f"{path.relative_to(PACKAGE)}:{line}: {text}"
        for path in ([part] if part.is_file() else part.rglob("*.py"))
        if "_pb2" not in path.name
        for line, text in docstrings(path)
        if QUESTION.match(text)
    ]
    assert results == []
