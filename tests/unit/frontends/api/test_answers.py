"""Answers: which are written on the event loop, and which are sent as given bytes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.data import ChannelData
from pipeline.errors import PayloadTypeError, ProductError
from pipeline.frontends.api.answers import is_quick, is_short_answer, payload_of, written
from pipeline.frontends.http.routes import WebResponse


@pytest.mark.parametrize(
    "value", [1, 1.5, None, True, "a" * 500, [], [1, 2.5], [math.nan] * 64, [2**80]]
)
def test_a_few_numbers_and_short_texts_are_quick(value):
    assert is_quick({"x": value})


@pytest.mark.parametrize(
    "value",
    ["a" * 513, [0] * 65, [1, [2]], [[1]], ["a"], [1, "a"], {}, b"", np.zeros(1), [1, None]],
)
def test_other_answers_are_checked_in_full(value):
    assert not is_quick({"x": value})
    assert not is_quick(dict.fromkeys(range(65), 0))


def test_a_large_answer_is_not_written_on_the_loop():
    def is_short(value):
        return is_short_answer(ChannelData(1, payload={"x": value}))

    assert is_short([[1, 2], {"a": "b"}])
    assert not is_short([[0.0] * 100] * 1000)
    assert not is_short("a" * 70_000)
    assert not is_short(np.zeros(10_000))
    assert not is_short(np.array(["a" * 70_000], dtype=object))
    assert is_short(np.array(["a"] * 100, dtype=object))


def test_bytes_with_a_content_type_are_sent_unchanged():
    result = written({"page": b"\x89PNG", "content_type": "image/png"})
    assert result == WebResponse(200, b"\x89PNG", b"image/png")


@pytest.mark.parametrize(
    "payload",
    [
        {"content_type": "image/png"},
        {"page": "text", "content_type": "image/png"},
        {"page": b"a", "more": 1, "content_type": "image/png"},
        {"page": b"a", "content_type": "image/png\r\nx: y"},
        {"page": b"a", "content_type": 7},
    ],
)
def test_other_answers_with_a_content_type_are_json(payload):
    assert isinstance(written(payload), bytes)


def test_a_payload_other_than_a_dict_is_an_error():
    with pytest.raises(ProductError):
        payload_of(ChannelData(1, error=ProductError(51, "no")))
    with pytest.raises(PayloadTypeError, match="the last Op answered with list, not with a dict"):
        payload_of(ChannelData(1, payload=[1]))
