"""LargeResponse: an answer that is too large to be written on the event loop."""

from __future__ import annotations

from pipeline.proto.pipeline_service_pb2 import Response, Tensor
from pipeline.proto.slices import SHORT_BYTES

__all__ = ["LargeResponse", "is_short"]

_FEW = 64  # keys or tensors that are looked at one by one
_NUMBER_BYTES = 8  # at most, as protobuf or JSON writes it on the average
_NUMBERS = [
    field.name
    for field in Tensor.DESCRIPTOR.fields
    if field.name.endswith("_data") and field.name != "str_data"
]


class LargeResponse:
    """Stands for a Response, so that whoever writes it knows that it takes a while."""

    __slots__ = ("message",)

    def __init__(self, message: Response) -> None:
        self.message = message

    def to_wire(self) -> bytes:
        """The message as protobuf writes it."""
        return self.message.SerializeToString()


def is_short(response: Response) -> bool:
    """Whether a Response can be written on the event loop."""
    values, tensors = response.value, response.tensors
    if len(values) > _FEW or len(response.key) > _FEW or len(tensors) > _FEW:
        return False
    size = len(response.err_msg) + sum(map(len, values))
    for tensor in tensors:
        strings = tensor.str_data
        if len(strings) > _FEW:
            return False
        size += sum(map(len, strings))
        size += sum(len(getattr(tensor, name)) for name in _NUMBERS) * _NUMBER_BYTES
    return size <= SHORT_BYTES
