"""Scalars of an ONNX file: onnxruntime does not tell them from tensors of any rank."""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterator
from pathlib import Path

from google.protobuf.message import DecodeError

from pipeline.proto.pipeline.blocks import wire_fields

# Fields of the messages in onnx.proto.
_MODEL_GRAPH = 7
_GRAPH_TENSORS = (11, 12)  # its inputs and outputs
_INFO_NAME, _INFO_TYPE = 1, 2
_TYPE_TENSOR = 1
_TENSOR_SHAPE = 2


def scalars_of(path: Path) -> Collection[str]:
    """Return the names of inputs and outputs of rank 0; none where the file has another format.

    onnxruntime gives the same empty shape for these and for tensors of any rank.
    """
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            memoryview(data) as view,
        ):
            return frozenset(_scalars(view))
    except (OSError, ValueError, BufferError, DecodeError):
        return frozenset()


def _scalars(model: memoryview) -> Iterator[str]:
    for graph in _within(model, _MODEL_GRAPH):
        for info in _within(graph, *_GRAPH_TENSORS):
            shapes = [
                bytes(shape)
                for kind in _within(info, _INFO_TYPE)
                for tensor in _within(kind, _TYPE_TENSOR)
                for shape in _within(tensor, _TENSOR_SHAPE)
            ]
            if shapes == [b""]:
                yield from (bytes(name).decode() for name in _within(info, _INFO_NAME))


def _within(message: memoryview, *numbers: int) -> Iterator[memoryview]:
    """Yield the content of the fields of these numbers."""
    for number, _, _, at, end in wire_fields(message):
        if number in numbers:
            yield message[at:end]
