"""Sound that becomes text, and texts that become pictures, asked by the official client."""

from __future__ import annotations

import base64

import numpy as np
import openai
import pytest
from doubles import http
from openai_models import client_of, openai_server
from openapi_spec_validator import validate

from pipeline import Op, RequestOp

OPTIONS = {
    "models": {
        "hears": {"kind": "transcription", "audio": "sound"},
        "paints": {"kind": "image"},
    }
}
SOUND = ("a.wav", bytes(range(256)), "audio/wav")
SEGMENT = {"id": 0, "start": 0.0, "end": 1.5, "text": "hello"}


class Media(Op):
    """Says how long a sound is, or paints a prompt as a file that has its letters."""

    def preprocess(self, input_dicts):
        (asked,) = input_dicts.values()
        if "sound" in asked:
            more = {name: asked[name] for name in ("language", "temperature") if name in asked}
            reported = {"language": "en", "duration": 1.5, "segments": [SEGMENT]}
            return {"text": f"{len(asked['sound'])} bytes {more or ''}".strip(), **reported}
        if asked["prompt"] == "a place":
            return {"image": "http://127.0.0.1/a.png", "revised_prompt": "a nice place"}
        file = asked["prompt"].encode()
        return {"image": np.frombuffer(file, np.uint8) if asked.get("size") else file}


@pytest.fixture(scope="module")
def server():
    with openai_server(Media("media", RequestOp()), OPTIONS) as server:
        yield server


@pytest.fixture
def client(server):
    with client_of(server) as client:
        yield client


def transcribe(client, **asked):
    return client.audio.transcriptions.create(**{"model": "hears", "file": SOUND, **asked})


def test_a_sound_becomes_text(client):
    assert transcribe(client).text == "256 bytes"
    text = transcribe(client, language="de", temperature=0.5).text
    assert text == "256 bytes {'language': 'de', 'temperature': 0.5}"


def test_a_transcription_is_plain_text_or_has_segments(client):
    assert transcribe(client, response_format="text") == "256 bytes\n"
    request = {"timestamp_granularities": ["segment"]}
    result = transcribe(client, response_format="verbose_json", **request)
    assert (result.text, result.language, float(result.duration)) == ("256 bytes", "en", 1.5)
    assert (result.segments[0].text, result.segments[0].end) == ("hello", 1.5)


def test_a_large_sound(client):
    assert transcribe(client, file=("a.wav", bytes(3_000_000))).text == "3000000 bytes"


@pytest.mark.parametrize(
    ("param", "asked"),
    [
        ("response_format", {"response_format": "srt"}),
        ("temperature", {"extra_body": {"temperature": "warm"}}),
        ("stream", {"stream": True}),
        ("model", {"model": "paints"}),
    ],
)
def test_bad_requests_for_text_are_named(client, param, asked):
    with pytest.raises(openai.BadRequestError) as caught:
        transcribe(client, **asked)
    assert caught.value.param == param


def test_a_sound_is_sent_as_a_form_with_a_file(server):
    status, _, said = http(server, "POST", "/v1/audio/transcriptions", {"model": "hears"})
    assert (status, said["error"]["type"]) == (415, "invalid_request_error")
    body = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nhears\r\n--x--\r\n'
    head = {"content-type": "multipart/form-data; boundary=x"}
    status, _, said = http(server, "POST", "/v1/audio/transcriptions", body, head)
    assert (status, said["error"]["param"]) == (400, "file")


def test_pictures(client):
    for size in (None, "64x64"):
        done = client.images.generate(model="paints", prompt="a cat", n=2, size=size)
        assert [base64.b64decode(item.b64_json) for item in done.data] == [b"a cat"] * 2
    done = client.images.generate(model="paints", prompt="a cat", response_format="url")
    assert done.data[0].url == "data:;base64," + base64.b64encode(b"a cat").decode()
    (place,) = client.images.generate(model="paints", prompt="a place").data
    assert (place.url, place.revised_prompt) == ("http://127.0.0.1/a.png", "a nice place")


@pytest.mark.parametrize(
    ("param", "asked"),
    [
        ("prompt", {"prompt": 5}),
        ("n", {"n": 0}),
        ("response_format", {"response_format": "png"}),
        ("stream", {"extra_body": {"stream": True}}),
        ("model", {"model": "hears"}),
    ],
)
def test_bad_requests_for_pictures_are_named(client, param, asked):
    with pytest.raises(openai.BadRequestError) as caught:
        client.images.generate(**{"model": "paints", "prompt": "a", **asked})
    assert caught.value.param == param


def test_the_document_of_the_server_describes_both(server):
    _, _, document = http(server, "GET", "/openapi.json")
    validate(document)
    paths = {path for path in document["paths"] if path.startswith("/v1")}
    assert paths == {"/v1/audio/transcriptions", "/v1/images/generations", "/v1/models"}
