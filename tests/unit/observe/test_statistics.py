from __future__ import annotations

import bisect
import itertools
import json
import random
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine.journal.journal import (
    NO_WORKER,
    PIPELINE,
    REQUEST,
    SPAN,
    Journal,
    Outcome,
    pack_request,
    pack_span,
)
from pipeline.errors import ErrorCode
from pipeline.observe.snapshot import LATENCY_STEPS, BatchCounters, ModelCounters
from pipeline.observe.statistics import (
    Statistics,
    StatisticsError,
    fill_statistics,
    merge,
    model_names,
    select,
    stats_json,
    version_number,
)
from pipeline.observe.tables import LATENCY_BOUNDS_NS
from pipeline.predictors.base import MemoryUse
from pipeline.proto.inference_v2_pb2 import ModelStatisticsResponse

OFFSET_NS = 1_700_000_000_000_000_000
NAMES = ["words", "cnn", "bow"]
MS = 1_000_000
OK, BACKEND = Outcome.OK, Outcome.BACKEND


def a_turn(op: int = 0, *, batch: int = 0, at: int = 1000 * MS, **changes: int) -> dict[str, int]:
    """A turn that took 1 ms to start and 2, 3, 4, 5 ms from one time to the next."""
    times = [at, at + MS, at + 3 * MS, at + 6 * MS, at + 10 * MS, at + 15 * MS]
    row = {"op": op, "worker": 0, "batch": batch, "data_id": 1, "rows": 1, "outcome": int(OK)}
    row |= dict(zip(SPAN.names[6:], times, strict=True))
    return row | changes


def a_request(at: int = 1000 * MS, **changes: int) -> dict[str, int]:
    """A request of the whole graph that waited for 2 ms and took 30."""
    row = dict.fromkeys(REQUEST.names, 0)
    row |= {"target": PIPELINE, "rows": 1, "start_ns": at, "admitted_ns": at + 2 * MS}
    row |= {"dispatched_ns": at + 3 * MS, "completed_ns": at + 29 * MS, "end_ns": at + 30 * MS}
    return row | {"input_ns": 2 * MS, "infer_ns": 30 * MS, "output_ns": 4 * MS} | changes


def table(dtype: np.dtype[Any], rows: list[dict[str, int]]) -> np.ndarray:
    return np.array([tuple(row[name] for name in dtype.names) for row in rows], dtype)


def counted(
    turns: list[dict[str, int]] = [], requests: list[dict[str, int]] = []
) -> list[ModelCounters]:
    statistics = Statistics("imdb", NAMES, lambda: OFFSET_NS)
    statistics.notify(table(SPAN, turns), table(REQUEST, requests))
    return statistics.models


# --- what moves which counter ---------------------------------------------------------------


def test_without_requests_all_counters_are_zero():
    assert [model.name for model in counted()] == ["imdb", *NAMES]
    assert counted()[1] == ModelCounters("words")


def test_a_turn_moves_the_counters_of_its_op_alone():
    pipeline, words, cnn, bow = counted([a_turn(1, rows=3)])
    assert pipeline == ModelCounters("imdb")
    assert (words, bow) == (ModelCounters("words"), ModelCounters("bow"))
    assert (cnn.success_count, cnn.success_ns, cnn.queue_ns) == (1, 15 * MS, MS)
    assert (cnn.input_ns, cnn.infer_ns) == (2 * MS, 3 * MS)
    assert cnn.output_ns == 9 * MS, "with the way home, so that all parts together are all of it"
    assert (cnn.inference_count, cnn.execution_count) == (3, 1)
    assert cnn.batches == {3: BatchCounters(1, 2 * MS, 3 * MS, 9 * MS)}
    assert (sum(cnn.fail_counts), cnn.fail_ns) == (0, 0)


def test_each_request_is_charged_the_whole_batch_that_counts_once():
    words = counted([a_turn(data_id=number) for number in range(8)])[1]
    assert (words.success_count, words.infer_ns) == (8, 24 * MS)
    assert words.execution_count == 1
    assert words.batches == {8: BatchCounters(1, 2 * MS, 3 * MS, 9 * MS)}


def test_adjacent_batches_are_counted_separately():
    turns = [
        a_turn(op, batch=batch, data_id=id) for op, batch, id in ((0, 1, 1), (0, 2, 2), (1, 2, 3))
    ]
    words, cnn = counted(turns)[1:3]
    assert words.batches == {1: BatchCounters(2, 4 * MS, 6 * MS, 18 * MS)}
    assert cnn.batches == {1: BatchCounters(1, 2 * MS, 3 * MS, 9 * MS)}


def test_an_op_of_a_trip_ends_at_its_end_and_the_last_one_at_the_loop():
    """Both came back to the loop together: the time of the second is not part of the first's."""
    first, last = a_turn(0, at=1000 * MS), a_turn(1, at=1010 * MS)
    first["result_received_ns"] = last["result_received_ns"]
    other = {**first, "op": 2, "data_id": 2}
    words, cnn, bow = counted([last, first, other])[1:]
    assert (words.success_ns, words.output_ns) == (10 * MS, 4 * MS)
    assert (cnn.success_ns, cnn.output_ns) == (15 * MS, 9 * MS)
    assert (bow.success_ns, bow.output_ns) == (25 * MS, 19 * MS), "of another request"


def test_a_batch_around_a_span_that_never_ran_is_counted_once():
    refused = a_turn(0, batch=-1, worker=NO_WORKER, outcome=Outcome.REJECTED)
    words = counted([a_turn(), refused, a_turn()])[1]
    assert (words.execution_count, list(words.batches)) == (1, [2])


def test_a_failed_turn_moves_its_reason_and_its_time_only():
    words = counted([a_turn(outcome=BACKEND, rows=2)])[1]
    assert words == ModelCounters("words", fail_counts=[0, 0, 0, 1, 0, 0], fail_ns=15 * MS)


def test_a_failure_counts_in_the_size_of_a_batch_with_a_success():
    words = counted([a_turn(outcome=BACKEND, rows=2), a_turn(rows=3)])[1]
    assert (words.execution_count, list(words.batches)) == (1, [5])
    assert (words.inference_count, words.success_count) == (3, 1)


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome != OK])
def test_a_turn_that_never_ran_is_a_failure_of_its_reason(outcome):
    words = counted([a_turn(batch=-1, worker=NO_WORKER, outcome=outcome)])[1]
    assert words.fail_counts == [int(reason == outcome) for reason in Outcome]
    assert words.execution_count == 0


def test_the_pipeline_counts_a_request_as_an_ensemble_does():
    (pipeline, *ops) = counted(requests=[a_request(rows=4)])
    assert ops == [ModelCounters(name) for name in NAMES]
    assert (pipeline.success_count, pipeline.success_ns) == (1, 30 * MS)
    assert pipeline.queue_ns == 2 * MS, "its own, not the sum of the Ops'"
    sums = (pipeline.input_ns, pipeline.infer_ns, pipeline.output_ns)
    assert sums == (2 * MS, 30 * MS, 4 * MS), "of its turns, which may be more than it took"
    assert (pipeline.inference_count, pipeline.execution_count) == (4, 1)
    assert pipeline.batches == {4: BatchCounters(1, *sums)}


def test_requests_of_the_pipeline_count_as_separate_executions():
    pipeline = counted(requests=[a_request(), a_request(), a_request(rows=2)])[0]
    assert {size: batch.count for size, batch in pipeline.batches.items()} == {1: 2, 2: 1}


def test_a_failed_request_is_one_failure():
    pipeline = counted(requests=[a_request(outcome=BACKEND, code=10000)])[0]
    assert pipeline == ModelCounters("imdb", fail_counts=[0, 0, 0, 1, 0, 0], fail_ns=30 * MS)


def test_a_request_of_one_op_does_not_count_for_the_pipeline():
    assert counted(requests=[a_request(target=1)])[0] == ModelCounters("imdb")


def test_last_inference_is_when_the_last_execution_ended_by_the_wall_clock():
    late, early = a_turn(batch=1, at=5000 * MS), a_turn(batch=2, at=1000 * MS)
    failed = a_turn(batch=3, at=9000 * MS, outcome=BACKEND)
    pipeline, words = counted([late, early, failed], [a_request(at=7000 * MS)])[:2]
    assert words.last_inference_ms == 1_700_000_000_000 + 5010
    assert pipeline.last_inference_ms == 1_700_000_000_000 + 7030


def test_clocks_that_disagree_count_as_no_time():
    """A worker on another machine may start before its batch was ready, by its own clock."""
    words = counted(
        [a_turn(start_ns=1, preprocess_end_ns=3, process_end_ns=2, end_ns=3, result_received_ns=0)]
    )[1]
    assert (words.success_count, words.success_ns, words.queue_ns) == (1, 0, 0)
    assert (words.input_ns, words.infer_ns, words.output_ns) == (2, 0, 1)


def test_counters_wrap_at_64_bits_and_stay_writable():
    (end,) = counted(requests=[a_request(infer_ns=2**63 - 1)] * 3)[:1]
    assert end.infer_ns == (3 * (2**63 - 1)) % 2**64
    (whole,) = merge([[end], [end]])
    assert whole.infer_ns == (6 * (2**63 - 1)) % 2**64
    fill_statistics([whole], ModelStatisticsResponse())
    assert str(whole.infer_ns).encode() in stats_json([whole])


def test_a_time_on_the_bound_of_a_bucket_is_in_it():
    bounds = [1000, 1189, 1414, 1681, 2000, 1000 * 2**29, 1000 * 2**30]
    assert set(bounds) <= set(LATENCY_BOUNDS_NS.tolist())
    for bound in bounds:
        for ns in (bound, bound + 1):
            words = counted([a_turn(result_received_ns=1000 * MS + ns)])[1]
            assert words.latency[bucket_of(ns)] == 1
    assert bucket_of(1000) == 0
    assert bucket_of(1001) == 1


def test_sizes_that_callers_choose_do_not_grow_the_counters_without_end():
    turns = [a_turn(batch=size, rows=size) for size in range(1000, 4000)]
    words = counted(turns, [a_request(rows=5000)])[1]
    assert list(words.batches) == [*range(1000, 1025), 2048, 4096]
    assert words.batches[2048].count == 1024
    assert words.inference_count == sum(range(1000, 4000)), "only sizes are rounded"


@pytest.mark.parametrize("rows", [-5, 0, 2**62, 2**63 - 1])
def test_numbers_of_samples_that_cannot_be_do_no_harm(rows):
    """A caller's array of shape (2**62, 0) is empty, but says that it brings so many."""
    pipeline, words = counted([a_turn(rows=rows)] * 4, [a_request(rows=rows)] * 4)[:2]
    assert 1 <= words.inference_count == pipeline.inference_count <= 2**33
    assert words.success_count == pipeline.success_count == 4


def test_read_counters_are_copies():
    statistics = Statistics("imdb", NAMES, lambda: OFFSET_NS)
    statistics.notify(table(SPAN, [a_turn()]), table(REQUEST, []))
    read = statistics.models
    read[1].latency[3] += 5
    read[1].batches[1].count += 5
    read[1].memory.append(MemoryUse("CPU", 0, 1))
    assert statistics.models == counted([a_turn()])


def test_a_journal_folds_into_it():
    statistics = Statistics("imdb", NAMES, lambda: OFFSET_NS)
    journal = Journal([statistics])
    for number in range(40):
        journal.spans.append(pack_span(*a_turn(1, batch=number // 4).values()))
        journal.requests.append(pack_request(*a_request().values()))
    journal.flush()
    pipeline, _, cnn, _ = statistics.models
    assert (cnn.success_count, cnn.execution_count, pipeline.success_count) == (40, 10, 40)


# --- against counting by hand ---------------------------------------------------------------

OUTCOMES = st.sampled_from([OK, OK, OK, *Outcome])
SMALL_NS = st.integers(-10 * MS, 10**12)  # below 0: clocks that disagree


@dataclass
class Traffic:
    """Turns, as they stand in batches that no fold tears, and requests."""

    batches: list[list[dict[str, int]]]
    requests: list[dict[str, int]]


@st.composite
def batches(draw: st.DrawFn, number: int) -> list[dict[str, int]]:
    op = draw(st.integers(0, len(NAMES) - 1))
    ran = draw(st.booleans())
    times = np.cumsum([10**15, *draw(st.lists(SMALL_NS, min_size=3, max_size=3))]).tolist()
    turns = []
    received_ns = times[-1] + draw(SMALL_NS)
    for place in range(draw(st.integers(1, 5)) if ran else 1):
        turn = a_turn(op, batch=number, outcome=draw(OUTCOMES), rows=draw(st.integers(1, 3)))
        turn |= dict(zip(SPAN.names[7:11], times, strict=True))
        turn["ready_ns"] = times[0] - draw(SMALL_NS)
        turn |= {"data_id": 10 * number + place, "result_received_ns": received_ns}
        if not ran:
            turn |= {"batch": -1, "worker": NO_WORKER, "outcome": int(Outcome.REJECTED)}
        turns.append(turn)
    return turns


@st.composite
def traffics(draw: st.DrawFn) -> Traffic:
    length = st.integers(0, 12)
    requests = []
    for _ in range(draw(length)):
        request = a_request(outcome=draw(OUTCOMES), rows=draw(st.integers(1, 3)))
        request["target"] = draw(st.sampled_from([PIPELINE, PIPELINE, 0]))
        request["end_ns"] = request["start_ns"] + draw(SMALL_NS)
        requests.append(request | {name: draw(length) for name in REQUEST.names[-3:]})
    return Traffic([draw(batches(number)) for number in range(draw(length))], requests)


@dataclass
class ByHand:
    """Triton's rules, one turn or request after the other."""

    models: list[ModelCounters] = field(
        default_factory=lambda: [ModelCounters(name) for name in ["imdb", *NAMES]]
    )

    def batch(self, turns: list[dict[str, int]]) -> None:
        model = self.models[turns[0]["op"] + 1]
        for turn in turns:
            times = [
                turn[name] for name in ("start_ns", "preprocess_end_ns", "process_end_ns", "end_ns")
            ]
            times[-1] = max(times[-1], turn["result_received_ns"])
            stages = [max(0, b - a) for a, b in itertools.pairwise(times)]
            took_ns = max(0, turn["result_received_ns"] - turn["ready_ns"])
            self.one(model, turn, took_ns, max(0, turn["start_ns"] - turn["ready_ns"]), stages)
        if turns[0]["batch"] >= 0 and any(turn["outcome"] == OK for turn in turns):
            width = sum(turn["rows"] for turn in turns)
            self.execution(model, width, stages, turns[0]["end_ns"])

    def request(self, request: dict[str, int]) -> None:
        if request["target"] != PIPELINE:
            return
        stages = [request[name] for name in ("input_ns", "infer_ns", "output_ns")]
        took_ns = max(0, request["end_ns"] - request["start_ns"])
        queue_ns = request["admitted_ns"] - request["start_ns"]
        self.one(self.models[0], request, took_ns, queue_ns, stages)
        if request["outcome"] == OK:
            self.execution(self.models[0], request["rows"], stages, request["end_ns"])

    @staticmethod
    def one(
        model: ModelCounters, row: dict[str, int], took_ns: int, queue_ns: int, stages: list[int]
    ) -> None:
        if row["outcome"] != OK:
            model.fail_counts[row["outcome"]] += 1
            model.fail_ns += took_ns
            return
        model.success_count += 1
        model.success_ns += took_ns
        model.inference_count += row["rows"]
        model.queue_ns += queue_ns
        model.input_ns += stages[0]
        model.infer_ns += stages[1]
        model.output_ns += stages[2]
        model.latency[bucket_of(took_ns)] += 1
        model.queue_latency[bucket_of(queue_ns)] += 1

    @staticmethod
    def execution(model: ModelCounters, width: int, stages: list[int], ended_ns: int) -> None:
        model.execution_count += 1
        ended_ms = (ended_ns + OFFSET_NS) // MS
        model.last_inference_ms = max(model.last_inference_ms, ended_ms)
        batch = model.batches.setdefault(width, BatchCounters())
        batch.count += 1
        batch.input_ns += stages[0]
        batch.infer_ns += stages[1]
        batch.output_ns += stages[2]


def bucket_of(ns: int) -> int:
    """By the words of LATENCY_STEPS: up to 1 us * 2**(i / 4)."""
    bounds = [1000 * 2 ** (step / 4) for step in range(LATENCY_STEPS)]
    return min(bisect.bisect_left(bounds, ns), LATENCY_STEPS - 1)


def folded(traffic: Traffic, folds: int, seed: int) -> list[ModelCounters]:
    """The models after all of it came in `folds` parts, batches in any order."""
    statistics = Statistics("imdb", NAMES, lambda: OFFSET_NS)
    chance = random.Random(seed)
    chance.shuffle(traffic.batches)
    parts = [Traffic([], []) for _ in range(folds)]
    for batch in traffic.batches:
        chance.choice(parts).batches.append(batch)
    for request in traffic.requests:
        chance.choice(parts).requests.append(request)
    for part in parts:
        turns = [turn for batch in part.batches for turn in batch]
        statistics.notify(table(SPAN, turns), table(REQUEST, part.requests))
    return statistics.models


@given(traffics(), st.integers(1, 4), st.integers())
def test_folds_of_any_traffic_count_as_by_hand(traffic, folds, seed):
    by_hand = ByHand()
    for batch in traffic.batches:
        by_hand.batch(batch)
    for request in traffic.requests:
        by_hand.request(request)
    assert folded(traffic, folds, seed) == by_hand.models


@given(traffics(), st.integers(1, 4), st.integers())
def test_the_invariants_of_the_counters_hold(traffic, folds, seed):
    pipeline, *ops = folded(traffic, folds, seed)
    whole = [request for request in traffic.requests if request["target"] == PIPELINE]
    assert pipeline.success_count + sum(pipeline.fail_counts) == len(whole)
    assert pipeline.execution_count == pipeline.success_count
    turns = [turn["op"] for batch in traffic.batches for turn in batch]
    for index, op in enumerate(ops):
        assert op.success_count + sum(op.fail_counts) == turns.count(index)
        assert op.execution_count <= op.success_count
    for model in (pipeline, *ops):
        sizes = model.batches
        assert sum(batch.count for batch in sizes.values()) == model.execution_count
        assert model.inference_count <= sum(size * batch.count for size, batch in sizes.items())
        assert model.fail_counts[OK] == 0
        assert sum(model.latency) == sum(model.queue_latency) == model.success_count
        assert (model.last_inference_ms == 0) == (model.execution_count == 0)


@given(st.lists(traffics(), min_size=1, max_size=4))
def test_merged_replicas_equal_one_that_did_all_work(parts):
    copies = [folded(part, 1, 0) for part in parts]
    everything = Traffic([], [])
    for number, part in enumerate(parts):
        for turn in itertools.chain.from_iterable(part.batches):
            turn["batch"] += 100 * number * (turn["batch"] >= 0)  # each copy counts for itself
            turn["data_id"] += 1000 * number
        everything.batches += part.batches
        everything.requests += part.requests
    before = msgspec.msgpack.encode(copies)
    assert merge(copies) == folded(everything, 1, 0)
    assert msgspec.msgpack.encode(copies) == before


def test_copies_use_their_memory_each():
    copies = [
        [ModelCounters("cnn", memory=[MemoryUse("GPU", n, 5), MemoryUse("CPU", 0, 7)])]
        for n in (0, 1)
    ]
    (cnn,) = merge(copies)
    assert cnn.memory == [MemoryUse("CPU", 0, 14), MemoryUse("GPU", 0, 5), MemoryUse("GPU", 1, 5)]


# --- names and versions ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("service", "ops", "names"),
    [
        ("imdb", ["a", "b"], ("imdb", ["a", "b"])),
        (None, ["a"], ("pipeline", ["a"])),
        ("uci", ["uci"], ("uci", ["uci.op"])),
        (None, ["pipeline"], ("pipeline", ["pipeline.op"])),
        ("uci", ["uci.op", "uci"], ("uci", ["uci.op", "uci.op.op"])),
    ],
)
def test_the_pipeline_and_each_op_have_distinct_names(service, ops, names):
    assert model_names(service, ops) == names


MODELS = [ModelCounters(name) for name in ("imdb", "words", "bow")]


@pytest.mark.parametrize("version", ["", "1", "2", "01"])
def test_no_name_asks_for_all_models_by_name(version):
    assert [model.name for model in select(MODELS, "", version)] == ["bow", "imdb", "words"]


@pytest.mark.parametrize("version", ["", "1", "0001"])
def test_a_name_asks_for_its_model(version):
    assert select(MODELS, "words", version) == [ModelCounters("words")]


NOT_A_VERSION = (
    "failed to get model version from specified version string '{}' (details: stol), "
    "version should be an integral value > 0"
)


@pytest.mark.parametrize(
    ("name", "version", "text"),
    [
        ("nope", "", "requested model 'nope' is not available"),
        ("nope", "1", "requested model 'nope' is not available"),
        ("bow", "2", "requested model version is not available for model 'bow'"),
        ("bow", "0", "requested model version is not available for model 'bow'"),
        ("bow", str(2**63 - 1), "requested model version is not available for model 'bow'"),
        *(
            (name, version, NOT_A_VERSION.format(version))
            for name in ("bow", "nope", "")
            for version in ("abc", "1abc", "1.0", " 1", "٣", "1\n", "1" * 5000, str(2**63))
        ),
        (
            "bow",
            "-1",
            "invalid model version specified '-1' , version should be an integral value > 0",
        ),
    ],
)
def test_an_unknown_model_is_refused_with_tritons_message(name, version, text):
    with pytest.raises(StatisticsError) as caught:
        select(MODELS, name, version)
    assert str(caught.value) == text
    assert caught.value.code == ErrorCode.INPUT_PARAMS_ERROR


@given(st.text() | st.from_regex(r"[-+]?[0-9]+"))
def test_any_text_is_a_version_or_refused(text):
    try:
        number = version_number(text)
    except StatisticsError:
        return
    assert (number is None and text == "") or int(text) == number >= 0


# --- the two forms --------------------------------------------------------------------------

DURATIONS = "success fail queue compute_input compute_infer compute_output cache_hit cache_miss"


def counters_with_all_fields() -> ModelCounters:
    turns = [a_turn(), a_turn(), a_turn(batch=1), a_turn(batch=2, outcome=BACKEND)]
    words = counted(turns)[1]
    words.memory = [MemoryUse("CPU", 0, 4096), MemoryUse("GPU", -1, 2**63)]
    return words


def test_the_json_form_is_tritons_key_for_key():
    body = stats_json([counters_with_all_fields()])
    assert body.decode() == json.dumps(
        {
            "model_stats": [
                {
                    "name": "words",
                    "version": "1",
                    "last_inference": 1_700_000_000_000 + 1010,
                    "inference_count": 3,
                    "execution_count": 2,
                    "inference_stats": {
                        "success": {"count": 3, "ns": 45 * MS},
                        "fail": {"count": 1, "ns": 15 * MS},
                        "queue": {"count": 3, "ns": 3 * MS},
                        "compute_input": {"count": 3, "ns": 6 * MS},
                        "compute_infer": {"count": 3, "ns": 9 * MS},
                        "compute_output": {"count": 3, "ns": 27 * MS},
                        "cache_hit": {"count": 0, "ns": 0},
                        "cache_miss": {"count": 0, "ns": 0},
                    },
                    "response_stats": {},
                    "batch_stats": [
                        {
                            "batch_size": size,
                            "compute_input": {"count": 1, "ns": 2 * MS},
                            "compute_infer": {"count": 1, "ns": 3 * MS},
                            "compute_output": {"count": 1, "ns": 9 * MS},
                        }
                        for size in (1, 2)
                    ],
                    "memory_usage": [
                        {"type": "CPU", "id": 0, "byte_size": 4096},
                        {"type": "GPU", "id": -1, "byte_size": 2**63},
                    ],
                }
            ]
        },
        separators=(",", ":"),
    )


def test_counters_of_zero_are_included():
    (model,) = json.loads(stats_json([ModelCounters("words")]))["model_stats"]
    assert list(model["inference_stats"]) == DURATIONS.split()
    assert all(value == {"count": 0, "ns": 0} for value in model["inference_stats"].values())
    assert (model["batch_stats"], model["memory_usage"], model["response_stats"]) == ([], [], {})


def test_message_and_json_are_equal():
    models = [counters_with_all_fields(), ModelCounters("cnn")]
    response = ModelStatisticsResponse()
    fill_statistics(models, response)
    (words, cnn) = json.loads(stats_json(models))["model_stats"]
    assert as_json(response.model_stats[0]) == words
    assert as_json(response.model_stats[1]) == cnn
    for duration in DURATIONS.split():
        assert response.model_stats[1].inference_stats.HasField(duration)


def as_json(message: Any) -> Any:
    """A message as Triton writes it as JSON: numbers as numbers, and all of them."""
    values = {}
    for part in message.DESCRIPTOR.fields:
        value = getattr(message, part.name)
        if part.name == "response_stats":
            value = {key: as_json(item) for key, item in value.items()}
        elif part.is_repeated:
            value = [as_json(item) for item in value]
        elif part.message_type is not None:
            value = as_json(value)
        values[part.name] = value
    return values
