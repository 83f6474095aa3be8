"""Raw tensors over HTTP, as tests send and read them."""

from __future__ import annotations

import numpy as np
import orjson
import pytest

from pipeline.errors import OverloadedError, ProductError, UserCodeError
from pipeline.testing import HttpReply
from pipeline.testing.http import HEADER, infer_body, outputs_of


def test_a_written_body_can_be_parsed():
    arrays = {"x": np.arange(6, dtype=np.int16).reshape(2, 3), "text": ["a", "\u00e9"]}
    body, size = infer_body(arrays, ["y"])
    document = orjson.loads(body[:size])
    assert [output["name"] for output in document["outputs"]] == ["y"]
    head = orjson.dumps({"outputs": document["inputs"]})
    reply = HttpReply(200, {HEADER: str(len(head))}, head + body[size:])
    outputs = outputs_of(reply)
    assert outputs["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert outputs["x"].dtype == np.int16
    assert outputs["text"].tolist() == ["a", "\u00e9"]


@pytest.mark.parametrize(
    ("status", "text", "kind", "code"),
    [
        (400, "in ensemble 'a', [51] no words", ProductError, 51),
        (503, "full", OverloadedError, 3004),
        (500, "KeyError", UserCodeError, 10000),
    ],
)
def test_an_error_is_raised_with_the_code_of_its_message(status, text, kind, code):
    with pytest.raises(kind) as raised:
        outputs_of(HttpReply(status, {}, orjson.dumps({"error": text})))
    assert raised.value.code == code
