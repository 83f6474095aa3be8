"""One request by an ordinary client, to see that a service answers, and answers right."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from benchmarks import NotMeasuredError
from benchmarks.load import INFERENCE
from pipeline.proto import codec
from pipeline.proto import pipeline_service_pb2 as pb

_TIMEOUT_S = 10.0
_MOST_TEXT = 1000  # characters of a wrong answer that are shown


@dataclass(frozen=True, slots=True)
class Question:
    """A request with one key and value, and how its answer is told from a wrong one.

    A `value` that is no str travels as a tensor, over gRPC only. `repeats_exactly`: every answer
    is the same, byte by byte; a model's last digits may differ with the batch of a request.
    """

    key: str
    value: Any
    is_right: Callable[[Mapping[str, Any]], bool]
    repeats_exactly: bool = True

    def as_json(self) -> bytes:
        return json.dumps({"key": [self.key], "value": [self.value]}).encode()

    def as_message(self) -> bytes:
        if isinstance(self.value, str):
            request = pb.Request(key=[self.key], value=[self.value])
        else:
            request = pb.Request(tensors=[codec.numpy_to_tensor(self.key, self.value)])
        return request.SerializeToString()


def ask_http(url: str, question: Question) -> bytes:
    """The answer's body. Raises OSError while there is no server, NotMeasuredError."""
    request = urllib.request.Request(
        url, question.as_json(), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:
        body: bytes = reply.read()
    answer = json.loads(body)
    found = dict(zip(answer["key"], answer["value"], strict=True))
    _check(question, answer["err_no"], answer["err_msg"], found)
    return body


def ask_grpc(port: int, question: Question) -> bytes:
    """The answer's message. Raises OSError while there is no server, NotMeasuredError."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Callable[..., bytes] = channel.unary_unary(INFERENCE)
        try:
            message = call(question.as_message(), timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            raise OSError(str(error)) from error
    answer = pb.Response.FromString(message)
    found = dict(zip(answer.key, answer.value, strict=True)) | codec.decode_tensors(answer.tensors)
    _check(question, answer.err_no, answer.err_msg, found)
    return message


def _check(question: Question, err_no: int, err_msg: str, found: Mapping[str, Any]) -> None:
    if err_no or not question.is_right(found):
        text = str(found)[:_MOST_TEXT]
        raise NotMeasuredError(f"wrong answer: err_no {err_no} {err_msg}, {text}")
