"""RequestTraces: selects requests to trace, and has their traces written.

A frontend asks `begin_of` how to begin a request. The target of a traced request has a
TraceCollector for the engine and the models that it asks. A sink around the frontend's sink sees
the end of the request. Then a thread writes the trace.

The events and the form of the file are Triton's: see its `docs/protocol/extension_trace.md`,
`docs/user_guide/trace.md` and `src/tracer.cc`. A setting that a model lacks comes from the settings
of all models, and otherwise from the server's start.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from weakref import WeakValueDictionary

import msgspec
import numpy as np
import orjson

from pipeline.answer_head import AnswerHead
from pipeline.config.schema import RequestTracesConfig, ServiceConfig
from pipeline.data import ChannelData
from pipeline.engine.journal.journal import NO_WORKER, SPAN, OpSpan
from pipeline.engine.request import (
    Begin,
    ModelView,
    RequestHandle,
    RequestState,
    RequestTarget,
    ResponseSink,
    TraceCollector,
)
from pipeline.errors import ConfigError, PipelineError
from pipeline.observe.background import Background
from pipeline.proto.v2.raw import datatype_of


class TraceSampler:
    """Settings in force, with the counters since their start.

    Attributes:
        own: names of the settings that are not inherited.
        collected: number of complete traces.
        unwritten: complete traces that wait for a numbered file.
        is_over: whether other settings have replaced these; traces under these continue.
    """

    def __init__(self, settings: RequestTracesConfig, own: frozenset[str] = frozenset()) -> None:
        self._given = settings
        self.own: frozenset[str] = own
        self._is_off = bool(settings.fault)
        self._left = settings.count
        self._seen = 0
        self.collected: int = 0
        self.unwritten: int = 0
        self.is_over: bool = False

    @property
    def settings(self) -> RequestTracesConfig:
        """The settings with the current `count`."""
        return msgspec.structs.replace(self._given, count=self._left)

    @property
    def is_off(self) -> bool:
        """True if no more requests are traced."""
        return self._is_off or self._left == 0

    def is_next(self) -> bool:
        """Count a request; return whether to trace it."""
        if self.is_off:
            return False
        self._seen += 1
        if self._seen % self._given.rate:
            return False
        if self._left > 0:
            self._left -= 1
        return True

    def is_file_full(self) -> bool:
        """Count a complete trace; return whether a numbered file ends with it."""
        self.collected += 1
        self.unwritten += 1
        is_last = self._left == 0 and self.collected == self._seen
        most = self._given.log_frequency
        is_full = is_last or (most > 0 and self.unwritten >= most)
        if is_full:
            self.unwritten = 0
        return is_full


class TraceRegister:
    """The settings of all models, and those of single models.

    Args:
        settings: the settings of all models at the start.
    """

    def __init__(self, settings: RequestTracesConfig) -> None:
        self._first = settings
        self._for_all = TraceSampler(settings)
        self._of_models: dict[str, TraceSampler] = {}

    @property
    def is_off(self) -> bool:
        """True if no model is traced."""
        return self._for_all.is_off and all(model.is_off for model in self._of_models.values())

    def sampler(self, model: str = "") -> TraceSampler:
        """Return the settings in force for a model; "" for models without their own."""
        return self._of_models.get(model, self._for_all)

    def change(self, model: str, changes: Mapping[str, Any]) -> list[TraceSampler]:
        """Change settings of a model, or of all (""); None clears one. Return replaced samplers.

        Raises:
            ConfigError: the settings contradict each other, in Triton's words; none changes.
        """
        if model:
            return self._change_one(model, changes)
        over, self._for_all = [self._for_all], self._changed(self._for_all, self._first, changes)
        for name in list(self._of_models):
            over += self._change_one(name, {})
        return _over(over)

    def _change_one(self, model: str, changes: Mapping[str, Any]) -> list[TraceSampler]:
        before = self._of_models.get(model)
        after = self._changed(before, self._for_all.settings, changes)
        over = [] if before is None else [before]
        if after.own:
            self._of_models[model] = after
        else:
            self._of_models.pop(model, None)
        return _over(over)

    def _changed(
        self,
        before: TraceSampler | None,
        otherwise: RequestTracesConfig,
        changes: Mapping[str, Any],
    ) -> TraceSampler:
        changed: dict[str, Any] = {}
        if before is not None:
            now = before.settings
            changed = {name: getattr(now, name) for name in before.own}
        changed |= changes
        changed = {name: value for name, value in changed.items() if value is not None}
        settings = msgspec.structs.replace(otherwise, **changed)
        if settings.level and settings.fault:
            raise ConfigError(f"Attempting to set invalid trace setting :{settings.fault}")
        return TraceSampler(settings, frozenset(changed))


def _over(samplers: list[TraceSampler]) -> list[TraceSampler]:
    for sampler in samplers:
        sampler.is_over = True
    return samplers


_LOGGER = logging.getLogger(__name__)

_MOST_WAITING = 1000  # traces that wait for the disk
_clock_ns = time.monotonic_ns


class FrontendStages(msgspec.Struct, frozen=True):
    """A frontend's names of its stages."""

    came: tuple[str, str]
    sent: tuple[str, str]


HTTP = FrontendStages(("HTTP_RECV_START", "HTTP_RECV_END"), ("HTTP_SEND_START", "HTTP_SEND_END"))
GRPC = FrontendStages(
    ("GRPC_WAITREAD_START", "GRPC_WAITREAD_END"), ("GRPC_SEND_START", "GRPC_SEND_END")
)


class TracedModel(msgspec.Struct, frozen=True):
    """A model, and the id of a request to it."""

    entry: ModelView
    id: str
    inputs: Mapping[str, Any]

    @property
    def parts(self) -> list[str] | None:
        """Return the names of its Ops, see `TraceRecord.parts`.

        "" is an Op that asks a model, which has its own spans.
        """
        if (ops := self.entry.ops) is None:
            return None
        return [op.name if op.pipeline_step is None else "" for op in ops]


class RequestTraces:
    """The traces of one server's requests.

    Args:
        settings: the settings at the start.
        is_fixed: whether settings cannot change, because other servers would keep theirs.

    Attributes:
        is_off: whether no request is traced now.
        register: the settings of each model.
    """

    def __init__(self, settings: RequestTracesConfig | None = None, is_fixed: bool = False) -> None:
        self.is_fixed: bool = is_fixed
        self.register: TraceRegister = TraceRegister(settings or RequestTracesConfig())
        self.is_off: bool = self.register.is_off
        self.numbers: Iterator[int] = itertools.count(1)
        self._files: dict[str, TraceFile] = {}
        self._unwritten: dict[TraceSampler, list[bytes]] = {}
        self._writer: Background | None = None

    def change(self, model: str, changes: Mapping[str, Any]) -> None:
        """Change settings, see `TraceRegister.change`. Raises ConfigError."""
        for sampler in self.register.change(model, changes):
            self._submit(partial(self._write_rest, sampler))
        self.is_off = self.register.is_off

    def begin_of(self, traced: TracedModel, door: FrontendStages) -> Begin:
        """Return the function that begins a request; it traces the request if it is selected."""
        begin: Begin = traced.entry.begin
        sampler = self.register.sampler(traced.entry.name)
        if not sampler.is_next():
            return begin
        self.is_off = self.register.is_off
        return _Trace(self, sampler, traced, door).begin

    def take(self, sampler: TraceSampler, records: list[TraceRecord]) -> None:
        """Take the records of an ended request."""
        is_full = sampler.is_file_full()
        self._submit(partial(self._write, sampler, records, is_full))
        if sampler.is_over:
            self._submit(partial(self._write_rest, sampler))

    def close(self) -> None:
        """Write the waiting traces and close the files; it waits for the disk."""
        if self._writer is not None:
            for sampler in list(self._unwritten):
                self._submit(partial(self._write_rest, sampler))
            self._writer.close()
            for file in self._files.values():
                file.close()

    def _submit(self, job: Callable[[], object]) -> None:
        if self._writer is None:
            self._writer = Background("traces", _MOST_WAITING)
            self._writer.start()
        self._writer.submit(job)

    # In the writer's thread ---------------------------------------------------------------

    def _write(self, sampler: TraceSampler, records: list[TraceRecord], is_full: bool) -> None:
        settings = sampler.settings
        entries = written(records, settings.level, self.numbers)
        if not entries:
            return
        file = self._file(settings)
        if settings.log_frequency == 0 and settings.count < 0:
            file.append(entries)
            return
        waiting = self._unwritten.setdefault(sampler, [])
        waiting.append(entries)
        if is_full:
            file.write_next(b",".join(self._unwritten.pop(sampler)))

    def _write_rest(self, sampler: TraceSampler) -> None:
        """Write the waiting traces of replaced settings."""
        settings, waiting = sampler.settings, self._unwritten.pop(sampler, None)
        if waiting:
            file, entries = self._file(settings), b",".join(waiting)
            (file.write_next if settings.log_frequency else file.append)(entries)

    def _file(self, settings: RequestTracesConfig) -> TraceFile:
        if settings.file not in self._files:
            self._files[settings.file] = TraceFile(settings.file)
        return self._files[settings.file]


def traces_of(config: ServiceConfig, replica: int | None = None) -> RequestTraces:
    """Return the traces that a configuration asks for, for one replica of a server.

    A replica has its own files, with its number after the name.
    """
    settings = config.request_traces
    if replica is not None and settings.file:
        settings = msgspec.structs.replace(settings, file=f"{settings.file}-{replica}")
    if settings.level and (fault := settings.fault):
        _LOGGER.warning("request_traces: nothing is traced: %s", fault)
    return RequestTraces(settings, is_fixed=replica is not None)


class _Trace:
    """The trace of a request and of its requests to other models of the server."""

    def __init__(
        self,
        traces: RequestTraces,
        sampler: TraceSampler,
        traced: TracedModel,
        door: FrontendStages,
    ) -> None:
        self._traces = traces
        self._sampler = sampler
        self._door = door
        self.seen: list[TraceRecord] = []
        self.takes_tensors: bool = "TENSORS" in sampler.settings.level
        self._begin: Begin = traced.entry.begin
        self._first = self.collector(traced, 0)
        now = _clock_ns()
        self._first.stamp(*((name, now) for name in door.came))

    def begin(
        self, raw: Any, timeout_s: float | None, target: RequestTarget | None, sink: ResponseSink
    ) -> RequestHandle:
        first = self._first
        traced = msgspec.structs.replace(target or RequestTarget(), collector=first)
        return self._begin(raw, timeout_s, traced, _LastSink(sink, first, self))

    def collector(self, traced: TracedModel, parent: int) -> _RequestCollector:
        made = _RequestCollector(self, traced, next(self._traces.numbers), parent)
        self.seen.append(made.seen)
        return made

    def sent(self, start_ns: int, end_ns: int) -> None:
        """Record when the answer was sent, and submit the trace for writing."""
        self._first.stamp(*zip(self._door.sent, (start_ns, end_ns), strict=True))
        del self._first  # each refers to the other: only the gc could free them
        self._traces.take(self._sampler, self.seen)


class _RequestCollector(TraceCollector):
    def __init__(self, trace: _Trace, traced: TracedModel, number: int, parent: int) -> None:
        self._trace = trace
        self._request: RequestState | None = None
        self.seen = TraceRecord(
            number=number,
            parent=parent,
            model=traced.entry.name,
            version=traced.entry.version,
            request_id=traced.id,
            times=[],
            spans=[],
            parts=traced.parts,
            tensors=[],
        )
        self._keep("TENSOR_QUEUE_INPUT", traced.inputs)

    def attach(self, request: RequestState) -> None:
        self._request = request
        request.spans = self.seen.spans
        # A model that asks others finds the collector by it; OpenTelemetry's traceparent differs.
        trace_id = secrets.token_hex(16)
        request.trace = f"00-{trace_id}-{self.seen.number:016x}-01"
        _asking[trace_id] = self

    def asks(self, model: ModelView, request_id: str, inputs: Mapping[str, Any]) -> Begin:
        part = self._trace.collector(TracedModel(model, request_id, inputs), self.seen.number)
        begin = model.begin

        def begun(
            raw: Any, timeout_s: float | None, target: RequestTarget | None, sink: ResponseSink
        ) -> RequestHandle:
            traced = msgspec.structs.replace(target or RequestTarget(), collector=part)
            return begin(raw, timeout_s, traced, _Sink(sink, part))

        return begun

    def stamp(self, *times: tuple[str, int]) -> None:
        """Record named times."""
        self.seen.times += times

    def answered(self, answer: Any, at_ns: int = 0) -> None:
        """Record an answer, or a part of one, at a time or now."""
        self.stamp(("INFER_RESPONSE_COMPLETE", at_ns or _clock_ns()))
        if isinstance(answer, ChannelData) and type(answer.payload) is dict:
            arrays, request = answer.payload, self._request
            if request is not None and (outputs := request.info.outputs):
                arrays = {name: arrays[name] for name in outputs if name in arrays}
            self._keep("TENSOR_BACKEND_OUTPUT", arrays)

    def ended(self, answer: Any) -> None:
        request = self._request
        if answer is not None:  # otherwise its parts were recorded
            self.answered(answer, 0 if request is None else request.completed_ns)
        if request is not None:
            end_ns = request.end_ns or _clock_ns()
            self.stamp(("REQUEST_START", request.start_ns), ("REQUEST_END", end_ns))
            if self.seen.parts is not None or not self.seen.spans:
                self.stamp(("QUEUE_START", request.admitted_ns or request.start_ns))
            self._request = None  # it refers to this by its target: only the gc could free both

    def _keep(self, activity: str, arrays: Mapping[str, Any]) -> None:
        if self._trace.takes_tensors:
            named = ((name, value) for name, value in arrays.items() if type(name) is str)
            self.seen.tensors += ((activity, name, value) for name, value in named)


_asking: WeakValueDictionary[str, _RequestCollector] = WeakValueDictionary()


def collector_of(traceparent: str) -> TraceCollector | None:
    """Return the collector of the request with this traceparent; None if it is not traced."""
    return _asking.get(traceparent.split("-")[1]) if traceparent else None


class _Sink:
    """The sink of a traced request; it wraps the frontend's sink."""

    def __init__(self, sink: ResponseSink, collector: _RequestCollector) -> None:
        self._sink = sink
        self._collector = collector
        self.takes_parts = sink.takes_parts
        self.is_ours = sink.is_ours

    def take_head(self, head: AnswerHead) -> None:
        """Pass on the answer's head from user code."""
        self._sink.take_head(head)

    def fail(self, error: PipelineError) -> None:
        """Pass on the error of the answer."""
        self._sink.fail(error)

    def add(self, answers: Sequence[Any]) -> None:
        """Record and pass on answers of a stream."""
        for answer in answers:
            self._collector.answered(answer)
        self._sink.add(answers)

    def end(self, answer: Any) -> None:
        self._collector.ended(answer)
        self._sink.end(answer)


class _LastSink(_Sink):
    """The sink of the traced request itself: its end completes the trace."""

    def __init__(self, sink: ResponseSink, collector: _RequestCollector, trace: _Trace) -> None:
        super().__init__(sink, collector)
        self._trace = trace

    def end(self, answer: Any) -> None:
        start_ns = _clock_ns()
        super().end(answer)
        self._trace.sent(start_ns, _clock_ns())


class TraceFile:
    """The file of a name, and files with a number after it.

    The first is a whole JSON array after each `append`; an existing one is overwritten.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._is_broken = False
        self._next = 0

    def append(self, entries: bytes) -> None:
        """Add entries, with commas between, to the file."""
        if self._is_broken:
            return
        try:
            if self._file is None:
                self._file = Path(self._path).open("wb")  # noqa: SIM115  # until `close`
                self._file.write(b"[" + entries + b"]")
            else:
                self._file.seek(-1, 2)
                self._file.write(b"," + entries + b"]")
            self._file.flush()
        except OSError as error:
            self._is_broken = True  # logged once
            self._tell(self._path, error)

    def write_next(self, entries: bytes) -> None:
        """Write entries, with commas between, to the next file with a number."""
        path, self._next = f"{self._path}.{self._next}", self._next + 1
        try:
            Path(path).write_bytes(b"[" + entries + b"]")
        except OSError as error:
            self._tell(path, error)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _tell(self, path: str, error: OSError) -> None:
        _LOGGER.error("traces cannot be written to %s: %s", path, error.strerror)


_read_span = struct.Struct(f"{SPAN.itemsize // 8}q").unpack
_PIECE = 4096  # elements
_Times = list[tuple[str, int]]


class TraceRecord(msgspec.Struct):
    """Record of one request at one model.

    Args:
        number: number of the trace.
        parent: number of the trace that this one is a part of; 0 if it is not a part.
        times: names and ns of `time.monotonic_ns`.
        spans: packed spans, see `pack_span`.
        parts: names of the Ops whose spans are parts of this trace, by index; "" for a span that
            belongs to no trace. None: the model is a single Op with its own span.
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


def written(all_seen: Sequence[TraceRecord], level: Sequence[str], numbers: Iterator[int]) -> bytes:
    """Return the entries of a request at its model and at the models that it asked.

    `numbers` are the numbers of its parts.
    """
    entries: list[Mapping[str, Any]] = []
    for record in all_seen:
        if "TIMESTAMPS" in level:
            entries += _timed(record, numbers)
        if "TENSORS" in level:
            for activity, name, array in record.tensors:
                tensor = _tensor(name, array)
                entries.append({"id": record.number, "activity": activity, "tensor": tensor})
    return b",".join(map(orjson.dumps, entries))


def _timed(record: TraceRecord, numbers: Iterator[int]) -> Iterator[Mapping[str, Any]]:
    spans = [OpSpan._make(_read_span(span)) for span in record.spans]
    own = spans[-1:] if record.parts is None else []  # after retries, the last one
    yield _head(record.number, record.model, record.version, record.request_id, record.parent)
    times = list(record.times)
    for span in own:
        times += _stages(span)
    yield from _stamped(record.number, times)
    for span in spans:
        if name := record.parts[span.op] if record.parts else "":
            number = next(numbers)
            around = [("REQUEST_START", span.ready_ns), ("REQUEST_END", span.result_received_ns)]
            yield _head(number, name, record.version, record.request_id, record.number)
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
    for name, ns in sorted(times, key=lambda stamp: stamp[1]):
        yield {"id": number, "timestamps": [{"name": name, "ns": ns}]}


def _tensor(name: str, value: Any) -> dict[str, str]:
    array = np.asarray(value)
    elements, text = array.reshape(-1), _text_of(array.dtype)
    pieces = range(0, elements.size, _PIECE)  # a long `tolist` would stop all other threads
    texts = (text(element) for at in pieces for element in elements[at : at + _PIECE].tolist())
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
