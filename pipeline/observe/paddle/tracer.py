"""Tracer: writes a block to `pipeline.tracer` every `dag.tracer.interval_s`.

The layout is the predecessor's. An interval in which nothing ended has no block.
"""

from __future__ import annotations

import json
import logging.handlers
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipeline.config.schema import LogConfig, ServiceConfig
from pipeline.engine.graph import Graph
from pipeline.engine.journal.journal import PIPELINE, Outcome, Rows
from pipeline.engine.state import EngineState
from pipeline.errors import InitError, printable, utf8_text
from pipeline.observe.background import Background
from pipeline.observe.sink import SinkContext
from pipeline.observe.tables import Integers, batches, columns, groups, kept

PERCENTILES = (50, 60, 70, 80, 90, 95, 99)
STAGES = ("in", "prep", "midp", "postp", "out")

_BUSY = ("prep", "midp", "postp")
_MAX_LATENCIES = 2**18  # that are kept; of more, every second one, then every fourth, and so on
_MAX_ERRORS = 1000  # data ids in one block
_NS_PER_MS = 1e6

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TracerFiles:
    """The files that a tracer writes.

    `trace` is rotated at `max_bytes`, with `backup_count` old files; if one of these is 0, it is
    never rotated. Each block replaces `benchmark`, a YAML file, unless it is None.
    """

    trace: Path
    max_bytes: int = 64_000_000
    backup_count: int = 3
    benchmark: Path | None = None


def tracer_files(
    directory: Path,
    log: LogConfig,
    replica: int | None = None,
    environ: Mapping[str, str] = os.environ,
    further: str = "",
) -> TracerFiles:
    """Return the files of a server that logs to `directory`.

    A quarter as many old files as of the log are kept. Each replica and each `further` pipeline has
    its own files, because two processes that rotate one file lose lines. `FLAGS_profile_pipeline=1`
    asks for `benchmark.log` in the working folder.
    """
    name = f"-{further}" if further else ""
    suffix = "" if replica is None else f".copy{replica}"
    is_on = environ.get("FLAGS_profile_pipeline", "0").strip() not in ("", "0")
    return TracerFiles(
        directory / f"pipeline{name}.tracer{suffix}",
        log.max_bytes,
        (log.backup_count + 3) // 4,
        Path(f"benchmark{name}.log{suffix}").absolute() if is_on else None,
    )


@dataclass(frozen=True, slots=True)
class TracedGraph:
    """The graph as blocks show it. `names` and `producers` (names of input Ops) are by Op.

    `channel_size` is the limit of an Op's channel, 0 without a limit. `worker_num` is the server's
    setting, 0 if the server chooses.
    """

    names: Sequence[str]
    producers: Sequence[Sequence[str]]
    worker_num: int
    channel_size: int = 0

    @classmethod
    def of(cls, graph: Graph, config: ServiceConfig) -> TracedGraph:
        return cls(
            [op.name for op in graph.ops],
            [[source.name for source in op.get_input_ops()] for op in graph.ops],
            config.worker_num or 0,
            config.dag.channel_size,
        )


@dataclass(slots=True)
class OpInterval:
    """One Op in one interval: sums over batches in which a request succeeded, in ns."""

    count: int = 0
    sums: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STAGES, 0))

    def mean_ms(self, stage: str) -> float:
        return self.sums[stage] / self.count / _NS_PER_MS

    @property
    def idle(self) -> float:
        """Share of a worker's time outside of user code."""
        total = sum(self.sums.values())
        return 1 - sum(self.sums[stage] for stage in _BUSY) / total if total else 0.0


class Interval:
    """The sums of one interval. Only requests to the whole pipeline count."""

    def __init__(self, op_count: int, started_s: float) -> None:
        self.started_s = started_s
        self.ops: list[OpInterval] = [OpInterval() for _ in range(op_count)]
        self.queries: int = 0
        self.failures: int = 0
        self.failed_ids: list[int] = []  # the first _MAX_ERRORS
        self.latency_sum_ns: int = 0
        self._latencies: list[Ints] = []
        self._kept = 0
        self._stride = 1

    @property
    def is_idle(self) -> bool:
        return not self.queries and not any(op.count for op in self.ops)

    def add_requests(self, requests: Rows) -> None:
        requests = kept(requests, requests["target"] == PIPELINE)
        failed = requests["data_id"][requests["outcome"] != Outcome.OK]
        latencies = requests["end_ns"] - requests["start_ns"]
        self.queries += len(requests)
        self.failures += len(failed)
        self.failed_ids += failed[: _MAX_ERRORS - len(self.failed_ids)].tolist()
        self.latency_sum_ns += int(latencies.sum())
        self._keep(latencies)

    def _keep(self, latencies: Ints) -> None:
        self._latencies.append(latencies[:: self._stride])
        self._kept += len(self._latencies[-1])
        if self._kept > _MAX_LATENCIES:
            thinned = np.concatenate(self._latencies)[::2]
            self._latencies, self._kept = [thinned], len(thinned)
            self._stride *= 2

    def percentiles_ms(self) -> dict[int, float]:
        """Return the percentiles of latencies as the predecessor does: sorted[n * p // 100]."""
        latencies = np.sort(np.concatenate(self._latencies))
        return {p: int(latencies[len(latencies) * p // 100]) / _NS_PER_MS for p in PERCENTILES}


@dataclass(frozen=True, slots=True)
class TracerBlock:
    """One interval of `length_s` seconds.

    `sizes` are the requests that wait at each Op at its end; `groups` are the Ops that run in one
    trip at its end.
    """

    interval: Interval
    length_s: float
    graph: TracedGraph
    sizes: Mapping[str, int]
    groups: Sequence[tuple[str, ...]] = ()

    def lines(self) -> Iterator[str]:
        """Yield the lines for `pipeline.tracer`, without times and line breaks."""
        yield "==================== TRACER ======================"
        for name, op in self._ops():
            yield f"Op({printable(name)}):"
            for stage in STAGES:
                yield f"\t{stage}[{round(op.mean_ms(stage), 4)} ms]"
            yield f"\tidle[{round(op.idle, 4)}]"
        if self.interval.queries:
            yield from self._request_lines()
        yield from self._channel_lines()

    def figures(self) -> dict[str, dict[str, float]]:
        """Return the figures for `benchmark.log`: means in ms by Op, and `DAG`."""
        shown: dict[str, dict[str, float]] = {
            name: {"count": op.count, **{stage: op.mean_ms(stage) for stage in STAGES}}
            for name, op in self._ops()
        }
        return {**shown, "DAG": self._requests()} if self.interval.queries else shown

    def _ops(self) -> Iterator[tuple[str, OpInterval]]:
        for name, op in zip(self.graph.names, self.interval.ops, strict=True):
            if op.count:
                yield name, op

    def _requests(self) -> dict[str, float]:
        interval = self.interval
        return {
            "query_count": interval.queries,
            "qps": interval.queries / self.length_s,
            "succ": 1 - interval.failures / interval.queries,
            "avg": interval.latency_sum_ns / interval.queries / _NS_PER_MS,
            **{str(p): ms for p, ms in interval.percentiles_ms().items()},
        }

    def _request_lines(self) -> Iterator[str]:
        interval, of_all = self.interval, self._requests()
        failed = ", ".join(map(str, interval.failed_ids))
        if interval.failures > len(interval.failed_ids):
            failed += ", ..."
        yield "DAGExecutor:"
        yield f"\tQuery count[{interval.queries}]"
        yield f"\tQPS[{round(of_all['qps'], 4)} q/s]"
        yield f"\tSucc[{round(of_all['succ'], 6)}]"
        yield f"\tError req[{failed}]"
        yield "\tLatency:"
        yield f"\t\tave[{round(of_all['avg'], 4)} ms]"
        for percent in PERCENTILES:
            yield f"\t\t.{percent}[{round(of_all[str(percent)], 4)} ms]"

    def _channel_lines(self) -> Iterator[str]:
        graph = self.graph
        yield f"Channel (server worker num[{graph.worker_num}]):"
        for number, (name, producers) in enumerate(zip(graph.names, graph.producers, strict=True)):
            ends = printable(f"In: {list(producers)}, Out: {[name]}")
            size = self.sizes.get(name, 0)
            yield f"\tchl{number}({ends}) size[{size}/{graph.channel_size}]"
        for group in self.groups:
            yield f"In one go: {printable(str(list(group)))}"


class TracerOutput:
    """The open files. The owner opens and closes them, the thread writes."""

    def __init__(self, files: TracerFiles) -> None:
        self._files = files
        self._handler: logging.handlers.RotatingFileHandler | None = None

    def open(self) -> None:
        path, count = self._files.trace, self._files.backup_count
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handler = logging.handlers.RotatingFileHandler(
                path,
                maxBytes=self._files.max_bytes if count else 0,
                backupCount=count,
                encoding="utf-8",
                errors="backslashreplace",
            )
        except OSError as error:
            raise InitError(
                f"dag.tracer: cannot write {path}: {error.strerror or error}: "
                "set SERVING_LOG_PATH to a folder that can be written"
            ) from error
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))

    def write(self, block: TracerBlock) -> None:
        if self._handler is not None:
            now = time.time()
            times = {"created": now, "msecs": now % 1 * 1000 // 1}
            for line in block.lines():
                self._handler.handle(logging.makeLogRecord({"msg": line, **times}))
        if self._files.benchmark is not None:
            text = "\n".join(_yaml_lines(block.figures())) + "\n"
            self._files.benchmark.write_text(text, encoding="utf-8")

    def close(self) -> None:
        if self._handler is not None:
            self._handler.close()
            self._handler = None


def _yaml_lines(figures: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yield YAML with names as in JSON, and floats without exponents, which YAML 1.1 misreads."""
    for name, values in figures.items():
        yield f"{json.dumps(utf8_text(name))}:"
        for key, value in values.items():
            shown = f"{value:.6f}" if isinstance(value, float) else value
            yield f"  {key!r}: {shown}" if key.isdecimal() else f"  {key}: {shown}"


_INTERVAL_S = 10.0  # by default
_MAX_WORKERS = 4096  # whose last batch is remembered
_MAX_ROWS = 8192  # that wait on the event loop: some 800 kB
_MAX_JOBS = 16  # that wait for the thread, each of so many rows: the disk may hang

_Pieces = list[tuple[Rows, Rows]]


class Tracer:
    """A Sink whose `tick` writes a block about the time since the last one.

    The event loop only keeps the rows; a thread adds them up and writes.

    In a block, `in` is a worker's wait for its next batch, and `out` the time from a batch's end
    until the engine has received it. Latency is from admission to answer. `state` returns how many
    requests wait at each Op; `clock` is the clock of the rows, in seconds.
    """

    def __init__(
        self,
        graph: TracedGraph,
        state: Callable[[], EngineState],
        files: TracerFiles,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._graph = graph
        self._state = state
        self._clock = clock
        self._background = Background("tracer", _MAX_JOBS)
        self._output = TracerOutput(files)
        self._started_s = clock()
        self._times = BatchTimes(int(self._started_s * 1e9))
        self._interval: Interval | None = None
        self._taken_in: _Pieces = []
        self._rows = 0  # in `_taken_in`
        self._is_idle = True

    def start(self) -> None:
        """Open the file. Raises InitError: it cannot be written."""
        self._output.open()
        self._background.start()

    def close(self) -> None:
        """Write the last block. May be called again."""
        self.tick()
        self._background.close()
        self._output.close()

    def notify(self, spans: Rows, requests: Rows) -> None:
        self._is_idle = False
        self._taken_in.append((spans, requests))
        self._rows += len(spans) + len(requests)
        if self._rows >= _MAX_ROWS:
            pieces, started_s = self._taken(), self._started_s
            self._background.submit(lambda: self._add(pieces, started_s))

    def tick(self) -> None:
        """End the interval: write its block, unless it is empty. Flush the journal first."""
        started_s, self._started_s = self._started_s, self._clock()
        if self._is_idle:
            return
        self._is_idle = True
        pieces, ended_s = self._taken(), self._started_s
        ops = self._state().ops
        sizes = {op.name: op.queued for op in ops}
        groups = list(dict.fromkeys(op.group for op in ops if op.group))
        self._background.submit(lambda: self._write(pieces, started_s, ended_s, sizes, groups))

    def _taken(self) -> _Pieces:
        pieces, self._taken_in, self._rows = self._taken_in, [], 0
        return pieces

    def _add(self, pieces: _Pieces, started_s: float) -> Interval:
        """Add up the rows of an interval; on the thread."""
        interval = self._interval = self._interval or Interval(len(self._graph.names), started_s)
        for spans, requests in pieces:
            if len(spans):
                self._times.add(spans, interval.ops)
            if len(requests):
                interval.add_requests(requests)
        return interval

    def _write(
        self,
        pieces: _Pieces,
        started_s: float,
        ended_s: float,
        sizes: Mapping[str, int],
        groups: Sequence[tuple[str, ...]],
    ) -> None:
        """Add the last rows of an interval, and write its block; on the thread."""
        interval = self._add(pieces, started_s)
        self._interval = None
        if not interval.is_idle:
            length_s = max(ended_s - interval.started_s, 1e-9)
            self._output.write(TracerBlock(interval, length_s, self._graph, sizes, groups))


def open_tracer(context: SinkContext, options: None) -> Tracer:
    """Open the sink `tracer`. Raises InitError: its file cannot be written."""
    config = context.config
    tracer = Tracer(
        TracedGraph.of(context.graph, config),
        context.state,
        tracer_files(context.log_folder, config.log, context.replica, further=context.further),
    )
    tracer.start()
    context.on_close(tracer.close)
    context.every("tracer", config.dag.tracer.interval_s or _INTERVAL_S, tracer.tick)
    return tracer


class BatchTimes:
    """Adds up the times of batches, relative to the previous batch of the worker.

    Workers began to wait for their first batch at `begun_ns`.
    """

    def __init__(self, begun_ns: int) -> None:
        self._begun_ns = begun_ns
        self._last_taken: dict[tuple[int, int], int] = {}  # by op and worker

    def add(self, spans: Rows, ops: Sequence[OpInterval]) -> None:
        """Add the spans of a flush, which has whole batches, to `ops` by index."""
        spans = kept(spans, spans["batch"] >= 0)
        if not len(spans):
            return
        first = batches(spans).first
        is_good = np.minimum.reduceat(spans["outcome"], first) == Outcome.OK
        op, worker = columns(spans, "op", "worker").take(first, axis=1)
        order = np.lexsort((spans["start_ns"].take(first), worker, op))
        op, worker, first, is_good = (column.take(order) for column in (op, worker, first, is_good))
        spent = self._spent(op, worker, spans.take(first))
        op, spent = kept(op, is_good), kept(spent, is_good)
        if not len(op):
            return
        by_op = groups(op)
        numbers, sizes = by_op.keys.tolist(), by_op.sizes.tolist()
        for number, size, sums in zip(numbers, sizes, by_op.sums(spent).T.tolist(), strict=True):
            ops[number].count += size
            for stage, spent_ns in zip(STAGES, sums, strict=True):
                ops[number].sums[stage] += spent_ns

    def _spent(self, op: Integers, worker: Integers, spans: Rows) -> Integers:
        """Return times (STAGES, spans) of one span per batch, sorted by op, worker and start."""
        stages = columns(spans, "start_ns", "preprocess_end_ns", "process_end_ns", "end_ns")
        # A stage that a failure skipped has no duration.
        np.maximum.accumulate(stages, axis=0, out=stages)
        start, end, taken = stages[0], stages[-1], spans["result_received_ns"]
        is_first = np.ones(len(op), np.bool_)
        is_first[1:] = (op[1:] != op[:-1]) | (worker[1:] != worker[:-1])
        is_last = np.append(is_first[1:], True)
        before = np.append(0, taken[:-1])
        workers = list(zip(op[is_first].tolist(), worker[is_first].tolist(), strict=True))
        starts = start[is_first].tolist()
        before[is_first] = [
            self._last_taken.get(who, min(self._begun_ns, start_ns))
            for who, start_ns in zip(workers, starts, strict=True)
        ]
        # A worker with its next batch at hand does not wait until the engine receives this one.
        following = np.append(start[1:], 0)
        left = np.where(is_last, taken, np.minimum(taken, following))
        for who, result_received_ns in zip(workers, taken[is_last].tolist(), strict=True):
            self._last_taken.pop(who, None)
            self._last_taken[who] = result_received_ns
        while len(self._last_taken) > _MAX_WORKERS:
            del self._last_taken[next(iter(self._last_taken))]
        spent = np.empty((len(STAGES), len(op)), np.int64)
        np.maximum(start - before, 0, out=spent[0])
        np.subtract(stages[1:], stages[:-1], out=spent[1:-1])
        np.maximum(left - end, 0, out=spent[-1])
        return spent
