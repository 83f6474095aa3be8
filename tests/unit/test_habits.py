"""Our prose has none of the bad habits that `habits` finds."""

from __future__ import annotations

import habits
import pytest


def test_no_text_has_a_bad_habit():
    assert list(habits.hits()) == []


@pytest.mark.parametrize(
    ("name", "is_odd"),
    [
        ("test_what_is_missing_is_an_error", True),
        ("test_who_left_gets_no_answer", True),
        ("test_a_request_without_inputs_is_refused", False),
    ],
)
def test_odd_names_of_tests_are_found(name, is_odd):
    assert bool(habits.ODD_NAME.search(name)) is is_odd


@pytest.mark.parametrize(
    ("suffix", "text", "sentences"),
    [
        (".py", "# models that\n    # are fake\nx = 1  # end", ["models that are fake", "end"]),
        (".py", 'f("a " \'b\', "c")', ["a b", "c"]),
        (".py", '"""One\n    line.\n\n    Two."""', ["One line.\nTwo."]),
        (".go", "// one\n// line\nx := `a` // b", ["one line", "a b"]),
        (".md", "a\nb\n\n* c\n* d", ["a b", "", "* c", "* d"]),
    ],
)
def test_prose_is_split_into_lines(suffix, text, sentences):
    assert [piece for _, piece in habits.pieces(text, suffix)] == sentences


def test_files_of_each_kind_are_read():
    suffixes = {name.rpartition(".")[2] for name in habits.files()}
    assert {"py", "go", "md", "yml", "html", "js"} <= suffixes
