"""Where a text is cut, however it comes in parts; what is held back, and for how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.frontends.openai.answers import Cutter

LETTERS = st.text("ab", max_size=5)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


def growing(text: str, stops: list[str]) -> str:
    """The text as a reader of single characters would cut it."""
    for end in range(len(text) + 1):
        there = [stop for stop in stops if text[:end].endswith(stop)]
        if there:
            return text[: end - len(max(there, key=len))]
    return text


@given(st.lists(LETTERS, max_size=10), STOPS)
def test_parts_make_no_difference(parts, stops):
    cutter = Cutter(stops)
    reported = "".join(map(cutter.take, parts)) + cutter.rest()
    assert reported == growing("".join(parts), stops)
    assert cutter.has_cut == (reported != "".join(parts))
    assert cutter.rest() == ""


@given(st.lists(LETTERS, max_size=10), STOPS)
def test_the_cutter_holds_back_only_a_possible_start_of_a_stop(parts, stops):
    cutter, text, message = Cutter(stops), "", ""
    for part in parts:
        text += part
        message += cutter.take(part)
        if cutter.has_cut:
            break
        held = text[len(message) :]
        assert text.startswith(message)
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


@pytest.mark.parametrize(
    ("stops", "parts", "told"),
    [
        ([], ["a", "b"], ["a", "b"]),
        (["\n\n"], ["a\n", "b", "\n\nc"], ["a", "\nb", ""]),
        (["STOP"], ["a ST", "OP b"], ["a ", ""]),
        (["STOP"], ["a ST", "ART"], ["a ", "START"]),
        (["abcd", "bc"], ["xab", "cd"], ["x", "a"]),  # that which is complete first
        (["bc", "abc"], ["xa", "bc"], ["x", ""]),  # of two the longest
        (["aab"], ["a", "a", "a", "b"], ["", "", "a", ""]),
        (["a"], ["", "xax", "x"], ["", "x", ""]),
    ],
)
def test_the_cutter_returns_the_text_of_each_part(stops, parts, told):
    cutter = Cutter(stops)
    assert [cutter.take(part) for part in parts] == told
