"""Ragged batches: arrays of different shapes in one call of `process`, which also gets their
shapes.

Source: Triton's `allow_ragged_batch`, `batch_input` and `batch_output` of model_config.proto.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.config.sections import BatchInputConfig, BatchOutputConfig
from pipeline.engine.run.call import Call
from pipeline.engine.run.collate import bounded, rows_of
from pipeline.errors import InputError, PayloadTypeError, PipelineError
from pipeline.routes import Answer, answer_with

if TYPE_CHECKING:
    from pipeline.config.schema import OpConfig

_ANY = -1
_DTYPES = {"TYPE_INT32": np.int32, "TYPE_FP32": np.float32}

Arrays = Mapping[str, Any]


class RaggedBatch:
    """Rules that make one feed of a batch's requests, and cut its result for each of them.

    Args:
        inputs: names of the inputs whose shapes may differ; they are fed flat, one after the other.
        batch_inputs: additional inputs, made of shapes.
        batch_outputs: outputs that are cut by the shapes of an input; others are cut by rows.
        dims: of outputs, without the batch; missing: those of the input that they are cut by.
    """

    def __init__(
        self,
        inputs: frozenset[str],
        batch_inputs: Sequence[BatchInputConfig] = (),
        batch_outputs: Sequence[BatchOutputConfig] = (),
        dims: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        self._ragged = inputs
        self._made = batch_inputs
        self._dims = dims or {}
        self._scattered = {
            name: batch_output.source_input[0]
            for batch_output in batch_outputs
            for name in batch_output.target_name
        }
        self._sources = {*self._scattered.values()}
        self._sources |= {batch_input.source_input[0] for batch_input in batch_inputs}

    def plan(self, items: Mapping[int, Any], most_rows: int = 0) -> list[Call]:
        """Return the calls for `items`: as `collate.plan`, but shapes may differ.

        Args:
            items: index in the batch -> the result of preprocess.
            most_rows: of a call; 0: any number. No item is split.
        """
        calls: list[Call] = []
        groups: dict[Hashable, dict[int, Any]] = {}
        for index, item in items.items():
            if isinstance(item, list):
                calls += [self._call([feed], [index], part) for part, feed in enumerate(item)]
                continue
            fault = self._fault(item)
            if fault is not None:
                calls.append(Call(item, [index], error=fault, done=True))
            else:
                groups.setdefault(self._form(item), {})[index] = item
        for group in groups.values():
            for part in bounded(group, list(group), most_rows):
                calls.append(self._call([group[index] for index in part], part))
        return calls

    def alone(self, call: Call, attempts: int) -> list[Call]:
        """Return one call for each item of a merged call, with `attempts` counted already."""
        pairs = zip(call.sources, call.items, strict=True)
        calls = [self._call([source], [index], call.part) for source, index in pairs]
        for single in calls:
            single.attempts = attempts
        return calls

    def _call(self, sources: list[Any], items: list[int], part: int | None = None) -> Call:
        call = Call({}, items, part=part, ragged=self, sources=sources)
        fault = next(filter(None, map(self._fault, sources)), None)
        if fault is not None:
            call.error, call.done = fault, True
            return call
        call.spans = [[rows_of(source) for source in sources]]
        try:
            call.feed = self.gathered(sources)
        except PipelineError as error:
            call.error, call.done = error, True
        return call

    def _fault(self, item: Any) -> PipelineError | None:
        if not isinstance(item, dict):
            return PayloadTypeError(f"expect input type is dict or list, but get {type(item)}")
        missing = next((name for name in sorted(self._sources) if name not in item), None)
        if missing is not None:
            return InputError(f"input {missing!r} is missing: batch_input or batch_output needs it")
        return None

    def _form(self, item: dict[str, Any]) -> Hashable:
        """Return a key that is equal for items that can share a call."""
        form: list[Hashable] = []
        for name in sorted(item, key=str):
            array = np.asarray(item[name])
            shape = None if name in self._ragged else array.shape[1:]
            form.append((name, array.dtype.kind in "US" or array.dtype.str, shape))
        return tuple(form)

    def gathered(self, feeds: Sequence[Arrays]) -> dict[str, Any]:
        """Return the feed of `process`: ragged inputs flat, others joined by rows."""
        gathered: dict[str, Any] = {}
        for name in feeds[0]:
            arrays = [np.asarray(feed[name]) for feed in feeds]
            if name in self._ragged:
                arrays = [array.reshape(-1) for array in arrays]
            gathered[name] = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        for made in self._made:
            shapes = [np.shape(feed[made.source_input[0]]) for feed in feeds]
            for name in made.target_name:
                gathered[name] = batch_input(made.kind, shapes).astype(_DTYPES[made.data_type])
        return gathered

    def cut(self, result: Any, feeds: Sequence[Arrays]) -> list[Any]:
        """Return the result of each request.

        Raises PayloadTypeError: an output does not have the rows, or elements, of all requests.
        """
        if isinstance(result, Answer):
            return [answer_with(answer, result.head) for answer in self.cut(result.answer, feeds)]
        if not isinstance(result, Mapping):
            raise PayloadTypeError(
                f"process returned {type(result).__name__}: return a dict, which is cut by the "
                "rows and shapes of its requests"
            )
        rows = [len(next(iter(feed.values()))) for feed in feeds]
        answers: list[dict[str, Any]] = [{} for _ in feeds]
        for name, value in result.items():
            array = np.asarray(value)
            source = self._scattered.get(name)
            if source is None:
                parts = _by_rows(name, array, rows)
            else:
                shapes = [self._shape(name, np.shape(feed[source])) for feed in feeds]
                parts = _by_shapes(name, array, shapes)
            for request_answer, part in zip(answers, parts, strict=True):
                request_answer[name] = part
        return answers

    def _shape(self, name: str, given: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a request's part of an output, whose source has the shape `given`."""
        batch, *sizes = given
        own = [
            sizes[place] if dim == _ANY and place < len(sizes) else dim
            for place, dim in enumerate(self._dims.get(name, sizes))
        ]
        return (batch, *own)


def ragged_batch_of(config: OpConfig) -> RaggedBatch | None:
    """Return the rules of an Op's ragged batches; None: it has none."""
    given = config.allow_ragged_batch, config.batch_input, config.batch_output
    return RaggedBatch(frozenset(given[0]), *given[1:]) if any(given) else None


def batch_input(kind: str, shapes: Sequence[tuple[int, ...]]) -> np.ndarray[Any, Any]:
    """Return an additional input, made of the shapes of an input, one for each request of a batch.

    The shapes begin with the batch.
    """
    counts = [int(np.prod(shape)) for shape in shapes]
    match kind:
        case "BATCH_ELEMENT_COUNT":
            return np.array(counts)
        case "BATCH_ACCUMULATED_ELEMENT_COUNT":
            return np.cumsum(counts)
        case "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO":
            return np.cumsum([0, *counts])
        case "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE":
            return np.zeros(max(counts))
    rows = [shape[1:] for shape in shapes for _ in range(shape[0])]
    array = np.array(rows).reshape(len(rows), -1)
    return array if kind == "BATCH_ITEM_SHAPE" else array.reshape(-1)


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
