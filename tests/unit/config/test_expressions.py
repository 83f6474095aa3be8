"""Expressions in values: what they stand for, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.yaml import MAX_FILE_BYTES, ExpressionError, Expressions

ENVIRON = {"A": "1", "EMPTY": "", "BYTES": "\udcff", "DOLLARS": "${A} $${A}"}


@pytest.fixture
def expand(tmp_path: Path):
    (tmp_path / "secret").write_text("hunter2\n")
    (tmp_path / "two").write_text("a\nb\r\n\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "large").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    return Expressions(ENVIRON, tmp_path).expand


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("${A}", "1"),
        ("x${A}y${A}", "x1y1"),
        ("${B:-2}", "2"),
        ("${EMPTY:-2}", "2"),
        ("${EMPTY}", ""),
        ("${B:-}", ""),
        ("${B:-a:-b c}", "a:-b c"),
        ("$${A}", "${A}"),
        ("$${A} ${A}", "${A} 1"),
        ("${DOLLARS}", "${A} $${A}"),
    ],
)
def test_a_variable_is_replaced(expand, text, expanded):
    result = expand(text)
    assert (result.text, result.is_secret) == (expanded, False)


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("${file:secret}", "hunter2"),
        ("redis://:${file:secret}@host", "redis://:hunter2@host"),
        ("${file:two}", "a\nb"),
        ("${file:absent:-none}", "none"),
    ],
)
def test_a_file_is_read_and_secret(expand, text, expanded):
    result = expand(text)
    assert (result.text, result.is_secret) == (expanded, True)


@given(st.text().filter(lambda text: "${" not in text))
def test_a_text_without_expressions_stays(text):
    assert Expressions(ENVIRON, Path()).expand(text) is None


@given(st.text())
def test_two_dollars_are_written_as_one(text):
    text = text.replace("${", "")
    result = Expressions(ENVIRON, Path()).expand(f"$${{{text}")
    assert result is not None
    assert result.text == f"${{{text}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${B}", "the environment variable B is not set; set it, or give a default: ${B:-...}"),
        ("${A", "${ without its }"),
        ("${BYTES}", "is not UTF-8 text"),
        ("${BYTES:-x}", "is not UTF-8 text"),
        ("${A:-${", "${ without its }"),
        ("${}", "expected the name of an environment variable or file:PATH"),
        ("${a b}", "${a b}: expected the name of an environment variable"),
        ("${1}", "write $${ for these two characters"),
        ("${file:absent}", "${file:absent}: No such file"),
        ("${file:folder}", "${file:folder}: it is not a file"),
        ("${file:binary}", "is not UTF-8 text"),
        ("${file:large}", f"larger than {MAX_FILE_BYTES} bytes"),
        ("${file:\0}", "null byte"),
    ],
)
def test_an_expression_without_a_value_is_an_error_with_the_reason(expand, text, said):
    with pytest.raises(ExpressionError) as caught:
        expand(text)
    assert said in str(caught.value)


def test_no_error_shows_the_contents_of_a_file(expand):
    with pytest.raises(ExpressionError) as caught:
        expand("${file:secret} ${B}")
    assert "hunter2" not in str(caught.value)
