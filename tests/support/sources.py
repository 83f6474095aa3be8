"""The sources of the package, parsed once in a process."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def parsed(path: Path) -> ast.Module:
    """Return the tree of a file, which its readers share and do not change."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Return all nodes of a file."""
    return list(ast.walk(parsed(path)))
