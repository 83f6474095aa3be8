"""Bodies whose content type is not what they are, as tools send them of their own."""

from __future__ import annotations

import pytest

import pipeline
from pipeline.errors import PackageError
from pipeline.frontends.api.bodies import fields_of
from pipeline.proto.slices import SHORT_BYTES, Limits
from pipeline.schema.bound import bind

FETCH = "text/plain;charset=UTF-8"
CURL = "application/x-www-form-urlencoded"
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


class Ask(pipeline.Schema):
    prompt: str


class Note(pipeline.Schema):
    text: str


def read(body, kind, schema=None, query=""):
    bound = None if schema is None else bind(schema)
    return fields_of(body, {b"content-type": kind.encode()}, query, Limits(), bound)


@pytest.mark.parametrize("size", [1, SHORT_BYTES])
def test_fetch_sends_json_as_text(size):
    prompt = "a" * size
    assert read(b'{"prompt": "%b"}' % prompt.encode(), FETCH, Ask) == {"prompt": prompt}


@pytest.mark.parametrize(
    ("schema", "query", "fields"),
    [
        (None, "", {"text": '{"prompt": "a"}'}),
        (Note, "", {"text": '{"prompt": "a"}'}),
        (Ask, "key=prompt", {"prompt": '{"prompt": "a"}'}),
    ],
)
def test_a_text_body_becomes_the_text_field(schema, query, fields):
    assert read(b'{"prompt": "a"}', FETCH, schema, query) == fields


def test_a_text_body_without_a_text_field_is_refused_with_a_hint():
    with pytest.raises(PackageError, match=r"text/plain.*'text'.*send|Send content-type"):
        read(b"hello", FETCH, Ask)


@pytest.mark.parametrize("kind", [CURL, "", "application/json"])
@pytest.mark.parametrize("more", [b"", b"x" * SHORT_BYTES])
def test_an_image_without_its_content_type_is_refused_with_a_hint(kind, more):
    with pytest.raises(PackageError, match="curl -H 'content-type: image/png'"):
        read(PNG + more, kind)


def test_text_that_is_not_json_is_refused_without_a_hint():
    with pytest.raises(PackageError, match="is not JSON") as caught:
        read(b"{x", CURL)
    assert "curl" not in str(caught.value)


@pytest.mark.parametrize("body", ['{"é": 1', ' ["ü" 1]'])
def test_broken_json_with_a_non_ascii_letter_is_not_taken_for_an_image(body):
    with pytest.raises(PackageError) as caught:
        read(body.encode(), "application/json")
    assert "image/png" not in str(caught.value)
