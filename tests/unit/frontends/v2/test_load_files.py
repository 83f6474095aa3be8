"""Files in the body of a request to load a model, which no parser sees."""

from __future__ import annotations

import base64
import binascii
import json

import pytest

from pipeline.errors import TooLargeError
from pipeline.frontends.v2 import control
from pipeline.frontends.v2.control import bytes_of, cut, overrides_of_json, text_of
from pipeline.proto.slices import Limits


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(control, "_LONG_BYTES", 24)
    monkeypatch.setattr(control, "_WINDOW_BYTES", 3)
    monkeypatch.setattr(control, "SLICE_BYTES", 8)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 30, 31, 32])
def test_a_file_is_decoded_unchanged(size):
    data = bytes(range(size))
    config = json.dumps({"name": 'a "quoted" model\\', "max_batch_size": 4})
    fields = {"config": config, "file:1/model.onnx": base64.b64encode(data).decode(), "file:a": ""}
    overrides = overrides_of_json(json.dumps({"parameters": fields}).encode(), Limits())
    assert (overrides.config, overrides.files) == (config, {"1/model.onnx": data, "a": b""})


def test_slashes_may_be_escaped():
    data = b"\xff" * 30
    text = base64.b64encode(data).decode().replace("/", "\\/")
    overrides = overrides_of_json(b'{"parameters": {"file:x": "%b"}}' % text.encode(), Limits())
    assert overrides.files == {"x": data}


def test_a_long_text_is_left_where_it_is():
    rest, long = cut(b'{"a": "0123456789abcdefghijklmnopq", "b": "c"}')
    assert json.loads(rest)["b"] == "c"
    assert text_of(json.loads(rest)["a"], long) == "0123456789abcdefghijklmnopq"


@pytest.mark.parametrize("text", ["QUJD" * 2 + "QQ==" + "QUJD" * 4, "QUJD" * 3 + "Q", "?" * 16])
def test_invalid_base64_is_refused(text):
    with pytest.raises(binascii.Error):
        bytes_of(text, {})


def test_too_many_texts_are_refused_before_they_are_made(monkeypatch):
    monkeypatch.setattr(control, "_MOST_TEXTS", 3)
    with pytest.raises(TooLargeError, match="more than 3 texts"):
        cut(b'["a", "b", "c", "d"]')


def test_a_short_text_is_not_mistaken_for_a_placeholder():
    long = base64.b64encode(bytes(40)).decode()
    fields = {"file:a": long, "config": "long text 0"}
    overrides = overrides_of_json(json.dumps({"parameters": fields}).encode(), Limits())
    assert (overrides.config, overrides.files) == ("long text 0", {"a": bytes(40)})
