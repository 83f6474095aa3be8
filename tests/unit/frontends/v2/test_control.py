"""Requests that load and unload models: what they bring, and how others are refused."""

from __future__ import annotations

import json

import pytest

from pipeline.frontends.v2.control import (
    Overrides,
    overrides_of,
    overrides_of_json,
    with_dependents_of,
    with_dependents_of_json,
)
from pipeline.frontends.v2.errors import V2Error, V2Status
from pipeline.proto.inference_v2_pb2 import ModelRepositoryParameter as Parameter
from pipeline.proto.slices import Limits

LIMITS = Limits()


def body(**parameters):
    return json.dumps({"parameters": parameters}).encode()


def refused(read, *args):
    with pytest.raises(V2Error) as caught:
        read(*args)
    return caught.value.kind, str(caught.value)


def test_an_empty_body_has_no_overrides():
    assert (
        overrides_of_json(b"", LIMITS)
        == overrides_of_json(b"{}", LIMITS)
        == overrides_of({})
        == Overrides()
    )


def test_a_config_and_files():
    brought = Overrides("{}", {"1/model.py": b"\x00\xff"})
    assert overrides_of_json(body(config="{}", **{"file:1/model.py": "AP8="}), LIMITS) == brought
    parameters = {
        "config": Parameter(string_param="{}"),
        "file:1/model.py": Parameter(bytes_param=b"\x00\xff"),
    }
    assert overrides_of(parameters) == brought


@pytest.mark.parametrize(
    ("sent", "kind", "text"),
    [
        (body(config=3), V2Status.INTERNAL, "attempt to access JSON non-string as string"),
        (
            body(other="x"),
            V2Status.INTERNAL,
            "unexpected error on creating Triton parameter",
        ),
        (body(**{"file:1/m": "%"}), V2Status.INTERNAL, "file:1/m is not valid base64"),
        (b"{", V2Status.INVALID, "failed to parse the load model JSON buffer"),
        (b"[]", V2Status.INVALID, "must be a JSON object"),
        (b'{"parameters": []}', V2Status.INVALID, "must be a JSON object"),
    ],
)
def test_an_invalid_load_over_http_is_refused(sent, kind, text):
    result = refused(overrides_of_json, sent, LIMITS)
    assert result[0] is kind
    assert text in result[1]


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (
            {"config": Parameter(int64_param=1)},
            "invalid value type for load parameter 'config', expected string_param.",
        ),
        (
            {"file:1/m": Parameter(string_param="")},
            "invalid value type for load parameter 'file:1/m', expected bytes_param.",
        ),
        ({"other": Parameter(string_param="")}, "unrecognized load parameter 'other'."),
    ],
)
def test_an_invalid_load_over_grpc_is_refused(parameters, text):
    assert refused(overrides_of, parameters) == (V2Status.INVALID, text)


def test_dependents():
    assert with_dependents_of_json(body(unload_dependents=True))
    assert not with_dependents_of_json(b"")
    assert with_dependents_of({"unload_dependents": Parameter(bool_param=True)})
    assert not with_dependents_of({})
    kind, text = refused(with_dependents_of_json, body(unload_dependents="yes"))
    assert kind is V2Status.INTERNAL
    assert text.startswith("Unable to parse 'unload_dependents'")
    kind, text = refused(with_dependents_of, {"unload_dependents": Parameter(int64_param=1)})
    assert text == "invalid value type for 'unload_dependents' parameter, expected bool_param."


def test_the_limit_of_json_applies_to_load_requests():
    sent = body(config="x" * 2000)
    assert overrides_of_json(sent, Limits(json_bytes=4000)).config == "x" * 2000
    with pytest.raises(V2Error, match="1000"):
        overrides_of_json(sent, Limits(json_bytes=1000))
