"""OpenAI's API of a server: off unless it is named, its options, bodies that no client sends."""

from __future__ import annotations

import base64
import http.client as http_client
import json
import struct
from typing import Annotated

import pytest
from doubles import http, server_for
from msgspec import Meta, field
from openai_models import Says, openai_server
from openapi_spec_validator import validate

from pipeline import PipelineServer, ResponseOp, Schema
from pipeline.errors import ConfigError


def test_without_its_key_the_api_is_not_served():
    with server_for(Says(), name="says") as server:
        assert http(server, "GET", "/v1/models")[0] == 404
        assert http(server, "POST", "/v1/completions", {"model": "says", "prompt": "a"})[0] == 404


@pytest.mark.parametrize("options", [None, {"models": {"other": {}}}])
def test_without_names_a_pipeline_is_a_model(options):
    with openai_server(options=options) as server:
        (model,) = http(server, "GET", "/v1/models")[2]["data"]
        assert model["id"] == ("other" if options else "says")
        request = {"model": model["id"], "prompt": "a b"}
        status, _, answer = http(server, "POST", "/v1/completions", request)
        assert (status, answer["choices"][0]["text"]) == (200, "a b")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"pipeline": "none"}, "there is no pipeline 'none', but says"),
        ({"kind": "picture"}, "expected text or chat or completion or embedding"),
        ({"keys": 3}, "expected mapping of str to str"),
    ],
)
def test_invalid_options_are_refused_at_the_start(model, said):
    with pytest.raises(ConfigError, match=said), openai_server(options={"models": {"m": model}}):
        pass


def test_v1_is_refused_as_the_name_of_a_pipeline():
    server = PipelineServer("v1")
    server.set_response_op(ResponseOp(input_ops=[Says()]))
    with pytest.raises(ConfigError, match=r"cannot be called 'v1'.*those of OpenAI's API"):
        server.prepare_server(yml_dict={"rpc_port": 0, "http_port": 0})


def test_bodies_and_paths_that_no_client_sends():
    with openai_server() as server:
        cases = [
            ("GET", "/v1/completions", None, {}, 405),
            ("POST", "/v1/nothing", b"{}", {}, 404),
            ("GET", "/v1/models/none", None, {}, 404),
            ("POST", "/v1/completions", b"{", {}, 400),
            ("POST", "/v1/completions", b"[]", {}, 400),
            ("POST", "/v1/completions", b'{"model":"echo","model":"echo"}', {}, 400),
            ("POST", "/v1/completions", b"{}", {}, 400),
            ("POST", "/v1/completions", b'{"model":"echo","prompt":NaN}', {}, 400),
            ("POST", "/v1/completions", b'{"model":"echo","prompt":"\\ud800"}', {}, 400),
            ("POST", "/v1/completions", b'{"model":"echo","prompt":"\xff"}', {}, 400),
            ("POST", "/v1/completions", b'{"a":' * 200 + b"1" + b"}" * 200, {}, 400),
            ("POST", "/v1/completions", b'{"model":"echo","prompt":"a","seed":1e400}', {}, 400),
            ("POST", "/v1/completions", b"", {}, 400),
            ("PUT", "/v1/completions", b"{}", {}, 405),
            ("POST", "/v1/models", b"{}", {}, 405),
            ("POST", "/v1/completions", b"a", {"content-type": "text/plain"}, 415),
            ("POST", "/v1/completions", {"model": 3, "prompt": "a"}, {}, 400),
            ("POST", "/v1/completions", {"model": "echo", "prompt": "a", "stream": 1}, {}, 400),
            ("POST", "/v1/embeddings", {"model": "places", "input": [-1]}, {}, 400),
            ("POST", "/v1/embeddings", {"model": "places", "input": ["a"] * 2049}, {}, 400),
        ]
        for method, path, body, headers, expected in cases:
            status, _, answer = http(server, method, path, body, headers)
            assert (path, status) == (path, expected)
            assert set(answer["error"]) == {"message", "type", "param", "code"}
            assert answer["error"]["type"] == "invalid_request_error"


def test_a_large_prompt_is_answered():
    with openai_server() as server:
        prompt = "word " * 50_000
        status, _, answer = http(
            server, "POST", "/v1/completions", {"model": "echo", "prompt": prompt}
        )
        assert (status, answer["choices"][0]["text"]) == (200, " ".join(["word"] * 100))
        many = [f"{'x' * 40} {at}" for at in range(2048)]
        status, _, answer = http(
            server, "POST", "/v1/completions", {"model": "echo", "prompt": many}
        )
        assert [item["text"] for item in answer["choices"]] == many


def test_base64_is_float32_in_little_endian():
    with openai_server() as server:
        request = {"model": "places", "input": "abc", "encoding_format": "base64"}
        _, _, answer = http(server, "POST", "/v1/embeddings", request)
        b64decode = base64.b64decode(answer["data"][0]["embedding"])
        assert struct.unpack("<4f", b64decode) == (3, 4, 5, 6)


def test_an_answer_without_the_text_names_the_missing_key():
    with openai_server(options={"models": {"m": {"text": "words"}}}) as server:
        request = {"model": "m", "prompt": "a"}
        status, _, answer = http(server, "POST", "/v1/completions", request)
        assert status == 500
        assert "no text under 'words', but text" in answer["error"]["message"]
        assert answer["error"]["type"] == "server_error"


def test_the_document_of_the_server_describes_its_answers():
    with openai_server() as server:
        _, _, document = http(server, "GET", "/openapi.json")
        validate(document)
        below = {path for path in document["paths"] if path.startswith("/v1")}
        assert below == {
            "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models",
            "/v1/responses", "/v1/messages",
        }  # fmt: skip
        for path in below - {"/v1/models", "/v1/responses"}:
            body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
            assert body["example"]["model"] in body["schema"]["properties"]["model"]["enum"]
            status, _, answer = http(server, "POST", path, body["example"])
            assert status == 200, answer
    with server_for(Says(), name="says") as server:
        _, _, document = http(server, "GET", "/openapi.json")
        assert [*document["paths"]] == ["/api/says"]
    with openai_server(options={"models": {"m": {"kind": "embedding"}}}) as server:
        _, _, document = http(server, "GET", "/openapi.json")
        assert {*document["paths"]} == {"/api/says", "/v1/embeddings", "/v1/models"}


class Typed(Schema, forbid_unknown_fields=True):
    prompt: Annotated[str, Meta(max_length=9)]
    places: list[Annotated[int, Meta(ge=1)]] = field(default_factory=list)


@pytest.mark.parametrize(
    ("param", "more"),
    [
        ("places[1]", {"places": [1, "x"]}),
        ("places[0]", {"places": [0]}),
        ("prompt", {"prompt": "a" * 10}),
        ("temperature", {"temperature": 1}),
        (None, {}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_error_of_a_schema_names_the_parameter(param, more, stream):
    with openai_server(Says(schema=Typed)) as server:
        request = {"model": "echo", "prompt": "a", "stream": stream, **more}
        connection = http_client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
        connection.request("POST", "/v1/completions", json.dumps(request))
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
    if param is None:
        assert answer.status == 200
    else:
        error = json.loads(body)["error"]
        assert (answer.status, error["param"]) == (400, param), error


@pytest.mark.parametrize("path", ["org/small", "org%2Fsmall"])
def test_ids_of_models_may_have_slashes(path):
    with openai_server(options={"models": {"org/small": {}}}) as server:
        status, _, answer = http(server, "GET", f"/v1/models/{path}")
        assert (status, answer["id"]) == (200, "org/small")
        request = {"model": "org/small", "prompt": "a"}
        assert http(server, "POST", "/v1/completions", request)[0] == 200
