"""Statistics by Triton's schema: counts what every Op and the whole pipeline did.

Each Op is a model of version 1; so is the pipeline, which counts as Triton's ensembles do. Who
moves which counter when, and where Triton itself does otherwise: docs/triton_differences.md.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from pipeline.errors import InputError
from pipeline.observe.snapshot import LATENCY_STEPS, BatchCounters, ModelCounters
from pipeline.observe.span import PIPELINE, Outcome, Rows
from pipeline.observe.tables import Counters, Integers, batches, differences, summed, tally
from pipeline.predictors.memory import MemoryUse
from pipeline.proto.inference_v2_pb2 import ModelStatisticsResponse

__all__ = [
    "LATENCY_BOUNDS_NS",
    "VERSION",
    "Statistics",
    "StatisticsError",
    "fill_statistics",
    "merge",
    "model_names",
    "percentile",
    "select",
    "stats_json",
    "version_number",
]

VERSION = 1
"""The version of every model: there is one."""

LATENCY_BOUNDS_NS = np.floor(1000 * 2 ** (np.arange(LATENCY_STEPS) / 4)).astype(np.int64)
"""Upper bounds of the buckets of a latency histogram, those of LATENCY_STEPS."""

# Fields of ModelCounters that are summed over turns, in the order of the columns of the sums.
_SUMS = (
    "success_count",
    "inference_count",
    "success_ns",
    "fail_ns",
    "queue_ns",
    "input_ns",
    "infer_ns",
    "output_ns",
)
_BATCH_SUMS = ("count", "input_ns", "infer_ns", "output_ns")
_NS_IN_MS = 1_000_000
_MOST_ROWS = 2**31  # an empty array may state any number of them
_MOST_EXACT_SIZE = 1024  # callers choose the sizes of batches: those above share a few counters
_ALL_BITS = 2**64 - 1
_MOST_VERSION = 2**63 - 1
_INTEGER = re.compile(r"-?[0-9]{1,4000}")  # Python itself refuses to read longer ones


class StatisticsError(InputError):
    """A question about a model or version that is not there. The text is Triton's."""


# --- counting -------------------------------------------------------------------------------


def wall_offset_ns() -> int:
    """What to add to `time.monotonic_ns` for the time since the epoch."""
    return time.time_ns() - time.monotonic_ns()


class _Passes(NamedTuple):
    """Turns or requests, a row each: `stages` has input, infer and output ns."""

    model: Integers
    rows: Integers
    outcome: Integers
    took_ns: Integers
    queue_ns: Integers
    stages: Integers


class Statistics:
    """A Sink that counts. It is read on the event loop, where it is folded.

    Args:
        pipeline_name: the pipeline's name as a model.
        names: the Ops' names as models, in the graph's order; see `model_names`.
        wall_offset_ns: what makes a wall clock time of a monotonic one.
    """

    def __init__(
        self,
        pipeline_name: str,
        names: Sequence[str],
        wall_offset_ns: Callable[[], int] = wall_offset_ns,
    ) -> None:
        self._names = [pipeline_name, *names]
        self._wall_offset_ns = wall_offset_ns
        models = len(self._names)
        # They wrap as Triton's do: 1000 requests at a time fill 64 bits in 213 days.
        self._sums: Counters = np.zeros((models, len(_SUMS)), np.uint64)
        self._executions: Counters = np.zeros(models, np.uint64)
        self._fails: Counters = np.zeros((models, len(Outcome)), np.uint64)
        self._latency: Counters = np.zeros((models, LATENCY_STEPS), np.uint64)
        self._queue_latency: Counters = np.zeros((models, LATENCY_STEPS), np.uint64)
        self._last_ns: Integers = np.zeros(models, np.int64)
        self._batches: list[dict[int, Counters]] = [{} for _ in self._names]

    def fold(self, turns: Rows, requests: Rows) -> None:
        """Count what happened; see `Sink`."""
        offset_ns = self._wall_offset_ns()
        if len(turns):
            self._fold_turns(turns, offset_ns)
        whole = requests[requests["target"] == PIPELINE]
        if len(whole):
            self._fold_requests(whole, offset_ns)

    @property
    def models(self) -> list[ModelCounters]:
        """The counters as they stand: of the pipeline, then of the Ops. Theirs to change."""
        return [self._model(index) for index in range(len(self._names))]

    def _fold_turns(self, turns: Rows, offset_ns: int) -> None:
        model, rows = turns["op"] + 1, np.clip(turns["rows"], 1, _MOST_ROWS)
        ready_ns = turns["ready_ns"]
        stages = differences(turns, "start_ns", "prepared_ns", "processed_ns", "end_ns")
        took_ns, queue_ns = turns["taken_ns"] - ready_ns, turns["start_ns"] - ready_ns
        self._count(_Passes(model, rows, turns["outcome"], took_ns, queue_ns, stages))
        ran = batches(turns, rows)
        first = ran.first
        self._execute(model[first], ran.width, stages[first], turns["end_ns"][first] + offset_ns)

    def _fold_requests(self, requests: Rows, offset_ns: int) -> None:
        model = np.zeros(len(requests), np.int64)
        rows, outcome = np.clip(requests["rows"], 1, _MOST_ROWS), requests["outcome"]
        start_ns, end_ns = requests["start_ns"], requests["end_ns"]
        took_ns, queue_ns = end_ns - start_ns, requests["entered_ns"] - start_ns
        stages = np.stack([requests[f"{stage}_ns"] for stage in ("input", "infer", "output")], 1)
        self._count(_Passes(model, rows, outcome, took_ns, queue_ns, stages))
        good = np.flatnonzero(outcome == Outcome.OK)
        self._execute(model[good], rows[good], stages[good], end_ns[good] + offset_ns)

    def _count(self, passes: _Passes) -> None:
        """Count what each turn or request moves by itself."""
        model, outcome = passes.model, passes.outcome
        is_success = outcome == Outcome.OK
        took_ns, queue_ns = np.maximum(passes.took_ns, 0), np.maximum(passes.queue_ns, 0)
        values = np.empty((len(model), len(_SUMS)), np.int64)
        values[:, 0] = is_success
        values[:, 1] = passes.rows * is_success
        values[:, 2] = took_ns * is_success
        values[:, 3] = took_ns * ~is_success
        values[:, 4] = queue_ns * is_success
        values[:, 5:] = passes.stages * is_success[:, None]
        models, sums = summed(model, values)
        self._sums[models] += sums.astype(np.uint64)
        tally(self._fails, model[~is_success], outcome[~is_success])
        tally(self._latency, model[is_success], _buckets(took_ns[is_success]))
        tally(self._queue_latency, model[is_success], _buckets(queue_ns[is_success]))

    def _execute(
        self, model: Integers, width: Integers, stages: Integers, ended_ns: Integers
    ) -> None:
        """Count executions: the batch size, the stages' times and the wall clock end of each."""
        if not len(model):
            return
        np.maximum.at(self._last_ns, model, ended_ns)
        np.add.at(self._executions, model, np.uint64(1))
        width = _counted_sizes(width)
        sizes = int(width.max()) + 1
        values = np.concatenate([np.ones((len(model), 1), np.int64), stages], 1)
        keys, sums = summed(model * sizes + width, values)
        for key, counters in zip(keys.tolist(), sums.astype(np.uint64), strict=True):
            index, size = divmod(key, sizes)
            before = self._batches[index].get(size)
            self._batches[index][size] = counters if before is None else before + counters

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
            latency=self._latency[index].tolist(),
            queue_latency=self._queue_latency[index].tolist(),
            **sums,
        )


def _counted_sizes(width: Integers) -> Integers:
    """The sizes that executions count under: above 1024 the next power of two."""
    above = 2 ** np.ceil(np.log2(width)).astype(np.int64)
    return np.where(width > _MOST_EXACT_SIZE, above, width)


def _buckets(ns: Integers) -> npt.NDArray[np.intp]:
    return np.minimum(np.searchsorted(LATENCY_BOUNDS_NS, ns), LATENCY_STEPS - 1)


# --- reading --------------------------------------------------------------------------------


def merge(copies: Iterable[Sequence[ModelCounters]]) -> list[ModelCounters]:
    """The models of a whole server: those of its copies, added up by name, in the first's order."""
    merged: dict[str, ModelCounters] = {}
    for models in copies:
        for model in models:
            before = merged.get(model.name) or ModelCounters(model.name)
            merged[model.name] = _added(before, model)
    return list(merged.values())


def _added(one: ModelCounters, other: ModelCounters) -> ModelCounters:
    by_size = {
        size: _added_batches(*(model.batches.get(size, BatchCounters()) for model in (one, other)))
        for size in sorted({*one.batches, *other.batches})
    }
    sums = {name: _sum(getattr(one, name), getattr(other, name)) for name in _SUMS}
    return ModelCounters(
        name=one.name,
        last_inference_ms=max(one.last_inference_ms, other.last_inference_ms),
        execution_count=_sum(one.execution_count, other.execution_count),
        fail_counts=_added_lists(one.fail_counts, other.fail_counts),
        batches=by_size,
        latency=_added_lists(one.latency, other.latency),
        queue_latency=_added_lists(one.queue_latency, other.queue_latency),
        memory=_added_memory([*one.memory, *other.memory]),
        **sums,
    )


def _added_batches(one: BatchCounters, other: BatchCounters) -> BatchCounters:
    return BatchCounters(*(_sum(getattr(one, name), getattr(other, name)) for name in _BATCH_SUMS))


def _added_lists(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [(a + b) & _ALL_BITS for a, b in zip(one, other, strict=True)]


def _added_memory(uses: Iterable[MemoryUse]) -> list[MemoryUse]:
    sizes: dict[tuple[str, int], int] = {}
    for use in uses:
        sizes[use.kind, use.id] = sizes.get((use.kind, use.id), 0) + use.byte_size
    return [MemoryUse(*place, size) for place, size in sorted(sizes.items())]


def _sum(one: int, other: int) -> int:
    return (one + other) & _ALL_BITS


def percentile(histogram: Sequence[int], q: float) -> float:
    """The time in ns that the share `q` (0 to 1) took at most; 0.0 of an empty histogram.

    Linear within a bucket, which is 19 % wide. `histogram` may be the difference of two.
    """
    if not 0 <= q <= 1:
        raise ValueError(f"percentile: q is {q}, it must be from 0 to 1")
    counts = np.maximum(np.asarray(histogram, np.int64), 0)
    upto = np.cumsum(counts)
    rank = q * int(upto[-1])
    if not upto[-1]:
        return 0.0
    bucket = int(np.argmax((upto >= rank) & (counts > 0)))
    lower = float(LATENCY_BOUNDS_NS[bucket - 1]) if bucket else 0.0
    share = (rank - float(upto[bucket] - counts[bucket])) / float(counts[bucket])
    return lower + (float(LATENCY_BOUNDS_NS[bucket]) - lower) * share


# --- names and versions ---------------------------------------------------------------------


def model_names(service_name: str | None, op_names: Sequence[str]) -> tuple[str, list[str]]:
    """The names of the pipeline and of the Ops as models: all different.

    The pipeline is called like the service ("pipeline" without one), an Op by its own name; an
    Op that is called like the pipeline, as in many a script, becomes "<name>.op".
    """
    pipeline_name = service_name or "pipeline"
    taken = {pipeline_name, *op_names}
    clash = f"{pipeline_name}.op"
    while clash in taken:
        clash += ".op"
    return pipeline_name, [clash if name == pipeline_name else name for name in op_names]


def version_number(text: str) -> int | None:
    """The version that a caller asks for; None for "", which leaves the choice to the server.

    Raises StatisticsError if it is no number from 0 to 2**63 - 1.
    """
    if not text:
        return None
    version = int(text) if _INTEGER.fullmatch(text) else None
    if version is None or abs(version) > _MOST_VERSION:
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
    """The models that a caller asks for, by name; all of them if `name` is "".

    As in Triton, the version of a question for all models is read, but not compared. Raises
    StatisticsError, with Triton's texts, for what is no version and for what is not there.
    """
    number = version_number(version)
    ordered = sorted(models, key=lambda model: model.name)
    if not name:
        return ordered
    found = [model for model in ordered if model.name == name]
    if not found:
        raise StatisticsError(f"requested model '{name}' is not available")
    if number not in (None, VERSION):
        raise StatisticsError(f"requested model version is not available for model '{name}'")
    return found


# --- the two forms of an answer -------------------------------------------------------------


def stats_json(models: Iterable[ModelCounters]) -> bytes:
    """The answer over HTTP: `{"model_stats": [...]}`, in the order of `models`."""
    return orjson.dumps({"model_stats": [_form(model) for model in models]})


def fill_statistics(models: Iterable[ModelCounters], response: ModelStatisticsResponse) -> None:
    """Append the models to the answer over gRPC, in their order."""
    for model in models:
        response.model_stats.add(**_form(model))


def _form(model: ModelCounters) -> dict[str, Any]:
    """One model in the words of both forms, in the order of the JSON one."""
    return {
        "name": model.name,
        "version": str(VERSION),
        "last_inference": model.last_inference_ms,
        "inference_count": model.inference_count,
        "execution_count": model.execution_count,
        "inference_stats": _inference_form(model),
        "response_stats": {},  # for models with several responses a request
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
        **_stages_form(count, model),
        "cache_hit": _duration(0, 0),
        "cache_miss": _duration(0, 0),
    }


def _stages_form(count: int, times: ModelCounters | BatchCounters) -> dict[str, Any]:
    return {
        "compute_input": _duration(count, times.input_ns),
        "compute_infer": _duration(count, times.infer_ns),
        "compute_output": _duration(count, times.output_ns),
    }


def _duration(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}
