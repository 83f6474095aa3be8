"""Entries of Triton's trace file: written of what was collected, beside the event loop.

Source of the form: `docs/user_guide/trace.md` and `src/tracer.cc` of Triton's server.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import orjson

from pipeline.engine.journal.journal import NO_WORKER, SPAN, OpSpan
from pipeline.proto.v2.raw import datatype_of

_read_span = struct.Struct(f"{SPAN.itemsize // 8}q").unpack
_PIECE = 4096  # elements
_Times = list[tuple[str, int]]


class Seen(msgspec.Struct):
    """Record of one request at one model.

    Args:
        number: of the trace; `parent` is that of the trace it is a part of, 0: of none.
        times: names and ns of `time.monotonic_ns`.
        spans: packed, see `pack_span`.
        parts: names of the Ops whose spans are parts of this one, by their index; "": their span
            is nobody's. None: it is a single Op, and its span is its own.
        tensors: (activity, name, array).
    """

    number: int
    parent: int
    model: str
    version: str
    request_id: str
    times: _Times
    spans: list[bytes]
    parts: Sequence[str] | None
    tensors: list[tuple[str, str, Any]]


def written(all_seen: Sequence[Seen], level: Sequence[str], numbers: Iterator[int]) -> bytes:
    """Return the entries of a request, at its model and at those that were asked for it.

    `numbers` are for its parts.
    """
    entries: list[Mapping[str, Any]] = []
    for seen in all_seen:
        if "TIMESTAMPS" in level:
            entries += _timed(seen, numbers)
        if "TENSORS" in level:
            for activity, name, array in seen.tensors:
                tensor = _tensor(name, array)
                entries.append({"id": seen.number, "activity": activity, "tensor": tensor})
    return b",".join(map(orjson.dumps, entries))


def _timed(seen: Seen, numbers: Iterator[int]) -> Iterator[Mapping[str, Any]]:
    spans = [OpSpan._make(_read_span(span)) for span in seen.spans]
    own = spans[-1:] if seen.parts is None else []  # of one that was tried again, the last
    yield _head(seen.number, seen.model, seen.version, seen.request_id, seen.parent)
    times = list(seen.times)
    for span in own:
        times += _stages(span)
    yield from _stamped(seen.number, times)
    for span in spans:
        if name := seen.parts[span.op] if seen.parts else "":
            number = next(numbers)
            around = [("REQUEST_START", span.ready_ns), ("REQUEST_END", span.result_received_ns)]
            yield _head(number, name, seen.version, seen.request_id, seen.number)
            yield from _stamped(number, [*around, *_stages(span)])


def _stages(span: OpSpan) -> _Times:
    stages = [("QUEUE_START", span.ready_ns)]
    if span.worker != NO_WORKER:
        stages += [
            ("COMPUTE_START", span.start_ns),
            ("COMPUTE_INPUT_END", span.preprocess_end_ns),
            ("COMPUTE_OUTPUT_START", span.process_end_ns),
            ("COMPUTE_END", span.end_ns),
        ]
    return stages


def _head(number: int, model: str, version: str, request_id: str, parent: int) -> dict[str, Any]:
    head: dict[str, Any] = {"id": number, "model_name": model, "model_version": int(version)}
    if request_id:
        head["request_id"] = request_id
    if parent:
        head["parent_id"] = parent
    return head


def _stamped(number: int, times: _Times) -> Iterator[dict[str, Any]]:
    for name, ns in sorted(times, key=lambda each: each[1]):
        yield {"id": number, "timestamps": [{"name": name, "ns": ns}]}


def _tensor(name: str, value: Any) -> dict[str, str]:
    array = np.asarray(value)
    elements, text = array.reshape(-1), _text_of(array.dtype)
    pieces = range(0, elements.size, _PIECE)  # a long `tolist` would stop all other threads
    texts = (text(each) for at in pieces for each in elements[at : at + _PIECE].tolist())
    shape = ",".join(map(str, array.shape))
    return {
        "name": name,
        "data": ",".join(texts),
        "shape": shape,
        "dtype": datatype_of(array.dtype),
    }


def _text_of(dtype: np.dtype[Any]) -> Callable[[Any], str]:
    if dtype.kind == "f":
        return "{:g}".format
    if dtype.kind == "b":
        return lambda value: str(int(value))
    return str if dtype.kind in "iu" else _quoted


def _quoted(value: Any) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return f'"{text}"'
