"""One request by an ordinary client, to see that a service answers, and answers right."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import grpc
import numpy as np

from benchmarks import NotMeasuredError
from pipeline.proto import codec
from pipeline.proto import inference_v2_pb2 as v2
from pipeline.proto import pipeline_service_pb2 as pb
from pipeline.proto.v2.raw import DATATYPES, datatype_of

_TIMEOUT_S = 10.0
_MOST_TEXT = 1000  # characters of a wrong answer that are shown
_HEAD_BYTES = "Inference-Header-Content-Length"


@dataclass(frozen=True, slots=True)
class Question:
    """A request with one key and value, and the check of its answer.

    A `value` that is not a str is sent as a tensor, over gRPC only. `repeats_exactly`: all answers
    are the same bytes; a model's last digits may differ with the batch of a request.
    """

    key: str
    value: Any
    is_right: Callable[[Mapping[str, Any]], bool]
    repeats_exactly: bool = True

    METHOD: ClassVar[str] = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the request over HTTP."""
        return {"Content-Type": "application/json"}

    def as_body(self) -> bytes:
        """The request over HTTP."""
        return json.dumps({"key": [self.key], "value": [self.value]}).encode()

    def as_message(self) -> bytes:
        """The request over gRPC."""
        if isinstance(self.value, str):
            request = pb.Request(key=[self.key], value=[self.value])
        else:
            request = pb.Request(tensors=[codec.numpy_to_tensor(self.key, self.value)])
        return request.SerializeToString()

    def check_body(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Raise NotMeasuredError for an answer over HTTP that is wrong."""
        answer = json.loads(body)
        values = dict(zip(answer["key"], answer["value"], strict=True))
        self.check(values, f"{answer['err_no']} {answer['err_msg']}", not answer["err_no"])

    def check_message(self, message: bytes) -> None:
        """Raise NotMeasuredError for an answer over gRPC that is wrong."""
        answer = pb.Response.FromString(message)
        tensors = codec.decode_tensors(answer.tensors)
        values = dict(zip(answer.key, answer.value, strict=True)) | tensors
        self.check(values, f"{answer.err_no} {answer.err_msg}", not answer.err_no)

    def check(self, values: Mapping[str, Any], error: str = "", is_well: bool = True) -> None:
        """Raise NotMeasuredError for a wrong answer."""
        if not is_well or not self.is_right(values):
            raise NotMeasuredError(f"wrong answer: {error}, {str(values)[:_MOST_TEXT]}")


@dataclass(frozen=True, slots=True)
class PlainQuestion(Question):
    """A request in plain JSON, over HTTP only; the value is any that JSON has."""

    def as_body(self) -> bytes:
        return json.dumps({self.key: self.value}).encode()

    def check_body(self, body: bytes, headers: Mapping[str, str]) -> None:
        answer = json.loads(body)
        self.check(answer, str(answer.get("error")), "error" not in answer)


@dataclass(frozen=True, slots=True)
class FormQuestion(PlainQuestion):
    """A picture as the file of a form, as browsers send it; the answer is plain JSON."""

    @property
    def headers(self) -> dict[str, str]:
        return {"Content-Type": "multipart/form-data; boundary=0a1b2c"}

    def as_body(self) -> bytes:
        head = (
            f'--0a1b2c\r\nContent-Disposition: form-data; name="{self.key}"; filename="a.jpg"\r\n'
        )
        start = f"{head}Content-Type: image/jpeg\r\n\r\n".encode()
        return start + bytes(self.value) + b"\r\n--0a1b2c--\r\n"


@dataclass(frozen=True, slots=True)
class V2JsonQuestion(Question):
    """Numbers for a model of the v2 protocol: JSON there and back."""

    def as_body(self) -> bytes:
        tensor = {"name": self.key, "datatype": "FP32", "shape": [len(self.value)]}
        return json.dumps({"inputs": [{**tensor, "data": self.value}]}).encode()

    def check_body(self, body: bytes, headers: Mapping[str, str]) -> None:
        answer = json.loads(body)
        values = {output["name"]: output["data"] for output in answer.get("outputs", ())}
        self.check(values, str(answer.get("error")), "error" not in answer)


@dataclass(frozen=True, slots=True)
class PictureQuestion(Question):
    """A picture, over HTTP only: its bytes there and back."""

    @property
    def headers(self) -> dict[str, str]:
        return {"Content-Type": "image/png"}

    def as_body(self) -> bytes:
        body: bytes = self.value
        return body

    def check_body(self, body: bytes, headers: Mapping[str, str]) -> None:
        self.check({self.key: body})


@dataclass(frozen=True, slots=True)
class V2Question(Question):
    """An array for a model of the v2 protocol: raw bytes there and back."""

    model: str = ""

    METHOD: ClassVar[str] = "/inference.GRPCInferenceService/ModelInfer"

    @property
    def headers(self) -> dict[str, str]:
        return {"Content-Type": "application/octet-stream", _HEAD_BYTES: str(len(self._head()))}

    def as_body(self) -> bytes:
        return self._head() + self.value.tobytes()

    def as_message(self) -> bytes:
        tensor = v2.ModelInferRequest.InferInputTensor(
            name=self.key, datatype=datatype_of(self.value.dtype), shape=self.value.shape
        )
        return v2.ModelInferRequest(
            model_name=self.model, inputs=[tensor], raw_input_contents=[self.value.tobytes()]
        ).SerializeToString()

    def check_body(self, body: bytes, headers: Mapping[str, str]) -> None:
        if _HEAD_BYTES not in headers:
            raise NotMeasuredError(f"not an answer with raw tensors: {body[:_MOST_TEXT]!r}")
        size = int(headers[_HEAD_BYTES])
        outputs = json.loads(body[:size])["outputs"]
        forms = {output["name"]: (output["datatype"], output["shape"]) for output in outputs}
        self.check(_arrays(forms, [body[size:]]))

    def check_message(self, message: bytes) -> None:
        answer = v2.ModelInferResponse.FromString(message)
        forms = {output.name: (output.datatype, [*output.shape]) for output in answer.outputs}
        self.check(_arrays(forms, answer.raw_output_contents))

    def _head(self) -> bytes:
        tensor = {
            "name": self.key,
            "shape": self.value.shape,
            "datatype": datatype_of(self.value.dtype),
            "parameters": {"binary_data_size": self.value.nbytes},
        }
        head = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
        return json.dumps(head).encode()


def _arrays(forms: Mapping[str, tuple[str, list[int]]], blocks: Any) -> dict[str, Any]:
    """Return the arrays of an answer by name; empty if its bytes do not fit the shapes."""
    try:
        return {
            name: np.frombuffer(block, DATATYPES[datatype]).reshape(shape)
            for (name, (datatype, shape)), block in zip(forms.items(), blocks, strict=True)
        }
    except ValueError:
        return {}


def ask_http(url: str, question: Question) -> bytes:
    """The answer's body. Raises OSError while there is no server, NotMeasuredError."""
    request = urllib.request.Request(url, question.as_body(), headers=question.headers)
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:
        body: bytes = reply.read()
    question.check_body(body, reply.headers)
    return body


def ask_grpc(port: int, question: Question) -> bytes:
    """The answer's message. Raises OSError while there is no server, NotMeasuredError."""
    unlimited = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=unlimited) as channel:
        call: Callable[..., bytes] = channel.unary_unary(question.METHOD)
        try:
            message = call(question.as_message(), timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            raise OSError(str(error)) from error
    question.check_message(message)
    return message
