"""The file of a Python model, read before the model is loaded."""

from __future__ import annotations

import ast

import pytest

from pipeline.repository.backends.python import backend

MODEL = """
class TritonPythonModel:
    {}def execute(self, requests): ...
"""
HOOK = "def auto_complete_config(config): ...\n    "


@pytest.mark.parametrize(
    ("code", "has_hook"),
    [
        (MODEL.format(""), False),
        (MODEL.format(HOOK), True),
        ("from x import *", True),
        ("(", False),
    ],
)
def test_the_hook_is_seen_in_the_code_one_file_at_a_time(code, has_hook, tmp_path, monkeypatch):
    def parse(text):
        assert backend._PARSING.locked()  # two at a time fail each other in CPython 3.11
        return ast_parse(text)

    ast_parse = ast.parse
    monkeypatch.setattr(ast, "parse", parse)
    (tmp_path / "model.py").write_text(code)
    assert backend._has_hook(tmp_path / "model.py") is has_hook
    assert not backend._PARSING.locked()
