"""Random messages for both edges: requests over HTTP/1.1 and HTTP/2, and calls of gRPC."""

from __future__ import annotations

import gzip
import json
import random
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from conformance_grpc import INFERENCE, infer
from conformance_server import NAME
from hostile import mutated

from pipeline.proto.pipeline_service_pb2 import Request

V2 = "/inference.GRPCInferenceService"

_ECHOES = [f"/{NAME}/echo", f"/{NAME}/told"]
_PATHS = [
    *_ECHOES, *_ECHOES, *_ECHOES, f"/{NAME}/raise", f"/{NAME}/product", f"/{NAME}/returned",
    f"/{NAME}/wrong", f"/{NAME}/none", "/other/echo", f"/{NAME}",
    f"/v2/models/{NAME}/infer", f"/v2/models/{NAME}/infer", f"/v2/models/{NAME}/infer",
    f"/v2/models/{NAME}/versions/1/infer", f"/v2/models/{NAME}/versions/2/infer",
    f"/v2/models/{NAME}/generate", f"/v2/models/{NAME}/generate_stream", "/v2/models/none/infer",
    f"/v2/models/{NAME}", f"/v2/models/{NAME}/ready", f"/v2/models/{NAME}/config", "/v2",
    "/v2/health/live", "/v2/health/ready", "/v2/repository/index", "/v2/x", "/v2/models",
    "/health/live", "/health/ready", "/health/x", "/v1/models", "/v1/chat/completions",
    "/models.json", "/openapi.json", "/none", "/favicon.ico",
]  # fmt: skip
_ODD_PATHS = [
    "//conf/echo", "/conf//echo", "/conf/echo/", "/conf/./echo", "/conf/../conf/echo",
    "/%63onf/echo", "/conf%2fecho", "/conf/echo?x=1", "/conf/echo?%zz", "/conf/echo;v=1",
    "/conf/" + "n" * 300,
    "/CONF/echo", "/conf/echo#f", "/conf/%00", "/conf/e%20o", "/v2/models/%2e%2e/infer",
    "/v2/models/conf/infer?x", "/v2//models/conf/infer", "/v2/models/c%6fnf/infer", "*",
    "http://h/conf/echo", "/conf/echo?a=b&c=d", "/conf/%F0%9F%98%80", "/.well-known/x",
]  # fmt: skip
_HEADERS = [
    "User-Agent: u/1", "Accept: */*", "Accept: application/json", "Accept-Encoding: gzip",
    "Content-Type: application/json", "Content-Type: text/plain", "Content-Type: x", "X-User: anna",
    "Cookie: a=b", "Grpc-Timeout: 30S", "Grpc-Timeout: 99999999H", "X-Request-Id: 7",
    "Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "Grpc-Metadata-A: b",
    "Content-Type: application/octet-stream", "Accept: text/html", "Referer: http://h/x",
]  # fmt: skip
_ODD_HEADERS = [
    "Grpc-Timeout: x", "Grpc-Timeout: 5", "Grpc-Timeout: -1S", "Grpc-Timeout: 123456789S",
    "Origin: http://evil", "Origin: null", "Origin: http://localhost", "Content-Encoding: identity",
    "Content-Encoding: br", "Content-Encoding: gzip, gzip", "A: " + "a" * 9000, "X-User: \xe9",
    "Accept-Encoding: br;q=1, gzip;q=0", "If-None-Match: *", "Range: bytes=0-1", "Te: trailers",
    "X-Pipeline-Caller: root", "X-Forwarded-For: 1.2.3.4", "Inference-Header-Content-Length: 5",
    "Inference-Header-Content-Length: x", "Inference-Header-Content-Length: 99999",
    "Sec-Fetch-Site: cross-site", "Cache-Control: no-cache", "Upgrade-Insecure-Requests: 1",
]  # fmt: skip
_VALUES = ["1", "é", "漢", "", " ", "\\u0000", "v" * 3000, "7", "text", "\\ud83d\\ude00"]
_JSON = [
    "{}", "[]", "null", "", " {} ", '"x"', "1", '{"key": ["a"]}', '{"key": 1}', '{"logid": 5}',
    '{"tensors": []}', '{"tensors": [{}]}', '{"tensors": [{"name": "t", "int_data": [1, 2]}]}',
    '{"tensors": [{"float_data": [1.5, 2], "shape": [2], "elem_type": 1}], "key": ["a"]}',
    '{"tensors": [{"byte_data": "QUJD"}]}', '{"tensors": [{"str_data": ["a", "b"]}]}',
    '{"unknown": {"a": [1, {"b": null}]}}', '{"err_no": 1}', '{"key": null, "value": null}',
    '{"key": ["7"], "value": ["8", "of the user"]}', '{"value": ["5", "no"]}', '{"clientip": "c"}',
    '{"logid": "12", "clientip": "1.2.3.4"}', '{"model": "conf", "messages": []}',
]  # fmt: skip


_MOST_BYTES = 60_000
_OTHER_ORIGINS = ("/health", "http://")
"""Paths where the edges check an Origin differently: the gateway's own, one with a host."""


@dataclass(frozen=True)
class HttpCase:
    """One request. `is_strict`: both answers have to be equal; otherwise parsers may disagree."""

    method: str
    path: str
    headers: tuple[str, ...]
    body: bytes
    is_strict: bool = True
    wound: int = 0  # the seed of its damage; 0: none

    def raw(self) -> bytes:
        """Return it as the last request of an HTTP/1.1 connection."""
        lines = [f"{self.method} {self.path} HTTP/1.1", "Host: localhost", *self.headers]
        lines += ["Connection: close", f"Content-Length: {len(self.body)}", "", ""]
        data = "\r\n".join(lines).encode("latin-1") + self.body
        return mutated(data, random.Random(self.wound)) if self.wound else data


@dataclass(frozen=True)
class GrpcCase:
    """One unary call."""

    method: str
    message: bytes
    metadata: tuple[tuple[str, str | bytes], ...]
    compression: grpc.Compression | None


def http_case(draw: random.Random) -> HttpCase:
    """Return a random request."""
    is_odd = draw.random() < 0.15
    path = draw.choice(_ODD_PATHS if draw.random() < 0.1 else _PATHS)
    method = draw.choice(
        ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"] if is_odd else ["POST"]
    )
    if path.startswith(("/health", "/models.json", "/openapi")) or path.count("/") < 2:
        method = draw.choice([method, "GET", "GET"])
    headers = draw.sample(_HEADERS, draw.randrange(4))
    if draw.random() < 0.2:
        odd = draw.choice(_ODD_HEADERS)
        if not (odd.startswith("Origin") and path.startswith(_OTHER_ORIGINS)):
            headers.append(odd)
    body, more = _body(draw, path)
    body = body[:_MOST_BYTES]  # of a larger one a server that refuses it reads only a part
    wound = draw.randrange(1, 2**32) if draw.random() < 0.25 and method != "HEAD" else 0
    return HttpCase(method, path, (*headers, *more), body, is_strict=not wound, wound=wound)


def _body(draw: random.Random, path: str) -> tuple[bytes, list[str]]:
    """Return a body for a path, and headers that it needs."""
    kind = draw.choice(("json", "json", "pairs", "v2", "binary", "noise"))
    headers: list[str] = []
    if path.startswith("/v2/models") and kind in ("json", "pairs"):
        kind = "v2"
    if kind == "pairs":
        count = draw.randrange(4)
        values = ", ".join(f'"{draw.choice(_VALUES)}"' for _ in range(count))
        keys = ", ".join(f'"k{number}"' for number in range(count))
        data = f'{{"key": [{keys}], "value": [{values}]}}'.encode()
    elif kind == "json":
        data = draw.choice(_JSON).encode()
    elif kind == "v2":
        data = json.dumps(_v2(draw)).encode()
    elif kind == "binary":
        data, headers = _v2_binary(draw)
    else:
        data = draw.randbytes(draw.randrange(40))
    if draw.random() < 0.2:
        data = mutated(data, draw)
    if draw.random() < 0.15:
        pack, name = draw.choice([(gzip.compress, "gzip"), (zlib.compress, "deflate")])
        data = pack(data)
        headers.append(f"Content-Encoding: {name}")
        if draw.random() < 0.2:
            data = mutated(data, draw)
    return data, headers


def _v2(draw: random.Random) -> dict[str, Any]:
    count = draw.randrange(4)
    said = {
        "name": draw.choice(["x", "x", "x", "y", ""]),
        "shape": draw.choice([[count], [count], [count], [1, count], [count + 1], [-1], [], "x"]),
        "datatype": draw.choice(["FP32", "FP32", "FP32", "FP64", "INT32", "BYTES", "x"]),
        "data": draw.choice([[1.5] * count, list(range(count)), [[0.5]] * count, ["a"] * count]),
    }
    if draw.random() < 0.1:
        del said[draw.choice([*said])]
    request: dict[str, Any] = {"inputs": [said] * draw.choice((0, 1, 1, 1, 1, 2))}
    if draw.random() < 0.3:
        request["id"] = draw.choice(["7", 7, "é"])
    if draw.random() < 0.3:
        request["outputs"] = [{"name": draw.choice(["x", "z"])}]
    if draw.random() < 0.2:
        parameter = draw.choice(["binary_data_output", "priority", "timeout", "x", "sequence_id"])
        request["parameters"] = {parameter: draw.choice([True, 0, "a", -1, None])}
    return request


def _v2_binary(draw: random.Random) -> tuple[bytes, list[str]]:
    """Return a body whose tensor follows its JSON."""
    count = draw.randrange(5)
    data = np.arange(count, dtype=np.float32).tobytes()
    size = draw.choice([len(data)] * 6 + [len(data) + 1, 0, -1])
    said = {"name": "x", "shape": [count], "datatype": "FP32"}
    head = {"inputs": [{**said, "parameters": {"binary_data_size": size}}]}
    text = json.dumps(head).encode()
    length = draw.choice([len(text)] * 6 + [len(text) - 1, len(text) + 1])
    return text + data, [f"Inference-Header-Content-Length: {length}"]


# gRPC ---------------------------------------------------------------------------------------

_METHODS = [
    INFERENCE, INFERENCE, INFERENCE, f"{V2}/ModelInfer", f"{V2}/ModelInfer", f"{V2}/ServerLive",
    f"{V2}/ServerReady", f"{V2}/ModelReady", f"{V2}/ModelMetadata", f"{V2}/ModelConfig",
    f"{V2}/RepositoryIndex", f"{V2}/ServerMetadata", f"{V2}/None", "/none/None",
    "/grpc.health.v1.Health/Check",
]  # fmt: skip
_METADATA = [
    ("x-user", "anna"), ("pipeline-timeout", "30S"), ("pipeline-timeout", "x"), ("a", "b" * 3000),
    ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), ("a-bin", b"\0"),
    ("x-pipeline-caller", "root"), ("authorization", "Bearer x"),
]  # fmt: skip


def grpc_case(draw: random.Random) -> GrpcCase:
    """Return a random call."""
    method = draw.choice(_METHODS)
    message = _message(draw, method)
    if draw.random() < 0.25 and not method.endswith("Check"):  # the libraries' own service
        message = mutated(message, draw)
    metadata = tuple(draw.sample(_METADATA, draw.choice((0, 0, 1, 2))))
    compression = draw.choice([None, None, grpc.Compression.Gzip, grpc.Compression.Deflate])
    return GrpcCase(method, message, metadata, compression)


def _message(draw: random.Random, method: str) -> bytes:
    if method == INFERENCE:
        asked = draw.choice(["echo", "echo", "told", "raise", "returned", "wrong", ""])
        count = draw.randrange(4)
        values = [draw.choice(["1", "é", "", "v" * 3000, "7"]) for _ in range(count)]
        keys = [f"k{number}" for number in range(draw.choice((count, count, count, count + 1)))]
        name = draw.choice([NAME, NAME, NAME, "", "other"])
        said = Request(name=name, method=asked, key=keys, value=values, logid=draw.randrange(9))
        return said.SerializeToString()
    if method.endswith("ModelInfer"):
        values = [float(number) for number in range(draw.randrange(5))]
        model = draw.choice([NAME, NAME, NAME, "none", ""])
        return infer(*values, model=model, name=draw.choice(["x", "x", "y"]), request_id="r")
    name = draw.choice([NAME, NAME, "none", ""]).encode()
    return b"\x0a" + struct.pack("B", len(name)) + name if draw.random() < 0.7 else b""
