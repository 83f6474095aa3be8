"""Requests to the genuine Triton and to ours: valid and damaged ones, by a seed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_BINARY = "Inference-Header-Content-Length"
_ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 2**31, 2**63, 1e400, "", "x", "INT32", [], [[]], {}, {"a": 1}),
    *([1, "x"], [None], [-1], [0], [2**40], [1, 2, 3], [[1, 2], [3]], "\u00e9\u20ac", "0", "true"),
)
_NAMES = ("name", "id", "shape", "datatype", "data", "parameters", "inputs", "outputs", "INPUT0")
_PARAMETERS = (
    *("binary_data", "binary_data_size", "binary_data_output", "classification", "timeout"),
    *("priority", "sequence_id", "sequence_start", "sequence_end", "shared_memory_region"),
    *("triton_x", "triton_enable_empty_final_response", "max_tokens", "headers"),
)


@dataclass
class Question:
    """One HTTP request; `name` says what it is about."""

    name: str
    path: str
    body: bytes = b""
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)


def _input(name: str, dtype: str, shape: list[int], data: Any, **parameters: Any) -> dict[str, Any]:
    tensor = {"name": name, "datatype": dtype, "shape": shape, "data": data}
    return {**tensor, "parameters": parameters} if parameters else tensor


def _pair(dtype: str, shape: list[int], data: list[Any]) -> dict[str, Any]:
    return {"inputs": [_input(f"INPUT{number}", dtype, shape, data) for number in (0, 1)]}


_FOUR = [1, 2, 3, 4]
_TYPES: dict[str, Any] = {
    "BOOL": [True, False],
    "FP16": None,
    "FP32": [0.5, -2.25],
    "FP64": [1e300, -0.1],
    "BYTES": ["a", ""],
    "UINT8": [0, 255],
    "UINT16": [0, 65535],
    "UINT32": [0, 2**32 - 1],
    "UINT64": [0, 2**64 - 1],
    "INT8": [-128, 127],
    "INT16": [-32768, 32767],
    "INT32": [-(2**31), 2**31 - 1],
    "INT64": [-(2**63), 2**63 - 1],
}
GOOD: list[tuple[str, dict[str, Any]]] = [
    ("add", _pair("FP32", [4], _FOUR)),
    ("add", {**_pair("FP32", [4], _FOUR), "id": "of me", "outputs": [{"name": "OUTPUT1"}]}),
    ("add_batched", _pair("INT32", [1, 4], _FOUR)),
    ("add_batched", _pair("INT32", [2, 4], [[1, 2, 3, 4], [5, 6, 7, 8]])),
    ("any_size", {"inputs": [_input("IN_A", "FP32", [1, 2, 2], _FOUR)]}),
    ("texts", {"inputs": [_input("IN_T", "BYTES", [1, 2], ["a\u00e9", "b\n"])]}),
    *(
        (
            "types",
            {"inputs": [_input(f"IN_{'STRING' if kind == 'BYTES' else kind}", kind, [2], data)]},
        )
        for kind, data in _TYPES.items()
        if data is not None
    ),
    ("repeat", {"inputs": [_input("IN", "INT32", [1], [7])]}),
    ("versions", {"inputs": [_input("IN", "INT32", [1], [7])]}),
    ("parameters", {"inputs": [_input("IN", "INT32", [1], [7])], "id": "5"}),
    (
        "parameters",
        {
            "inputs": [_input("IN", "INT32", [1], [7])],
            "parameters": {"a": 1, "b": "x", "c": True, "d": -3},
        },
    ),
    *(("errors", {"inputs": [_input("CODE", "INT32", [1, 1], [code])]}) for code in range(8)),
    ("refused", {"inputs": [_input("CODE", "INT32", [1, 1], [3])], "id": "r"}),
    (
        "labelled",
        {
            "inputs": [_input("IN_X", "FP32", [1, 3], [0.1, 0.7, 0.2])],
            "outputs": [{"name": "OUT_X", "parameters": {"classification": 2}}],
        },
    ),
    ("chain", {"inputs": [_input(name, "INT32", [1, 4], _FOUR) for name in "AB"]}),
    (
        "chain",
        {
            "inputs": [_input(name, "INT32", [1, 4], _FOUR) for name in "AB"],
            "outputs": [{"name": "C"}],
            "id": "mine",
        },
    ),
    ("outer", {"inputs": [_input(name, "INT32", [2, 4], [_FOUR, _FOUR]) for name in "AB"]}),
]
"""(model, request) that are answered, if not with an error of the model's."""


def sequences() -> Iterator[Question]:
    """Requests of sequences, good and bad, in this order."""
    for model in ("direct", "oldest"):
        for key in (5, "text"):
            for place, parameters in enumerate(
                (
                    {"sequence_id": key, "sequence_start": True},
                    {"sequence_id": key},
                    {"sequence_id": key, "sequence_end": True},
                    {"sequence_id": key},
                    {"sequence_id": key, "sequence_start": True, "sequence_end": True},
                    {"sequence_start": True},
                    {},
                    {"sequence_id": 0, "sequence_start": True},
                    {"sequence_id": -1, "sequence_start": True, "sequence_end": True},
                    {"sequence_id": key, "sequence_start": 1},
                    {"sequence_id": True, "sequence_start": True, "sequence_end": True},
                    {"sequence_id": key, "sequence_end": "yes"},
                )
            ):
                request = {
                    "inputs": [_input("IN", "INT32", [1, 1], [place])],
                    "parameters": parameters,
                }
                yield _infer(f"{model} {parameters}", model, request)


def descriptions(models: list[str]) -> Iterator[Question]:
    """Yield questions about models and the server, without inference."""
    for path in (
        *("/v2", "/v2/", "/v2/health/live", "/v2/health/ready", "/v2/models/stats"),
        *("/v2/nothing", "/v3", "/", "/v2/models", "/v2/models/", "/v2/health", "/v2/health/dead"),
        *("/v2/repository/index", "/v2/models/add/nothing", "/v2/models/add/versions"),
        *("/v2/models/add/versions/x", "/v2/models/add/versions/-1/ready", "/v2//models/add"),
        *("/v2/models/add/versions/1/versions/2", "/v2/models/a%64d", "/v2/models/add?x=1"),
    ):
        for method in ("GET", "POST"):
            yield Question(f"{method} {path}", path, method=method)
    for model in (*models, "unknown"):
        for suffix in ("", "/ready", "/config", "/stats", "/versions/1", "/versions/1/ready"):
            path = f"/v2/models/{model}{suffix}"
            yield Question(f"GET {path}", path, method="GET")
        for version in ("2", "3", "99", "0", "18446744073709551616"):
            path = f"/v2/models/{model}/versions/{version}"
            yield Question(f"GET {path}", path, method="GET")
    for body in (b"", b"{}", b'{"ready": true}', b'{"ready": 1}', b"[]", b"x", b'{"x": 1}'):
        yield Question(f"index {body!r}", "/v2/repository/index", body)
    for name in ("add", "unknown", "broken", "wrong", "chain"):
        for body in (b"", b"{}", b"x", b"[]", b'{"parameters": 1}', b'{"parameters": {"x": 1}}'):
            yield Question(f"load {name} {body!r}", f"/v2/repository/models/{name}/load", body)
    for body in (b'{"parameters": {"config": "x"}}', b'{"parameters": {"config": "{}"}}'):
        yield Question(f"load add {body!r}", "/v2/repository/models/add/load", body)
    for body in (b'{"parameters": {"file:1/model.py": "eA=="}}', b'{"parameters": {"config": 1}}'):
        yield Question(f"load add {body!r}", "/v2/repository/models/add/load", body)
    for body in (b"", b'{"parameters": {"unload_dependents": 1}}', b"x", b"[]"):
        yield Question(f"unload {body!r}", "/v2/repository/models/unknown/unload", body)


def good() -> Iterator[Question]:
    """Yield the valid requests, as JSON, as binary data, and mixed."""
    for number, (model, request) in enumerate(GOOD):
        yield _infer(f"good {number} {model}", model, request)
        wants = copy.deepcopy(request)
        wants.setdefault("parameters", {})["binary_data_output"] = True
        yield _infer(f"good {number} {model}, binary answer", model, wants)
        yield _binary(f"good {number} {model}, binary", model, request)
    yield _infer("version 2", "versions/versions/2", _one())
    yield _infer("version 3", "versions/versions/3", _one())
    yield _infer("version 1", "versions/versions/1", _one())
    yield _infer("version 9", "versions/versions/9", _one())
    yield _infer("unknown", "unknown", _one())
    yield _infer("broken", "broken", _one())


def _one() -> dict[str, Any]:
    return {"inputs": [_input("IN", "INT32", [1], [7])]}


def wrong(seed: int, count: int) -> Iterator[Question]:
    """Yield valid requests with one or two changes."""
    rng = random.Random(seed)
    for number in range(count):
        model, request = rng.choice(GOOD)
        name = f"wrong {seed}.{number} {model}"
        changed: Any = copy.deepcopy(request)
        kind = rng.randrange(10)
        if kind < 6:
            for _ in range(rng.choice((1, 1, 2))):
                changed = _changed(rng, changed)
            yield _infer(name, model, changed)
        elif kind < 8:
            question = _binary(name, model, _changed(rng, changed) if kind == 7 else changed)
            length = int(question.headers[_BINARY])
            shift = rng.choice((-1, 1, 4, -4, 0, 1000, -length, -length - 1))
            if rng.random() < 0.5:
                question.headers[_BINARY] = str(length + shift)
            elif shift < 0:
                question.body = question.body[:shift]
            else:
                question.body += bytes(shift)
            yield question
        elif kind == 8:
            text = json.dumps(changed).encode()
            at = rng.randrange(len(text))
            odd = rng.choice((b"", b"{", b"]", b"\x00", b"\xff", b",", b'"', b"1"))
            question = _infer(name, model, changed)
            question.body = text[:at] + odd + text[at + rng.randrange(3) :]
            yield question
        else:
            question = _infer(name, model, changed)
            question.headers[_BINARY] = rng.choice(("", "x", "-1", "0", "99999", "1.5", "+3", " 3"))
            yield question


def _changed(rng: random.Random, request: Any) -> Any:
    """Return a request with one place of it changed."""
    places: list[tuple[Any, Any]] = []

    def look(inside: Any) -> None:
        pairs = inside.items() if isinstance(inside, dict) else enumerate(inside)
        for key, value in pairs:
            places.append((inside, key))
            if isinstance(value, dict | list):
                look(value)

    look(request)
    if not places:
        return request
    holder, key = rng.choice(places)
    kind = rng.randrange(5)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.append(copy.deepcopy(holder[key]))
    elif kind == 1:
        holder[rng.choice(_NAMES)] = copy.deepcopy(holder[key])
    elif kind == 2:
        target = (
            rng.choice(
                [
                    request,
                    *(tensor for tensor in request.get("inputs", []) if isinstance(tensor, dict)),
                ]
            )
            if isinstance(request.get("inputs"), list)
            else request
        )
        parameters = target.setdefault("parameters", {})
        if isinstance(parameters, dict):
            parameters[rng.choice(_PARAMETERS)] = rng.choice((*_ODD, 1, 8, 16, 64, True))
    else:
        holder[key] = rng.choice(_ODD)
    return request


def _infer(name: str, model: str, request: Any) -> Question:
    return Question(name, f"/v2/models/{model}/infer", json.dumps(request).encode())


def _binary(name: str, model: str, request: Any) -> Question:
    """Return the same request with binary data where it can be."""
    request, tail = copy.deepcopy(request), b""
    inputs = request.get("inputs")
    for tensor in inputs if isinstance(inputs, list) else ():
        raw = raw_of(tensor) if isinstance(tensor, dict) else None
        if raw is not None and isinstance(tensor.setdefault("parameters", {}), dict):
            del tensor["data"]
            tensor["parameters"]["binary_data_size"] = len(raw)
            tail += raw
    text = json.dumps(request).encode()
    path = f"/v2/models/{model}/infer"
    return Question(name, path, text + tail, headers={_BINARY: str(len(text))})


def said_in(question: Question) -> dict[str, Any]:
    """Return a question's JSON."""
    return dict(json.loads(question.body))


def raw_of(tensor: dict[str, Any]) -> bytes | None:
    """Return a tensor's data as bytes; None: its data does not fit."""
    import numpy as np

    names = {"FP32": "f4", "FP64": "f8", "INT32": "i4", "INT64": "i8", "BOOL": "?", "UINT8": "u1"}
    kind, data = tensor.get("datatype"), tensor.get("data")
    try:
        if kind == "BYTES":
            texts = [text.encode() for text in data or ()]
            return b"".join(len(text).to_bytes(4, "little") + text for text in texts)
        return np.array(data, names[kind or ""]).tobytes()
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None
