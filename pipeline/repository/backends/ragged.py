"""Ragged batches: inputs of different shapes in one execution, and what a model is told of them.

Facts: Triton's `allow_ragged_batch`, `batch_input` and `batch_output` of model_config.proto.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.errors import PayloadTypeError
from pipeline.op import Op, RequestOp
from pipeline.proto.inference_v2_pb2 import BatchInput, DataType, ModelConfig
from pipeline.repository.backends.reshape import Reshaping, reshaping_of

_ANY = -1

Arrays = Mapping[str, Any]


class RaggedBatch:
    """Rules by which requests of a batch become one feed, and its result that of each of them.

    Args:
        config: of a model with `max_batch_size`; complete.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._ragged = ragged_inputs(config)
        self._made = list(config.batch_input)
        self._dims = {
            each.name: tuple(each.reshape.shape if each.HasField("reshape") else each.dims)
            for each in config.output
        }
        self._scattered = {
            name: made.source_input[0] for made in config.batch_output for name in made.target_name
        }

    def gathered(self, feeds: Sequence[Arrays]) -> dict[str, Any]:
        """Return what the model is fed: ragged inputs flat, others by rows, of all together."""
        found: dict[str, Any] = {}
        for name in feeds[0]:
            arrays = [np.asarray(feed[name]) for feed in feeds]
            if name in self._ragged:
                arrays = [array.reshape(-1) for array in arrays]
            found[name] = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        for made in self._made:
            shapes = [np.shape(feed[made.source_input[0]]) for feed in feeds]
            dtype = np.dtype(_DTYPES[made.data_type])
            for name in made.target_name:
                found[name] = batch_input(made.kind, shapes).astype(dtype)
        return found

    def cut(self, result: Arrays, feeds: Sequence[Arrays]) -> list[dict[str, Any]]:
        """Return the result of each request.

        Raises PayloadTypeError: an output has not the rows, or elements, of all together.
        """
        rows = [len(next(iter(feed.values()))) for feed in feeds]
        found: list[dict[str, Any]] = [{} for _ in feeds]
        for name, value in result.items():
            array = np.asarray(value)
            source = self._scattered.get(name)
            if source is None:
                parts = _by_rows(name, array, rows)
            else:
                shapes = [self._shape(name, np.shape(feed[source])) for feed in feeds]
                parts = _by_shapes(name, array, shapes)
            for one, part in zip(found, parts, strict=True):
                one[name] = part
        return found

    def _shape(self, name: str, given: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a request's part of an output, whose source has the shape `given`."""
        batch, *sizes = given
        dims = self._dims[name]
        own = [
            sizes[place] if dim == _ANY and place < len(sizes) else dim
            for place, dim in enumerate(dims)
        ]
        return (batch, *own)


class RaggedOp(Op):
    """A model that is fed the requests of a batch as one, whatever their shapes are."""

    pipeline_merges = False

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config.name, RequestOp())
        self.pipeline_ragged: frozenset[str] = ragged_inputs(config)
        self.batch: RaggedBatch = RaggedBatch(config)
        self.reshaping: Reshaping = reshaping_of(config)

    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        """Return the result of each request of the batch."""
        feeds = [self.reshaping.fed(feed) for feed in feed_batch]
        result = super().process([self.batch.gathered(feeds)], typical_logid)
        return [self.reshaping.answered(each) for each in self.batch.cut(result, feeds)]


def is_ragged(config: ModelConfig) -> bool:
    """Return whether a model is fed more, or otherwise, than the rows of its requests."""
    has_ragged = any(each.allow_ragged_batch for each in config.input)
    return has_ragged or bool(config.batch_input) or bool(config.batch_output)


def ragged_inputs(config: ModelConfig) -> frozenset[str]:
    """Return the names of the inputs whose shapes may differ in a batch."""
    return frozenset(each.name for each in config.input if each.allow_ragged_batch)


def batch_input(kind: int, shapes: Sequence[tuple[int, ...]]) -> np.ndarray[Any, Any]:
    """Return what a model is told of the shapes of an input, one for each request of a batch.

    The shapes have the batch first.
    """
    counts = [int(np.prod(shape)) for shape in shapes]
    match kind:
        case BatchInput.BATCH_ELEMENT_COUNT:
            return np.array(counts)
        case BatchInput.BATCH_ACCUMULATED_ELEMENT_COUNT:
            return np.cumsum(counts)
        case BatchInput.BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO:
            return np.cumsum([0, *counts])
        case BatchInput.BATCH_MAX_ELEMENT_COUNT_AS_SHAPE:
            return np.zeros(max(counts))
    rows = [shape[1:] for shape in shapes for _ in range(shape[0])]
    found = np.array(rows).reshape(len(rows), -1)
    return found if kind == BatchInput.BATCH_ITEM_SHAPE else found.reshape(-1)


_DTYPES = {DataType.TYPE_INT32: np.int32, DataType.TYPE_FP32: np.float32}


def _by_rows(name: str, array: np.ndarray[Any, Any], rows: Sequence[int]) -> list[Any]:
    if not array.ndim or len(array) != sum(rows):
        raise PayloadTypeError(
            f"output {name!r} has the shape {list(array.shape)} for a batch of {sum(rows)} rows"
        )
    return np.split(array, np.cumsum(rows)[:-1])


def _by_shapes(
    name: str, array: np.ndarray[Any, Any], shapes: Sequence[tuple[int, ...]]
) -> list[Any]:
    counts = [int(np.prod(shape)) for shape in shapes]
    if array.size != sum(counts):
        raise PayloadTypeError(
            f"output {name!r} has {array.size} elements, and the requests of its batch have shapes "
            f"of {sum(counts)}"
        )
    parts = np.split(array.reshape(-1), np.cumsum(counts)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
