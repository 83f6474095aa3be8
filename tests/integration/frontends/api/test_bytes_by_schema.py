"""Bytes of a schema come in base64 in plain JSON; an error names the place of any other."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from doubles import post, server_for

import pipeline
from pipeline import Op, RequestOp


class Page(pipeline.Schema):
    scan: bytes


class Ask(pipeline.Schema):
    image: bytes = b""
    parts: list[bytes] = msgspec.field(default_factory=list)
    pages: list[Page] = msgspec.field(default_factory=list)
    maybe: bytes | None = None


class ReturnsBytes(Op):
    """Answers with the bytes that it was given."""

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        (asked,) = input_dicts.values()
        scans = [page.scan for page in asked["pages"]]
        assert {bytes} >= {type(item) for item in [asked["image"], *asked["parts"], *scans]}
        return {**asked, "pages": scans}, False, None, ""

    def postprocess(self, input_data: Any, fetch_data: Any, *args: Any) -> Any:
        return (fetch_data[0] if isinstance(fetch_data, list) else fetch_data), None, ""


@pytest.fixture(scope="module")
def server():
    with server_for(ReturnsBytes("says", [RequestOp(schema=Ask)])) as server:
        yield server


BROKEN = "Invalid base64 encoded string"
LONG = "A" * 100_001


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *(
            ({"image": text}, f"image: expected bytes, found str {text[:40]!r}: {BROKEN}")
            for text in ("YWI", "Y!I=", "YW\nI=", "_-8=", "é", "=", "YWI=YWI=", LONG)
        ),
        ({"image": 5}, "image: expected bytes, found int 5"),
        ({"image": [1]}, "image: expected bytes, found array"),
        ({"parts": ["YQ==", "%"]}, f"parts[1]: expected bytes, found str '%': {BROKEN}"),
        ({"pages": [{"scan": "YQ=="}, {"scan": "x"}]},
         f"pages[1].scan: expected bytes, found str 'x': {BROKEN}"),
        ({"maybe": "?"}, f"maybe: expected bytes | null, found str '?': {BROKEN}"),
    ],
)  # fmt: skip
def test_invalid_base64_is_refused_with_its_path(server, fields, message):
    status, answer = post(server, fields, "/api/svc")
    assert status == 400
    assert answer["error"]["code"] == 8000
    assert answer["error"]["message"] == message
    assert answer["error"]["op"] is None


@pytest.mark.parametrize("size", [0, 1, 2, 3, 1_000_000])
def test_base64_is_accepted_and_returned(server, size):
    text = base64.b64encode(bytes(range(256)) * (size // 256) + b"x" * (size % 256)).decode()
    fields = {"image": text, "parts": [text, ""], "pages": [{"scan": text}], "maybe": None}
    assert post(server, fields, "/api/svc") == (200, {**fields, "pages": [text]})
