"""Calls of gRPC for the conformance table: messages, how a call is made, and how it ended."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from conformance_server import NAME

from pipeline.frontends.grpc.inference import SERVICE
from pipeline.proto import inference_v2_pb2 as pb
from pipeline.proto.pipeline_service_pb2 import Request
from pipeline.proto.v2.codec import add_tensor, tensors_to_arrays

INFERENCE = f"/{SERVICE}/inference"
UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
TIMEOUT_S = 30.0
Metadata = Sequence[tuple[str, str | bytes]]
Status = grpc.StatusCode


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """How a call ended: `answer` are the bytes of one that ended well."""

    status: grpc.StatusCode
    text: str = ""
    trailing: dict[str, str] = field(default_factory=dict)
    answer: bytes | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """A call, and how it ends. `text` is a pattern of the whole; `check` is given the answer.

    Of trailing metadata only ours are compared.
    """

    name: str
    method: str
    message: bytes = b""
    metadata: Metadata = ()
    compression: grpc.Compression | None = None
    status: grpc.StatusCode = Status.OK
    text: str = ""
    trailing: dict[str, str] = field(default_factory=dict)
    check: Callable[[bytes], Any] = lambda answer: None

    def hold(self, channel: grpc.Channel) -> None:
        """Make the call, and see that it ends so."""
        heard = ask(channel, self.method, self.message, self.metadata, self.compression)
        assert (heard.status, heard.trailing) == (self.status, self.trailing), heard
        assert re.fullmatch(self.text, heard.text), heard.text
        if heard.answer is not None:
            self.check(heard.answer)


def ask(
    channel: grpc.Channel,
    method: str,
    message: bytes = b"",
    metadata: Metadata = (),
    compression: grpc.Compression | None = None,
    timeout_s: float = TIMEOUT_S,
) -> CallOutcome:
    """Make a unary call, and say how it ended."""
    call = channel.unary_unary(method).future(
        message, timeout=timeout_s, metadata=list(metadata), compression=compression
    )
    failed = call.exception()
    trailing = {key: value for key, value in call.trailing_metadata() or () if _is_ours(key)}
    text = call.details() or ""
    return CallOutcome(call.code(), text, trailing, None if failed else call.result())


def _is_ours(key: str) -> bool:
    return key.startswith("pipeline-") or key == "grpc-retry-pushback-ms"


# Messages -----------------------------------------------------------------------------------


def request(method: str = "", **pairs: str) -> bytes:
    return Request(method=method, key=list(pairs), value=list(pairs.values())).SerializeToString()


def infer(
    *values: float, model: str = NAME, name: str = "x", request_id: str = "", **more: Any
) -> bytes:
    """A ModelInferRequest of one FP32 tensor."""
    message = pb.ModelInferRequest(model_name=model, id=request_id, **more)
    add_tensor(message.inputs, message.raw_input_contents, name, np.array(values, np.float32))
    return message.SerializeToString()


def inferred(answer: bytes) -> tuple[str, list[float]]:
    """(id, elements of x)"""
    response = pb.ModelInferResponse.FromString(answer)
    arrays = tensors_to_arrays(response.outputs, response.raw_output_contents)
    return response.id, arrays["x"].tolist()


def streamed(answer: bytes) -> tuple[str, str, list[float]]:
    """(id, error, elements of x); each is the only answer of its request."""
    response = pb.ModelStreamInferResponse.FromString(answer)
    found = response.infer_response
    assert found.parameters["triton_final_response"].bool_param
    arrays = tensors_to_arrays(found.outputs, found.raw_output_contents)
    return found.id, response.error_message, arrays["x"].tolist() if arrays else []
