"""Statistics in Triton's schema: counters of each Op and of the whole pipeline.

Each Op is a model of version 1; so is the pipeline, which counts as Triton's ensembles do. A model
of a repository has its own version. docs/triton_differences.md says when each counter changes and
how Triton differs.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.ma  # numpy would import it later, when no file may be left
import numpy.typing as npt
import orjson
from msgspec.structs import astuple

from pipeline.config.schema import MetricsConfig
from pipeline.engine.journal.journal import PIPELINE, Outcome, PartKind, Rows, wall_offset_ns
from pipeline.errors import InputError
from pipeline.observe.sink import SinkContext
from pipeline.observe.snapshot import (
    LATENCY_STEPS,
    BatchCounters,
    ModelCounters,
    ResponseCounters,
    Snapshot,
)
from pipeline.observe.tables import (
    Counters,
    Integers,
    batches,
    buckets,
    columns,
    done_at,
    groups,
    kept,
    tally,
)
from pipeline.predictors.base import MemoryUse
from pipeline.proto.inference_v2_pb2 import ModelStatisticsResponse

# Fields of ModelCounters that are sums: those of the rows of values of successes, then two others.
_VALUES = ("inference_count", "success_ns", "queue_ns", "input_ns", "infer_ns", "output_ns")
_SUMS = (*_VALUES, "success_count", "fail_ns")
_SAMPLES, _TOOK, _QUEUE, _STAGES = range(4)  # the last three are the stages
_SUCCESSES, _FAIL_NS = len(_VALUES), len(_VALUES) + 1
_NO_SUMS = {
    *("name", "version", "last_inference_ms", "memory", "caches"),
    *("first_part_bounds_ms", "recent_us", "exemplars"),
}
_STEPS = ("ready_ns", "start_ns", "preprocess_end_ns", "process_end_ns")
_NS_IN_MS = 1_000_000
_MAX_ROWS = 2**31  # an empty array may state any number of rows
_MAX_EXACT_SIZE = 1024  # callers choose batch sizes: larger ones share a few counters
_ALL_BITS = 2**64 - 1
_MAX_VERSION = 2**63 - 1
_METRICS = MetricsConfig()
_INTEGER = re.compile(r"-?[0-9]{1,4000}")  # Python itself refuses to read longer ones


class StatisticsError(InputError):
    """The model or version does not exist. The text is Triton's."""


# --- counting -------------------------------------------------------------------------------


class Statistics:
    """A Sink that counts. The event loop notifies and reads it.

    The names are those of `model_names`; `recent` remembers times, if they are read.
    """

    def __init__(
        self,
        pipeline_name: str,
        names: Sequence[str],
        wall_offset_ns: Callable[[], int] = wall_offset_ns,
        first_response_bounds_ms: Sequence[float] = _METRICS.first_response_buckets_ms,
        recent: RecentTimes | None = None,
    ) -> None:
        self._names = [pipeline_name, *names]
        self._wall_offset_ns = wall_offset_ns
        models = len(self._names)
        # They wrap as Triton's do: 1000 parallel requests fill 64 bits in 213 days.
        self._sums: Counters = np.zeros((models, len(_SUMS)), np.uint64)
        self._executions: Counters = np.zeros(models, np.uint64)
        self._fails: Counters = np.zeros((models, len(Outcome)), np.uint64)
        self._latency: Counters = np.zeros((models, 2, LATENCY_STEPS), np.uint64)  # took, queue
        self._last_ns: Integers = np.zeros(models, np.int64)
        self._batches: list[dict[int, Counters]] = [{} for _ in self._names]
        self._responses = Responses(models, first_response_bounds_ms)
        self._recent = recent
        self._hits = Hits(models)
        self._fillers: dict[tuple[int, int], int] = {}  # by Op and batch

    def notify(self, spans: Rows, requests: Rows) -> None:
        """Count what happened; see `Sink`."""
        offset_ns = self._wall_offset_ns()
        if len(spans):
            self._count_spans(spans, offset_ns)
        requests = kept(requests, requests["target"] == PIPELINE)
        if len(requests):
            self._count_requests(requests, offset_ns)

    def notify_fillers(self, op: int, batch: int, rows: int) -> None:
        """Note filler rows in a batch whose spans are still to come."""
        self._fillers[op, batch] = rows

    def notify_caches(self, target: int) -> None:
        """Note that a model has a cache; see `CacheSink`."""
        self._hits.opened(target + 1)

    def notify_cache_hit(self, target: int, data_id: int, took_ns: int) -> None:
        """Count a cache hit, whose row or span comes next; see `CacheSink`."""
        self._hits.hit(target + 1, data_id, took_ns)

    def notify_cache_miss(self, target: int, took_ns: int) -> None:
        """Count a cache miss; its time includes the storing of the answer."""
        self._hits.missed(target + 1, took_ns)
        self._sums[target + 1, _TOOK] += np.uint64(max(0, took_ns))

    def notify_parts(self, parts: Rows) -> None:
        """Count parts of streams; see `PartSink`."""
        self._responses.count(parts)

    @property
    def models(self) -> list[ModelCounters]:
        """Return copies of the counters: of the pipeline, then of the Ops."""
        return [self._model(index) for index in range(len(self._names))]

    def _count_spans(self, spans: Rows, offset_ns: int) -> None:
        values = np.empty((len(_VALUES), len(spans)), np.int64)
        values[_SAMPLES] = spans["rows"]
        done_ns = spans["result_received_ns"] if len(self._names) <= 2 else done_at(spans)
        np.subtract(done_ns, spans["ready_ns"], out=values[_TOOK])
        times = columns(spans, *_STEPS)
        np.subtract(times[1:], times[:-1], out=values[_QUEUE:-1])
        home_ns = np.maximum(
            done_ns, spans["end_ns"]
        )  # where clocks disagree, the worker's clock counts
        np.subtract(home_ns, times[-1], out=values[-1])
        _sane(values)
        is_hit = self._hits.among(spans["op"] + 1, spans["data_id"])
        if is_hit is not None:
            values[_SAMPLES, is_hit] = values[_STAGES:, is_hit] = 0
        self._count(spans["op"] + 1, spans["outcome"], values)
        ran = spans["batch"] >= 0
        spans, values = kept(spans, ran), kept(values, ran)
        if len(spans):
            self._count_batches(spans, values, offset_ns)

    def _count_batches(self, spans: Rows, values: Integers, offset_ns: int) -> None:
        """Count the batches in which a request succeeded, with all their rows."""
        first = batches(spans).first
        width = np.add.reduceat(values[_SAMPLES], first)
        if self._fillers:
            of = zip(*(spans[name].take(first).tolist() for name in ("op", "batch")), strict=True)
            width += np.array([self._fillers.pop(key, 0) for key in of], np.int64)
        is_success = np.minimum.reduceat(spans["outcome"], first) == Outcome.OK
        first, width = kept(first, is_success), kept(width, is_success)
        ended_ns = spans["end_ns"].take(first) + offset_ns
        stages = values[_STAGES:].take(first, axis=1)
        self._execute(spans["op"].take(first) + 1, width, stages, ended_ns)

    def _count_requests(self, requests: Rows, offset_ns: int) -> None:
        values = np.empty((len(_VALUES), len(requests)), np.int64)
        values[_SAMPLES] = requests["rows"]
        np.subtract(requests["end_ns"], requests["start_ns"], out=values[_TOOK])
        np.subtract(requests["admitted_ns"], requests["start_ns"], out=values[_QUEUE])
        values[_STAGES:] = columns(requests, "input_ns", "infer_ns", "output_ns")
        model, outcome = np.zeros(len(requests), np.int64), requests["outcome"]
        _sane(values)
        ran = outcome == Outcome.OK
        is_hit = self._hits.among(model, requests["data_id"])
        if is_hit is not None:
            values[_SAMPLES, is_hit] = values[_STAGES:, is_hit] = 0
            ran &= ~is_hit
        self._count(model, outcome, values)
        ends_ns = requests["end_ns"] + offset_ns
        model, values, ends_ns = (kept(column, ran) for column in (model, values, ends_ns))
        self._execute(model, values[_SAMPLES], values[_STAGES:], ends_ns)

    def _count(self, model: Integers, outcome: Integers, values: Integers) -> None:
        """Count each span or request by its outcome."""
        is_success = outcome == Outcome.OK
        if not is_success.all():
            failed = ~is_success
            reasons = model[failed] * len(Outcome) + outcome[failed]
            tally(self._fails, reasons)
            np.add.at(self._sums[:, _FAIL_NS], model[failed], values[_TOOK, failed].view(np.uint64))
            model, values = model[is_success], values.compress(is_success, axis=1)
        if len(model):
            self._succeed(model, values)

    def _succeed(self, model: Integers, values: Integers) -> None:
        if self._recent is not None:
            self._recent.add(model, values[_TOOK:])
        by_model = groups(model)
        self._sums[by_model.keys, : len(_VALUES)] += by_model.sums(values).T.view(np.uint64)
        self._sums[by_model.keys, _SUCCESSES] += by_model.sizes.view(np.uint64)
        cells = buckets(values[_TOOK:_STAGES])
        cells += model * (2 * LATENCY_STEPS)
        cells[1] += LATENCY_STEPS
        tally(self._latency, cells.ravel())

    def _execute(
        self, model: Integers, width: Integers, stages: Integers, ended_ns: Integers
    ) -> None:
        """Count executions by batch size, stages' times and wall clock end."""
        if not len(model):
            return
        if width.max() > _MAX_EXACT_SIZE:  # larger ones count as the next power of two
            above = 2 ** np.ceil(np.log2(width)).astype(np.int64)
            width = np.where(width > _MAX_EXACT_SIZE, above, width)
        sizes = int(width.max()) + 1
        by_width = groups(model * sizes + width)
        sums = np.stack([by_width.sizes, *by_width.sums(stages)], 1).view(np.uint64)
        ends = by_width.most(ended_ns).tolist()
        for key, counters, end_ns in zip(by_width.keys.tolist(), sums, ends, strict=True):
            index, size = divmod(key, sizes)
            before = self._batches[index].get(size)
            self._batches[index][size] = counters if before is None else before + counters
            self._executions[index] += counters[0]
            self._last_ns[index] = max(self._last_ns[index], end_ns)

    def _model(self, index: int) -> ModelCounters:
        sums = dict(zip(_SUMS, self._sums[index].tolist(), strict=True))
        return ModelCounters(
            name=self._names[index],
            last_inference_ms=int(self._last_ns[index]) // _NS_IN_MS,
            execution_count=int(self._executions[index]),
            fail_counts=self._fails[index].tolist(),
            batches={
                size: BatchCounters(*counters.tolist())
                for size, counters in sorted(self._batches[index].items())
            },
            latency=self._latency[index, 0].tolist(),
            queue_latency=self._latency[index, 1].tolist(),
            recent_us=[] if self._recent is None else self._recent.quantiles_us(index),
            **self._responses.fields(index),
            **self._hits.fields(index),
            **sums,
        )


def _sane(values: Integers) -> Integers:
    """Limit samples to possible numbers, and times to 0 or more where clocks disagree; in place."""
    np.clip(values[_SAMPLES], 1, _MAX_ROWS, out=values[_SAMPLES])
    return np.maximum(values, 0, out=values)


def open_statistics(context: SinkContext, options: None) -> Statistics:
    """Open the sink `statistics`, which fills the models of the Snapshot."""
    metrics = context.config.metrics
    recent = RecentTimes(metrics.summary_quantiles) if metrics.summary_latencies else None
    statistics = Statistics(
        context.pipeline_name,
        context.model_names,
        first_response_bounds_ms=metrics.first_response_buckets_ms,
        recent=recent,
    )

    def fill(snapshot: Snapshot) -> None:
        snapshot.models = statistics.models

    context.on_snapshot(fill)
    return statistics


# --- reading --------------------------------------------------------------------------------


def merge(replicas: Iterable[Sequence[ModelCounters]]) -> list[ModelCounters]:
    """Add up the models of a server's replicas by name and version, in the order of the first."""
    merged: dict[tuple[str, str], ModelCounters] = {}
    for models in replicas:
        for model in models:
            key = model.name, model.version
            before = merged.get(key) or ModelCounters(model.name, version=model.version)
            merged[key] = _added(before, model)
    return list(merged.values())


def _added(one: ModelCounters, other: ModelCounters) -> ModelCounters:
    sums = {
        name: _sum(getattr(one, name), getattr(other, name))
        for name in ModelCounters.__struct_fields__
        if name not in _NO_SUMS
    }
    return ModelCounters(
        name=one.name,
        version=one.version,
        last_inference_ms=max(one.last_inference_ms, other.last_inference_ms),
        memory=_added_memory([*one.memory, *other.memory]),
        caches=one.caches or other.caches,
        first_part_bounds_ms=one.first_part_bounds_ms or other.first_part_bounds_ms,
        **sums,
    )


def _sum(one: Any, other: Any) -> Any:
    """Return the sum of two counters or collections of counters; it wraps as they do."""
    if isinstance(one, int):
        return (one + other) & _ALL_BITS
    if isinstance(one, list):
        return list(map(_sum, one, other)) if one and other else one or other
    if isinstance(one, dict):
        counted = [*one.values(), *other.values()]
        sizes, nothing = sorted({*one, *other}), counted and type(counted[0])()
        return {size: _sum(one.get(size, nothing), other.get(size, nothing)) for size in sizes}
    return type(one)(*map(_sum, astuple(one), astuple(other)))


def _added_memory(uses: Iterable[MemoryUse]) -> list[MemoryUse]:
    sizes: dict[tuple[str, int], int] = {}
    for use in uses:
        sizes[use.kind, use.id] = sizes.get((use.kind, use.id), 0) + use.byte_size
    return [MemoryUse(*place, size) for place, size in sorted(sizes.items())]


# --- names and versions ---------------------------------------------------------------------


def model_names(service_name: str | None, op_names: Sequence[str]) -> tuple[str, list[str]]:
    """Return the names of the pipeline and of the Ops as models: all different.

    The pipeline has the service's name, or "pipeline" without one. An Op has its own name; an Op
    with the pipeline's name, as in many scripts, becomes "<name>.op".
    """
    pipeline_name = service_name or "pipeline"
    taken = {pipeline_name, *op_names}
    clash = f"{pipeline_name}.op"
    while clash in taken:
        clash += ".op"
    return pipeline_name, [clash if name == pipeline_name else name for name in op_names]


def version_number(text: str) -> int | None:
    """Return the version that a caller asks for; None for "", with which the server chooses.

    Raises StatisticsError if it is not a number from 0 to 2**63 - 1.
    """
    if not text:
        return None
    version = int(text) if _INTEGER.fullmatch(text) else None
    if version is None or abs(version) > _MAX_VERSION:
        raise StatisticsError(
            f"failed to get model version from specified version string '{text}' "
            "(details: stol), version should be an integral value > 0"
        )
    if version < 0:
        raise StatisticsError(
            f"invalid model version specified '{text}' , version should be an integral value > 0"
        )
    return version


def select(
    models: Iterable[ModelCounters], name: str = "", version: str = ""
) -> list[ModelCounters]:
    """Return the models that a caller asks for, by name and version; all if `name` is "".

    As in Triton, the version of a query for all models is parsed, but not compared. Raises
    StatisticsError, with Triton's texts, if the version is not valid or the model does not exist.
    """
    number = version_number(version)
    shown = (model for model in models if model.version)
    ordered = sorted(shown, key=lambda model: (model.name, int(model.version)))
    if not name:
        return ordered
    models_found = [model for model in ordered if model.name == name]
    if not models_found:
        raise StatisticsError(f"requested model '{name}' is not available")
    selected = [model for model in models_found if number is None or model.version == str(number)]
    if not selected:
        raise StatisticsError(f"requested model version is not available for model '{name}'")
    return selected


# --- the two forms of an answer -------------------------------------------------------------


def stats_json(models: Iterable[ModelCounters]) -> bytes:
    """Return the answer over HTTP: `{"model_stats": [...]}`, in the order of `models`."""
    return orjson.dumps({"model_stats": [_form(model) for model in models]})


def fill_statistics(models: Iterable[ModelCounters], response: ModelStatisticsResponse) -> None:
    """Append the models to the answer over gRPC, in their order."""
    for model in models:
        response.model_stats.add(**_form(model))


def _form(model: ModelCounters) -> dict[str, Any]:
    """Return one model's fields for both forms, in the order of the JSON form."""
    return {
        "name": model.name,
        "version": model.version,
        "last_inference": model.last_inference_ms,
        "inference_count": model.inference_count,
        "execution_count": model.execution_count,
        "inference_stats": _inference_form(model),
        "response_stats": {
            str(number): response_form(counters)
            for number, counters in sorted(model.responses.items())
        },
        "batch_stats": [
            {"batch_size": size, **_stages_form(batch.count, batch)}
            for size, batch in sorted(model.batches.items())
        ],
        "memory_usage": [
            {"type": use.kind, "id": use.id, "byte_size": use.byte_size} for use in model.memory
        ],
    }


def _inference_form(model: ModelCounters) -> dict[str, Any]:
    count = model.success_count
    return {
        "success": _duration(count, model.success_ns),
        "fail": _duration(sum(model.fail_counts), model.fail_ns),
        "queue": _duration(count, model.queue_ns),
        **_stages_form((count - model.cache_hit_count) & _ALL_BITS, model),
        "cache_hit": _duration(model.cache_hit_count, model.cache_hit_ns),
        "cache_miss": _duration(model.cache_miss_count, model.cache_miss_ns),
    }


def _stages_form(count: int, times: ModelCounters | BatchCounters) -> dict[str, Any]:
    return {
        "compute_input": _duration(count, times.input_ns),
        "compute_infer": _duration(count, times.infer_ns),
        "compute_output": _duration(count, times.output_ns),
    }


def _duration(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}


_WINDOW_S = 60.0
_MOST = 20_000  # requests that are remembered: the last ones
_NS_IN_US = 1000


class RecentTimes:
    """Times of the last successful requests of all models of a graph.

    Args:
        quantiles: the quantiles to compute, from 0 to 1.
        clock: returns seconds.
    """

    def __init__(
        self, quantiles: Sequence[float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._quantiles = list(quantiles)
        self._clock = clock
        self._known: deque[tuple[float, Integers, Integers]] = deque()
        self._count = 0

    def add(self, model: Integers, times_ns: Integers) -> None:
        """Remember times, one column per request, of the models with these indexes."""
        self._known.append((self._clock(), model, times_ns))
        self._count += len(model)
        while self._count > _MOST and len(self._known) > 1:
            self._forget()

    def quantiles_us(self, index: int) -> list[list[int]]:
        """Return the quantiles of each row of a model's times in us; empty without requests."""
        while self._known and self._known[0][0] < self._clock() - _WINDOW_S:
            self._forget()
        pieces = [times[:, model == index] for _, model, times in self._known]
        times = np.concatenate(pieces, axis=1) if pieces else np.zeros((0, 0), np.int64)
        if not times.size:
            return []
        ranks = np.quantile(times, self._quantiles, axis=1, method="higher")
        of_each: list[list[int]] = (ranks.T // _NS_IN_US).astype(np.int64).tolist()
        return of_each

    def _forget(self) -> None:
        _, model, _ = self._known.popleft()
        self._count -= len(model)


_HITS, _HIT_NS, _MISSES, _MISS_NS = range(4)


class Hits:
    """Counters of hits and misses of a cache.

    Args:
        models: number of models.
    """

    def __init__(self, models: int) -> None:
        self._counters: Counters = np.zeros((models, 4), np.uint64)
        self._caches: set[int] = set()
        self._next: set[tuple[int, int]] = set()  # hits whose rows are still to come

    def opened(self, model: int) -> None:
        """Note that a model has a cache."""
        self._caches.add(model)

    def hit(self, model: int, data_id: int, took_ns: int) -> None:
        """Count a hit."""
        self._next.add((model, data_id))
        self._add(model, _HITS, took_ns)

    def missed(self, model: int, took_ns: int) -> None:
        """Count a miss."""
        self._add(model, _MISSES, took_ns)

    def _add(self, model: int, column: int, took_ns: int) -> None:
        self._counters[model, column] += np.uint64(1)
        self._counters[model, column + 1] += np.uint64(max(0, took_ns))

    def among(self, models: Integers, data_ids: Integers) -> npt.NDArray[np.bool_] | None:
        """Return which of these rows are hits; None if none of them is."""
        if not self._next:
            return None
        rows = zip(models.tolist(), data_ids.tolist(), strict=True)
        are_hits = np.array([row in self._next for row in rows], bool)
        if not are_hits.any():
            return None
        gone = zip(models[are_hits].tolist(), data_ids[are_hits].tolist(), strict=True)
        self._next.difference_update(gone)
        return are_hits

    def fields(self, model: int) -> dict[str, Any]:
        """Return the cache fields of a model's ModelCounters."""
        hits, hit_ns, misses, miss_ns = self._counters[model].tolist()
        return {
            "caches": model in self._caches,
            "cache_hit_count": hits,
            "cache_hit_ns": hit_ns,
            "cache_miss_count": misses,
            "cache_miss_ns": miss_ns,
        }


# number of counters for parts of a stream: the last one also counts all later parts
_MOST_NUMBERS = 1000


class Responses:
    """Counters of the parts of all models: the pipeline, then its Ops.

    Args:
        models: number of models.
        bounds_ms: bounds of Triton's histogram of first parts; one more bucket is above them.
    """

    def __init__(self, models: int, bounds_ms: Sequence[float]) -> None:
        self._bounds_ms = list(bounds_ms)
        self._bounds_ns = np.array(bounds_ms, np.float64) * 1_000_000
        self._counters: list[dict[int, ResponseCounters]] = [{} for _ in range(models)]
        self._waits: Counters = np.zeros((models, 2, LATENCY_STEPS), np.uint64)  # first, between
        self._first_ms: Counters = np.zeros((models, len(self._bounds_ms) + 1), np.uint64)
        self._waits_ns: list[list[int]] = [[0, 0] for _ in range(models)]

    def count(self, parts: Rows) -> None:
        model, kind = parts["target"] + 1, parts["kind"]
        number = np.minimum(parts["number"], _MOST_NUMBERS - 1)
        infer_ns = np.maximum(parts["made_ns"] - parts["start_ns"], 0)
        output_ns = np.maximum(parts["end_ns"] - parts["made_ns"], 0)
        by_part = groups((model * _MOST_NUMBERS + number) * len(PartKind) + kind)
        sums = by_part.sums(np.stack([infer_ns, output_ns]))
        rows = zip(by_part.keys.tolist(), by_part.sizes.tolist(), sums.T.tolist(), strict=True)
        for key, size, (infer, output) in rows:
            place, its_kind = divmod(key, len(PartKind))
            index, its_number = divmod(place, _MOST_NUMBERS)
            counters = self._counters[index].setdefault(its_number, ResponseCounters())
            _add(counters, its_kind, size, infer, output)
        is_given = kind == PartKind.GIVEN
        is_later = kept(parts["number"] > 0, is_given).astype(np.int64)
        self._await(kept(model, is_given), is_later, kept(infer_ns + output_ns, is_given))

    def _await(self, model: Any, is_later: Any, took_ns: Any) -> None:
        if not len(model):
            return
        tally(self._waits, buckets(took_ns) + (model * 2 + is_later) * LATENCY_STEPS)
        first, first_of = kept(took_ns, is_later == 0), kept(model, is_later == 0)
        bound = np.searchsorted(self._bounds_ns, first)
        tally(self._first_ms, bound + first_of * self._first_ms.shape[1])
        by_model = groups(model * 2 + is_later)
        sums = by_model.sums(took_ns[np.newaxis])[0].tolist()
        for key, total in zip(by_model.keys.tolist(), sums, strict=True):
            self._waits_ns[key // 2][key % 2] += total

    def fields(self, index: int) -> dict[str, Any]:
        """Return the fields of a model's ModelCounters."""
        if not self._counters[index]:
            return {}
        first_ns, gap_ns = self._waits_ns[index]
        return {
            "responses": dict(sorted(self._counters[index].items())),
            "first_part": self._waits[index, 0].tolist(),
            "first_part_ns": first_ns,
            "first_part_ms": self._first_ms[index].tolist(),
            "first_part_bounds_ms": self._bounds_ms,
            "part_gap": self._waits[index, 1].tolist(),
            "part_gap_ns": gap_ns,
        }


def _add(counters: ResponseCounters, kind: int, count: int, infer_ns: int, output_ns: int) -> None:
    if kind == PartKind.GIVEN:
        counters.count += count
        counters.infer_ns += infer_ns
        counters.output_ns += output_ns
    elif kind == PartKind.EMPTY:
        counters.empty_count += count
        counters.empty_ns += infer_ns
    elif kind == PartKind.FAILED:
        counters.fail_count += count
        counters.fail_ns += infer_ns
    else:
        counters.cancel_count += count


def response_form(counters: ResponseCounters) -> dict[str, Any]:
    """Return the counters of one part index in Triton's form."""
    made_ns = counters.infer_ns + counters.empty_ns + counters.fail_ns
    made = counters.count + counters.empty_count + counters.fail_count
    return {
        "compute_infer": {"count": made, "ns": made_ns},
        "compute_output": {"count": counters.count, "ns": counters.output_ns},
        "success": {"count": counters.count, "ns": counters.infer_ns + counters.output_ns},
        "fail": {"count": counters.fail_count, "ns": counters.fail_ns},
        "empty_response": {"count": counters.empty_count, "ns": counters.empty_ns},
        "cancel": {"count": counters.cancel_count, "ns": counters.cancel_ns},
    }
