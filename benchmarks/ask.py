"""One request by an ordinary client, to see that a service answers, and answers right."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import grpc

from benchmarks import NotMeasuredError
from benchmarks.load import INFERENCE
from pipeline.proto import pipeline_service_pb2 as pb

_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Question:
    """A request with one key and value, and how its answer is told from a wrong one.

    `repeats_exactly`: every answer is the same, byte by byte; a model's last digits may differ
    with the batch that a request is in.
    """

    key: str
    value: str
    is_right: Callable[[Mapping[str, str]], bool]
    repeats_exactly: bool = True

    def as_json(self) -> bytes:
        return json.dumps({"key": [self.key], "value": [self.value]}).encode()

    def as_message(self) -> bytes:
        return pb.Request(key=[self.key], value=[self.value]).SerializeToString()


def ask_http(url: str, question: Question) -> bytes:
    """The answer's body. Raises OSError while there is no server, NotMeasuredError."""
    request = urllib.request.Request(
        url, question.as_json(), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:
        body: bytes = reply.read()
    answer = json.loads(body)
    _check(question, answer["err_no"], answer["key"], answer["value"])
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
    _check(question, answer.err_no, answer.key, answer.value)
    return message


def _check(question: Question, err_no: int, keys: Sequence[str], values: Sequence[str]) -> None:
    if err_no or not question.is_right(dict(zip(keys, values, strict=True))):
        raise NotMeasuredError(
            f"wrong answer: err_no {err_no}, key {list(keys)}, value {list(values)}"
        )
