"""The conformance table of gRPC: the answer to each call, with and without the gateway.

A case is one call of one method, with a message and metadata; what is expected is its status, the
status' text, the trailing metadata that are ours, and the answer. States that a table cannot have
(callers who leave, streams, health that changes, a server that stops) are tests of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import grpc
from conformance_grpc import INFERENCE, Case, Status, infer, inferred, request, streamed
from conformance_server import HELD, LIMIT, NAME

from pipeline.frontends.grpc.inference import SERVICE, TIMEOUT
from pipeline.frontends.grpc.server import ERR_NO
from pipeline.proto import inference_v2_pb2 as pb
from pipeline.proto.pipeline_service_pb2 import Request, Response
from pipeline.proto.v2.codec import SERVICE as V2


def _v2(method: str) -> str:
    return f"/{V2}/{method}"


def _answers(**fields: Any) -> Callable[[bytes], None]:
    def check(answer: bytes) -> None:
        found = Response.FromString(answer)
        assert found == Response(**fields), found

    return check


def _fails(err_no: int, text: str) -> Callable[[bytes], None]:
    def check(answer: bytes) -> None:
        found = Response.FromString(answer)
        assert found.err_no == err_no
        assert re.fullmatch(text, found.err_msg), found.err_msg

    return check


def _is(kind: Any, **fields: Any) -> Callable[[bytes], None]:
    def check(answer: bytes) -> None:
        found = kind.FromString(answer)
        assert {name: _plain(getattr(found, name)) for name in fields} == fields

    return check


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | bool | int | float) else list(value)


def _infers(request_id: str, *values: float) -> Callable[[bytes], None]:
    def check(answer: bytes) -> None:
        assert inferred(answer) == (request_id, list(values))

    return check


def _of_stats(answer: bytes) -> None:
    found = pb.ModelStatisticsResponse.FromString(answer).model_stats
    assert [stats.name for stats in found] == [NAME, "does"]


def _of_index(answer: bytes) -> None:
    found = pb.RepositoryIndexResponse.FromString(answer).models
    assert [(model.name, model.state) for model in found] == [(NAME, "READY"), ("does", "READY")]


def _of_config(answer: bytes) -> None:
    config = pb.ModelConfigResponse.FromString(answer).config
    assert (config.name, config.platform) == (NAME, "ensemble")


def _has_length(count: int) -> Callable[[bytes], None]:
    def check(answer: bytes) -> None:
        (value,) = Response.FromString(answer).value
        assert len(value) == count

    return check


# The table ----------------------------------------------------------------------------------

_LARGE = "x" * 1_000_000
_FITS = LIMIT - 100
_NUMBERS = [float(number) for number in range(200_000)]
_GZIP, _DEFLATE = grpc.Compression.Gzip, grpc.Compression.Deflate
# gRPC's own words, in C and in Go, which unpacks no more of a message than has to be.
_IN_TOO_LARGE = (
    rf"SERVER: Received message larger than max \(\d+ vs\. {LIMIT}\)"
    rf"|grpc: received message (after decompression )?larger than max (\(\d+ vs\. )?{LIMIT}\)?"
)
_TOO_MUCH_METADATA = r"received metadata size exceeds hard limit \((value length )?\d+ vs\. 65536\)"
_OUT_TOO_LARGE = rf"SERVER: Sent message larger than max \(\d+ vs\. {LIMIT}\)"
_LATE = r"\(data_id=\d+ log_id=0\) the request's deadline passed before it was answered\."
_NO_METHOD = 'Method not found!|malformed method name: "/"'
_PACKAGE = {ERR_NO: "8000"}
_UNKNOWN = "Request for unknown model: '{}' is not found"

PIPELINE_CASES = (
    Case(
        "pairs", INFERENCE, request(a="1", b="2"), check=_answers(key=["a", "b"], value=["1", "2"])
    ),
    Case("an empty message", INFERENCE, b"", check=_answers()),
    Case(
        "text beyond ASCII", INFERENCE, request(a="ä€😀"), check=_answers(key=["a"], value=["ä€😀"])
    ),
    Case("a large message", INFERENCE, request(a=_LARGE), check=_has_length(len(_LARGE))),
    Case("one just below the limit", INFERENCE, request(a="x" * _FITS), check=_has_length(_FITS)),
    Case("a large answer", INFERENCE, request("large", n="1000000"), check=_has_length(1_000_000)),
    Case(
        "what the request says of itself",
        INFERENCE,
        Request(name=NAME, method="told", logid=-7, clientip="me").SerializeToString(),
        check=_answers(
            key=["name", "method", "logid", "clientip"], value=[NAME, "told", "-7", "me"]
        ),
    ),
    Case(
        "another service's name",
        INFERENCE,
        Request(name="other").SerializeToString(),
        check=_fails(3002, r"Failed to inference: Service name error\. .*'conf'.*'other'\."),
    ),
    Case(
        "an error of the user's code",
        INFERENCE,
        request("raise"),
        check=_fails(10000, ".*ValueError: of the user.*"),
    ),
    Case(
        "an error of the product",
        INFERENCE,
        request("product", a="7007", b="so"),
        check=_fails(7007, "so"),
    ),
    Case(
        "one that is returned",
        INFERENCE,
        request("returned", a="7008", b="it"),
        check=_fails(7008, "it"),
    ),
    Case(
        "a deadline that the server answers to",
        INFERENCE,
        request("hold"),
        metadata=[(TIMEOUT, "50m")],
        check=_fails(
            6000, r"\(data_id=\d+ log_id=0\) the request's deadline passed before it was answered\."
        ),
    ),
    Case(
        "one that is in time",
        INFERENCE,
        request(a="1"),
        metadata=[(TIMEOUT, "30S")],
        check=_answers(key=["a"], value=["1"]),
    ),
    Case(
        "one that nobody can read",
        INFERENCE,
        metadata=[(TIMEOUT, "soon")],
        status=Status.INVALID_ARGUMENT,
        text="invalid pipeline-timeout 'soon': send digits and one of H M S m u n",
        trailing=_PACKAGE,
    ),
    *(
        Case(
            f"a message that is no Request, {message!r:.20}",
            INFERENCE,
            message,
            status=Status.INVALID_ARGUMENT,
            text="not a Request: .*",
            trailing=_PACKAGE,
        )
        for message in (b"\xff", b"\x0a\x05ab", b"\x0a\x02\xc3\x28", b"\x0f", b"\x0b" * 200)
    ),
    Case(
        "a large message that is no Request",
        INFERENCE,
        b"\xff" * 100_000,
        status=Status.INVALID_ARGUMENT,
        text="not a Request: .*",
        trailing=_PACKAGE,
    ),
    Case(
        "pack_response_package returns no Response",
        INFERENCE,
        request("wrong"),
        status=Status.INTERNAL,
        text="pack_response_package returned dict, not a Response",
        trailing=_PACKAGE,
    ),
    Case(
        "metadata of all kinds",
        INFERENCE,
        request(a="1"),
        metadata=[("traceparent", "00-" + "a" * 32), ("x-bin", b"\x00\xff"), ("x", ""), ("x", "2")],
        check=_answers(key=["a"], value=["1"]),
    ),
    Case(
        "60,000 bytes of metadata",
        INFERENCE,
        request(a="1"),
        metadata=[("authorization", "x" * 60_000)],
        check=_answers(key=["a"], value=["1"]),
    ),
    *(
        Case(
            f"{packed.name}, unpacked",
            INFERENCE,
            request(a="1" * 5000),
            compression=packed,
            check=_has_length(5000),
        )
        for packed in (_GZIP, _DEFLATE)
    ),
)

LIMIT_CASES = (
    *(
        Case(
            f"{size} bytes of metadata",
            INFERENCE,
            metadata=[("authorization", "x" * size)],
            status=Status.RESOURCE_EXHAUSTED,
            text=_TOO_MUCH_METADATA,
        )
        for size in (70_000, 110_000)
    ),
    Case(
        "a message above the limit",
        INFERENCE,
        b"x" * (LIMIT + 1),
        status=Status.RESOURCE_EXHAUSTED,
        text=_IN_TOO_LARGE,
    ),
    *(
        Case(
            f"one that {packed.name} makes small",
            INFERENCE,
            request(a="1" * (LIMIT + 1)),
            compression=packed,
            status=Status.RESOURCE_EXHAUSTED,
            text=_IN_TOO_LARGE,
        )
        for packed in (_GZIP, _DEFLATE)
    ),
    Case(
        "an answer above the limit",
        INFERENCE,
        request("large", n=str(LIMIT + 1)),
        status=Status.RESOURCE_EXHAUSTED,
        text=_OUT_TOO_LARGE,
    ),
    Case(
        "a tensor above the limit",
        _v2("ModelInfer"),
        infer(*[1.0] * (LIMIT // 4 + 1)),
        status=Status.RESOURCE_EXHAUSTED,
        text=_IN_TOO_LARGE,
    ),
)

METHOD_CASES = tuple(
    Case(f"no such method, {path}", path, status=Status.UNIMPLEMENTED, text=_NO_METHOD)
    for path in ("/a/b", "/", "/a/b/c", f"/{SERVICE}/other", f"/{SERVICE}/", _v2("Nope"))
)

V2_CASES = (
    Case("ServerLive", _v2("ServerLive"), check=_is(pb.ServerLiveResponse, live=True)),
    Case("ServerReady", _v2("ServerReady"), check=_is(pb.ServerReadyResponse, ready=True)),
    *(
        Case(
            f"ModelReady of {model}",
            _v2("ModelReady"),
            pb.ModelReadyRequest(name=model).SerializeToString(),
            check=_is(pb.ModelReadyResponse, ready=is_ready),
        )
        for model, is_ready in ((NAME, True), ("does", True), ("nope", False))
    ),
    Case(
        "ServerMetadata",
        _v2("ServerMetadata"),
        check=_is(pb.ServerMetadataResponse, name="pipeline-serving"),
    ),
    Case(
        "ModelMetadata",
        _v2("ModelMetadata"),
        pb.ModelMetadataRequest(name=NAME).SerializeToString(),
        check=_is(pb.ModelMetadataResponse, name=NAME, versions=["1"]),
    ),
    *(
        Case(
            f"{method} of no model",
            _v2(method),
            kind(name="nope").SerializeToString(),
            status=status,
            text=text.format("nope"),
        )
        for method, kind, status, text in (
            ("ModelMetadata", pb.ModelMetadataRequest, Status.NOT_FOUND, _UNKNOWN),
            ("ModelConfig", pb.ModelConfigRequest, Status.NOT_FOUND, _UNKNOWN),
            (
                "ModelStatistics",
                pb.ModelStatisticsRequest,
                Status.INVALID_ARGUMENT,
                "requested model '{}' is not available",
            ),
        )
    ),
    Case(
        "ModelConfig",
        _v2("ModelConfig"),
        pb.ModelConfigRequest(name=NAME).SerializeToString(),
        check=_of_config,
    ),
    Case("ModelStatistics", _v2("ModelStatistics"), check=_of_stats),
    Case("RepositoryIndex", _v2("RepositoryIndex"), check=_of_index),
    *(
        Case(
            method,
            _v2(method),
            status=Status.UNAVAILABLE,
            text="explicit model load / unload is not allowed if polling is enabled",
            trailing={"grpc-retry-pushback-ms": "1000"},
        )
        for method in ("RepositoryModelLoad", "RepositoryModelUnload")
    ),
    Case(
        "SystemSharedMemoryRegister",
        _v2("SystemSharedMemoryRegister"),
        status=Status.INVALID_ARGUMENT,
        text="cannot register shared memory region '' - invalid shm key ''",
    ),
    Case("TraceSetting", _v2("TraceSetting")),
    Case("ModelInfer", _v2("ModelInfer"), infer(1, 2, request_id="7"), check=_infers("7", 1, 2)),
    Case("ModelInfer, large", _v2("ModelInfer"), infer(*_NUMBERS), check=_infers("", *_NUMBERS)),
    Case(
        "ModelInfer, gzip",
        _v2("ModelInfer"),
        infer(*[1.0] * 9999),
        compression=_GZIP,
        check=_infers("", *[1.0] * 9999),
    ),
    Case(
        "ModelInfer of no model",
        _v2("ModelInfer"),
        infer(1, model="nope"),
        status=Status.NOT_FOUND,
        text=_UNKNOWN.format("nope"),
    ),
    Case(
        "ModelInfer with another input",
        _v2("ModelInfer"),
        infer(1, name="z"),
        status=Status.INVALID_ARGUMENT,
        text=".*'z'.*",
    ),
    *(
        Case(
            f"{method} is sent something else",
            _v2(method),
            b"\xff",
            status=Status.INVALID_ARGUMENT,
            text=f"the message is no {method}Request: .*",
        )
        for method in ("ModelInfer", "ModelReady", "ModelConfig", "ServerLive", "RepositoryIndex")
    ),
    Case(
        "ModelInfer that has no time",
        _v2("ModelInfer"),
        infer(HELD, parameters={"timeout": pb.InferParameter(int64_param=50_000)}),
        status=Status.UNAVAILABLE,
        text=f"in ensemble 'conf', {_LATE}",
        trailing={"grpc-retry-pushback-ms": "1000"},
    ),
    Case(
        "ModelStreamInfer, once",
        _v2("ModelStreamInfer"),
        infer(3, request_id="s"),
        check=lambda answer: _same(streamed(answer), ("s", "", [3.0])),
    ),
)


def _same(found: object, expected: object) -> None:
    assert found == expected


CASES = (*PIPELINE_CASES, *LIMIT_CASES, *METHOD_CASES, *V2_CASES)
