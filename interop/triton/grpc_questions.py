"""Requests over gRPC to the genuine Triton and to ours: as over HTTP, and damaged messages.

A question's message is made of the same JSON as over HTTP, with typed contents or with raw ones.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import questions
from google.protobuf.message import Message

from pipeline.proto import inference_v2_pb2 as v2

_CONTENTS = {
    "BOOL": "bool_contents",
    "BYTES": "bytes_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
}
_KINDS = sorted({*_CONTENTS, "FP16", "", "fp32", "x", "BF16"})
_SHAPES: tuple[list[int], ...] = ([], [0], [1], [-1], [4, 1], [1, 1, 4], [2, 2], [1, 8], [3], [2])
_WORDS = ("", "x", "INPUT0", "OUTPUT0", "IN", "\u00e9")
_PARAMETERS = (
    *("classification", "timeout", "priority", "sequence_id", "sequence_start", "sequence_end"),
    *("shared_memory_region", "shared_memory_byte_size", "binary_data", "x", "triton_x"),
    *("triton_enable_empty_final_response", "headers"),
)
_VALUES: tuple[dict[str, Any], ...] = (
    {"int64_param": 1},
    {"int64_param": -1},
    {"int64_param": 0},
    {"uint64_param": 2**64 - 1},
    {"bool_param": True},
    {"string_param": "x"},
    {"string_param": ""},
    {"double_param": 1.5},
    {},
)


@dataclass
class Question:
    """One call: `messages` are those of a stream, or the one of a plain call."""

    name: str
    method: str
    answer: type[Message]
    messages: list[Message] = field(default_factory=list)
    streams: bool = False


def good() -> Iterator[Question]:
    """The good requests of HTTP, with typed contents, with raw ones, and over a stream."""
    for number, (model, request) in enumerate(questions.GOOD):
        for form in ("typed", "raw"):
            message = request_of(model, request, is_raw=form == "raw")
            yield infer(f"good {number} {model}, {form}", message)
            yield infer(f"good {number} {model}, {form}, stream", message, streams=True)
    one = {"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1], "data": [7]}]}
    for version in ("1", "2", "3", "9", "x", "-1"):
        message = request_of("versions", one)
        message.model_version = version
        yield infer(f"version {version}", message)
    for model in ("unknown", "broken", ""):
        for streams in (False, True):
            yield infer(f"model {model!r}", request_of(model, one), streams)


def sequences() -> Iterator[Question]:
    """Requests of sequences, good and bad, each model's one behind the other."""
    for question in questions.sequences():
        model = question.path.split("/")[3]
        yield infer(question.name, request_of(model, questions.said_in(question)))


def wrong(seed: int, count: int) -> Iterator[Question]:
    """Good requests with one or two things changed."""
    rng = random.Random(seed)
    for number in range(count):
        model, request = rng.choice(questions.GOOD)
        message = request_of(model, request, is_raw=rng.random() < 0.5)
        for _ in range(rng.choice((1, 1, 2))):
            _change(rng, message)
        is_stream = rng.random() < 0.3
        yield infer(f"wrong {seed}.{number} {model}", message, is_stream)


def descriptions(models: list[str]) -> Iterator[Question]:
    """Yield questions about models and the server, without inference."""
    for method in ("ServerLive", "ServerReady", "ServerMetadata", "RepositoryIndex"):
        yield _call(method)
    yield _call("RepositoryIndex", ready=True)
    yield _call("RepositoryIndex", repository_name="x")
    for name in (*models, "unknown", ""):
        for version in ("", "1", "2", "99", "x"):
            for method in ("ModelReady", "ModelMetadata"):
                yield _call(method, name=name, version=version)
            yield _call("ModelConfig", name=name, version=version)
            yield _call("ModelStatistics", name=name, version=version)
    for method in ("SystemSharedMemory", "CudaSharedMemory"):
        for name in ("", "unknown"):
            yield _call(f"{method}Status", name=name)
            yield _call(f"{method}Unregister", name=name)
    key = "/nothing_is_here"
    yield _call("SystemSharedMemoryRegister", name="a", key=key, byte_size=8)
    for name in ("unknown", "broken", "wrong"):
        yield _call("RepositoryModelLoad", model_name=name)
    for parameters in ({"config": "x"}, {"x": "y"}):
        message = v2.RepositoryModelLoadRequest(model_name="add")
        for key, value in parameters.items():
            message.parameters[key].string_param = value
        yield _called("RepositoryModelLoad", message)
    yield _call("RepositoryModelUnload", model_name="unknown")


def infer(name: str, message: Message, streams: bool = False) -> Question:
    if streams:
        return Question(name, "ModelStreamInfer", v2.ModelStreamInferResponse, [message], True)
    return Question(name, "ModelInfer", v2.ModelInferResponse, [message])


def request_of(model: str, request: dict[str, Any], is_raw: bool = False) -> Any:
    """Return a request over gRPC from its form over HTTP."""
    message = v2.ModelInferRequest(model_name=model, id=request.get("id", ""))
    _set_parameters(message.parameters, request.get("parameters", {}))
    for tensor_fields in request["inputs"]:
        tensor = message.inputs.add(name=tensor_fields["name"], datatype=tensor_fields["datatype"])
        tensor.shape.extend(tensor_fields["shape"])
        _set_parameters(tensor.parameters, tensor_fields.get("parameters", {}))
        raw = questions.raw_of(tensor_fields) if is_raw else None
        if raw is not None:
            message.raw_input_contents.append(raw)
            continue
        values = list(_flat(tensor_fields["data"]))
        if tensor_fields["datatype"] == "BYTES":
            values = [value.encode() for value in values]
        getattr(tensor.contents, _CONTENTS[tensor_fields["datatype"]]).extend(values)
    for tensor_fields in request.get("outputs", ()):
        _set_parameters(
            message.outputs.add(name=tensor_fields["name"]).parameters,
            tensor_fields.get("parameters", {}),
        )
    return message


def _flat(data: Any) -> Iterator[Any]:
    for element in data:
        if isinstance(element, list):
            yield from _flat(element)
        else:
            yield element


def _set_parameters(parameters: Any, values: dict[str, Any]) -> None:
    for key, value in values.items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(parameters[key], kind, value)


def _change(rng: random.Random, message: Any) -> None:
    """Change one place of a request."""
    inputs, raw = message.inputs, message.raw_input_contents
    tensor = rng.choice(inputs) if inputs else inputs.add()
    match rng.randrange(13):
        case 0:
            tensor.name = rng.choice(_WORDS)
        case 1:
            tensor.datatype = rng.choice(_KINDS)
        case 2:
            del tensor.shape[:]
            tensor.shape.extend(rng.choice(_SHAPES))
        case 3 if raw:
            at = rng.randrange(len(raw))
            raw[at] = rng.choice((b"", raw[at][:-1], raw[at] + b"\0", raw[at] * 2))
        case 4 if raw:
            del raw[rng.randrange(len(raw))]
        case 5:
            raw.append(b"\0" * 4)
        case 6:
            field_name = rng.choice(sorted(set(_CONTENTS.values())))
            one = b"x" if field_name == "bytes_contents" else 1
            getattr(tensor.contents, field_name).append(one)
        case 7:
            message.outputs.add(name=rng.choice(_WORDS))
        case 8:
            holder = rng.choice([message, tensor, *message.outputs])
            value = holder.parameters[rng.choice(_PARAMETERS)]
            value.CopyFrom(v2.InferParameter(**rng.choice(_VALUES)))
        case 9:
            inputs.append(copy.deepcopy(tensor))
        case 10:
            del inputs[0]
        case 11:
            message.model_version = rng.choice(("1", "2", "x", "-1"))
        case _:
            tensor.ClearField(rng.choice(("name", "datatype", "shape", "contents")))


def _call(method: str, **fields: Any) -> Question:
    return _called(method, getattr(v2, f"{method}Request")(**fields))


def _called(method: str, message: Message) -> Question:
    about = " ".join(str(message).split())
    return Question(f"{method} {about}", method, getattr(v2, f"{method}Response"), [message])
