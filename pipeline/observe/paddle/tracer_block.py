"""TracerBlock: the layout of a tracer's block, the interval it is about, and its files."""

from __future__ import annotations

import json
import logging.handlers
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipeline.config.schema import LogConfig, ServiceConfig
from pipeline.engine.graph import Graph
from pipeline.engine.journal.journal import PIPELINE, Outcome, Rows
from pipeline.errors import InitError, printable, utf8_text
from pipeline.observe.tables import kept

PERCENTILES = (50, 60, 70, 80, 90, 95, 99)
STAGES = ("in", "prep", "midp", "postp", "out")

_BUSY = ("prep", "midp", "postp")
_MAX_LATENCIES = 2**18  # that are kept exactly; of more, every second, then every fourth ...
_MAX_ERRORS = 1000  # data ids in one block
_NS_PER_MS = 1e6

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TracerFiles:
    """The files that a tracer writes.

    `trace` is rotated at `max_bytes`, `backup_count` old ones are kept; 0 of either: never rotated.
    `benchmark` is replaced by each block, as YAML; None: there is none.
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
) -> TracerFiles:
    """Return the files of a server that logs to `directory`.

    Of the log's old files a quarter are kept, as ever. Each replica has files of its own: two
    processes that rotate one file lose what they write. `FLAGS_profile_pipeline=1` asks for
    `benchmark.log` in the working folder.
    """
    suffix = "" if replica is None else f".copy{replica}"
    wanted = environ.get("FLAGS_profile_pipeline", "0").strip() not in ("", "0")
    return TracerFiles(
        directory / f"pipeline.tracer{suffix}",
        log.max_bytes,
        (log.backup_count + 3) // 4,
        Path(f"benchmark.log{suffix}").absolute() if wanted else None,
    )


@dataclass(frozen=True, slots=True)
class TracedGraph:
    """The graph as the blocks show it. `names` and `producers` (names of input Ops) are by Op.

    `channel_size` is the limit of an Op's channel, 0: none; `worker_num` the server's, 0: its own
    choice.
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
        """The part of its time that a worker spent on nothing of the user's."""
        total = sum(self.sums.values())
        return 1 - sum(self.sums[stage] for stage in _BUSY) / total if total else 0.0


class Interval:
    """The sums of what ended in one interval. Requests count whose target is the whole pipeline."""

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
        """Return those of the latencies as the predecessor does: sorted[n * p // 100]."""
        latencies = np.sort(np.concatenate(self._latencies))
        return {p: int(latencies[len(latencies) * p // 100]) / _NS_PER_MS for p in PERCENTILES}


@dataclass(frozen=True, slots=True)
class TracerBlock:
    """One interval of `length_s` seconds.

    `sizes`: how many requests wait at each Op at its end; `groups`: which Ops run in one go then.
    """

    interval: Interval
    length_s: float
    graph: TracedGraph
    sizes: Mapping[str, int]
    groups: Sequence[tuple[str, ...]] = ()

    def lines(self) -> Iterator[str]:
        """Yield what goes to `pipeline.tracer`, without times and line breaks."""
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
        """Return what goes to `benchmark.log`: means in ms by Op, and `DAG`."""
        found: dict[str, dict[str, float]] = {
            name: {"count": op.count, **{stage: op.mean_ms(stage) for stage in STAGES}}
            for name, op in self._ops()
        }
        return {**found, "DAG": self._requests()} if self.interval.queries else found

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
    """The files. Opened and closed by the owner, written by the thread."""

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
    """Yield YAML: names as JSON writes them, floats without exponent, which YAML 1.1 misreads."""
    for name, values in figures.items():
        yield f"{json.dumps(utf8_text(name))}:"
        for key, value in values.items():
            shown = f"{value:.6f}" if isinstance(value, float) else value
            yield f"  {key!r}: {shown}" if key.isdecimal() else f"  {key}: {shown}"
