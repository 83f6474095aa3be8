"""One batch through the stages, without engine and threads."""

from __future__ import annotations

import contextvars
import itertools
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from pipeline import Op, ProductError
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.data import Tensor
from pipeline.deadline import call_deadline
from pipeline.engine.journal.spans import executions
from pipeline.engine.run.bound_op import BoundOp
from pipeline.engine.run.stages import BatchRun
from pipeline.errors import (
    FeedError,
    InputError,
    PipelineError,
    PredictorUnavailableError,
    UserCodeError,
)
from pipeline.op import configure_op, connect_op
from pipeline.tracing.running import Notes, Running, running


@dataclass
class Sample:
    data_id: int
    inputs: dict[str, Any]
    log_id: int = 0
    is_over: bool = False
    deadline: float | None = None
    trace: str = ""
    is_feed: bool = False


class Watch:
    def __init__(self):
        self.begun = self.ended = 0

    def call_begins(self):
        self.begun += 1

    def call_ends(self):
        self.ended += 1


class Model(Op):
    """Doubles x. Fails on a negative x; `calls` has the rows of every call."""

    def init_op(self):
        self.calls = []

    def preprocess(self, input_dicts, data_id, log_id):
        return input_dicts["read"], False, None, ""

    def process(self, feed_batch, typical_logid):
        (feed,) = feed_batch
        self.calls.append(len(feed["x"]))
        if (feed["x"] < 0).any():
            raise ValueError("x: must not be negative")
        return {"y": feed["x"] * 2}, 0, ""

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        return fetch_data if isinstance(fetch_data, dict) else {"all": fetch_data}, None, ""


def bind(op, **yml):
    configure_op(
        op,
        resolve_op(
            op.name, op.pipeline_given, load_config(yml_dict={"rpc_port": 0, "op": {op.name: yml}})
        ),
    )
    op.init_op()
    return BoundOp(op, 0)


def samples(*feeds):
    return [Sample(index, {"read": feed}) for index, feed in enumerate(feeds)]


def run(bound, batch):
    ticks = itertools.count()
    made = BatchRun(batch)
    watch = Watch()
    made.run(bound, watch, lambda: next(ticks))
    assert watch.begun == watch.ended
    return made.outcomes


def rows(*values):
    return {"x": np.array(values, dtype=np.float32)}


def test_a_batch_is_one_call_and_everybody_gets_the_own_rows():
    bound = bind(Model("m"))
    outcomes = run(bound, samples(rows(1, 2), rows(3), rows(4)))
    assert [outcome["y"].tolist() for outcome in outcomes] == [[2, 4], [6], [8]]
    assert bound.op.calls == [4]


def test_a_call_is_noted_with_all_its_requests_for_logs():
    noted = []

    class Looks(Model):
        def process(self, feed_batch, typical_logid):
            noted.append(running())
            return super().process(feed_batch, typical_logid)

    looks = Looks("m")
    looks.pipeline_notes = Notes()
    contextvars.Context().run(run, bind(looks), samples(rows(1), rows(2)))
    assert noted == [Running("m", "process", (0, 1))]


def test_samples_of_different_shapes_run_as_groups_without_errors():
    bound = bind(Model("m"))
    wide = {"x": np.zeros((1, 3), np.float32)}
    outcomes = run(bound, samples(rows(1), wide, rows(2)))
    assert [outcome["y"].shape for outcome in outcomes] == [(1,), (1, 3), (1,)]
    assert sorted(bound.op.calls) == [1, 2]


def test_a_sample_that_process_refuses_fails_alone():
    bound = bind(Model("m"))
    good, bad, other = run(bound, samples(rows(1), rows(-1), rows(2)))
    assert good["y"].tolist() == [2]
    assert other["y"].tolist() == [4]
    assert isinstance(bad, PipelineError)
    assert bad.code == 10000
    assert str(bad) == (
        "[m] failed to predict. (data_id=1 log_id=0) [m|0] Failed to process(batch: [1]): "
        "ValueError: x: must not be negative. Please check the input dict and checkout "
        "PipelineServingLogs/pipeline.log for more details."
    )


def test_a_result_that_cannot_be_split_is_worked_out_one_by_one():
    class Summary(Model):
        def process(self, feed_batch, typical_logid):
            self.calls.append(len(feed_batch[0]["x"]))
            return {"y": np.array([feed_batch[0]["x"].sum(), 0.0, 0.0])}

    bound = bind(Summary("m"))
    outcomes = run(bound, samples(rows(1, 2), rows(3, 4)))
    assert [outcome["y"][0] for outcome in outcomes] == [3, 7]
    assert bound.op.calls == [4, 2, 2]


def test_is_skip_process_is_honoured_for_each_sample():
    class Skips(Model):
        def preprocess(self, input_dicts, data_id, log_id):
            return input_dicts["read"], data_id == 1, None, ""

    bound = bind(Skips("m"))
    one, two, three = run(bound, samples(rows(1), rows(2), rows(3)))
    assert (one["y"].tolist(), three["y"].tolist()) == ([2], [6])
    assert two["x"].tolist() == [2], "postprocess sees what preprocess returned"
    assert bound.op.calls == [2]


def test_mini_batches_run_in_order_and_are_returned_as_lists():
    class Mini(Model):
        def preprocess(self, input_dicts, data_id, log_id):
            return [rows(*part) for part in input_dicts["read"]["parts"]], False, None, ""

    bound = bind(Mini("m"), timeout=1000)
    outcomes = run(bound, samples({"parts": [[1, 2], [3]]}, {"parts": []}, {"parts": [[4]]}))
    results = [[piece["y"].tolist() for piece in outcome["all"]] for outcome in outcomes]
    assert results == [[[2, 4], [6]], [], [[8]]]
    assert bound.op.calls == [2, 1, 1]


def test_a_bad_part_of_a_mini_batch_fails_its_request_alone():
    class Mini(Model):
        def preprocess(self, input_dicts, data_id, log_id):
            return [rows(part) for part in input_dicts["read"]["parts"]]

    bad, good = run(bind(Mini("m")), samples({"parts": [1, -1, 2]}, {"parts": [3]}))
    assert isinstance(bad, PipelineError)
    assert [piece["y"].tolist() for piece in good["all"]] == [[6]]


@dataclass
class FlakyClient:
    """Refuses the first `failures` calls."""

    failures: int
    calls: int = 0
    log_ids: list[int] = field(default_factory=list)

    def predict(self, feed, fetch=None, *, log_id=0):
        self.calls += 1
        self.log_ids.append(log_id)
        if self.calls <= self.failures:
            raise PredictorUnavailableError("peer gone")
        return {"y": feed["x"]}


def connected(client, **yml):
    op = Op("m")
    bound = bind(op, **yml)
    connect_op(op, client, ["x"], ["y"])
    del bound
    return BoundOp(op, 0)


def test_a_retryable_predictor_error_is_tried_as_often_as_configured():
    client = FlakyClient(failures=2)
    (outcome,) = run(connected(client, retry=3), samples(rows(1)))
    assert outcome["y"].tolist() == [1]
    assert client.calls == 3


def test_a_predictor_that_stays_away_fails_the_batch_without_trying_each_sample():
    client = FlakyClient(failures=99)
    outcomes = run(connected(client, retry=2), samples(rows(1), rows(2)))
    assert [outcome.code for outcome in outcomes] == [9000, 9000]
    assert client.calls == 2


def test_the_log_id_is_handed_to_the_predictor():
    client = FlakyClient(failures=0)
    batch = samples(rows(1))
    batch[0].log_id = 77
    run(connected(client), batch)
    assert client.log_ids == [77]


def test_an_op_without_model_hands_any_object_on():
    class Anything(Op):
        def preprocess(self, input_dicts, data_id, log_id):
            return "any object", False, None, ""

        def postprocess(self, input_dicts, fetch_data, data_id, log_id):
            return {"got": fetch_data}

    assert run(bind(Anything("m")), samples({})) == [{"got": "any object"}]


@pytest.mark.parametrize("data", [[{"a": 1}], "text", 7, [], iter("abc")])
def test_data_other_than_a_dict_is_an_error_without_a_postprocess(data):
    class Returns(Op):
        def preprocess(self, input_dicts):
            return data if input_dicts["read"] else {"good": 1}

    good, bad = run(bind(Returns("m")), samples({}, {"bad": 1}))
    assert good == {"good": 1}
    assert bad.code == 7000
    assert f"Op 'm': preprocess returned {type(data).__name__}: return a dict" in str(bad)


@pytest.mark.parametrize("result", [[1, 2], "text", 7, np.zeros(2), ({}, 0), (x for x in "abc")])
def test_a_result_other_than_a_dict_fails_its_request_only(result):
    class Returns(Model):
        postprocess = Op.postprocess

        def process(self, feed_batch, typical_logid):
            (feed,) = feed_batch
            return result if (feed["x"] < 0).any() else {"y": feed["x"]}

    good, bad, other = run(bind(Returns("m")), samples(rows(1), rows(-1), rows(2)))
    assert (good["y"].tolist(), other["y"].tolist()) == ([1], [2])
    assert bad.code == 7000
    expected = f"Op 'm': process returned {type(result).__name__}: return a dict of results"
    assert expected in str(bad)


def test_a_custom_postprocess_receives_any_result():
    class Lists(Model):
        def process(self, feed_batch, typical_logid):
            return list(feed_batch[0]["x"])

        def postprocess(self, input_dicts, fetch_data):
            return {"got": fetch_data}

    assert run(bind(Lists("m")), samples(rows(1), rows(2, 3))) == [{"got": [1]}, {"got": [2, 3]}]


def test_a_mini_batch_needs_a_postprocess():
    class Mini(Model):
        postprocess = Op.postprocess

        def preprocess(self, input_dicts, data_id, log_id):
            return [input_dicts["read"]]

    (outcome,) = run(bind(Mini("m")), samples(rows(1)))
    assert "preprocess returned list" in str(outcome)
    assert "write a postprocess" in str(outcome)


def test_a_request_of_process_only_gets_an_error_for_a_result_other_than_a_dict():
    class Lists(Model):
        def process(self, feed_batch, typical_logid):
            return list(feed_batch[0]["x"])

    (outcome,) = run(bind(Lists("m")), [Sample(0, rows(1), is_feed=True)])
    assert "Op 'm': process returned list" in str(outcome)


def test_data_other_than_dict_or_list_cannot_be_processed():
    class Wrong(Model):
        def preprocess(self, input_dicts, data_id, log_id):
            return ("text" if data_id else rows(1)), False, None, ""

    good, wrong = run(bind(Wrong("m")), samples({}, {}))
    assert good["y"].tolist() == [2]
    assert wrong.code == 7000
    assert "expect input type is dict or list, but get <class 'str'>" in str(wrong)


@pytest.mark.parametrize("stage", ["preprocess", "process", "postprocess"])
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ProductError(77, "mine"), 77),
        (InputError("bad shape"), 5000),
        (ValueError("oops"), 10000),
        (SystemExit(3), 10000),
        (KeyboardInterrupt(), 10000),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_exception_of_a_stage_is_the_error_of_its_request(stage, error, code):
    def raises(self, *args):
        raise error

    op = type("Raises", (Model,), {stage: raises})("m")
    (outcome,) = run(bind(op), samples(rows(1)))
    assert isinstance(outcome, PipelineError)
    assert outcome.code == code


def test_a_missing_lod_is_explained_and_other_missing_keys_are_not():
    class Reads(Model):
        def postprocess(self, input_dicts, fetched, data_id, log_id):
            return {"y": fetched["y.lod" if data_id else "z"]}, None, ""

    plain, lod = run(bind(Reads("m")), samples(rows(1), rows(2)))
    assert "LoD" not in str(plain)
    assert "the model gave no LoD of 'y'" in str(lod)


class Speechless(ValueError):
    """An exception without a text, as users' classes sometimes are by mistake."""

    def __str__(self):
        raise RuntimeError("no text")


class SpeechlessProduct(ProductError):
    __str__ = Speechless.__str__


class CodelessProduct(ProductError):
    code = property(lambda self: None, lambda self, code: None)


@pytest.mark.parametrize("stage", ["preprocess", "process", "postprocess"])
@pytest.mark.parametrize("error", [Speechless(), SpeechlessProduct(77), CodelessProduct(77, "x")])
def test_an_exception_without_text_fails_its_own_request_only(stage, error):
    def raises(self, given, *more):
        values = given[0] if isinstance(given, list) else given["read"]
        if (values["x"] == 9).any():
            raise error
        return getattr(Model, stage)(self, given, *more)

    op = type("Broken", (Model,), {stage: raises})("broken", [])
    good, bad = run(bind(op, batch_size=2), samples(rows(1), rows(9)))
    assert good["y"].tolist() == [2]
    assert type(bad) in (PipelineError, ProductError, UserCodeError)
    assert isinstance(int(bad.code), int)
    assert isinstance(str(bad), str)


def test_a_sample_reads_its_own_attributes_when_the_value_is_unchanged():
    """What a preprocess sets to the very object that is there is its own all the same."""

    class StoresAttributes(Model):
        def preprocess(self, input_dicts, data_id, log_id):
            self.language = input_dicts["read"]["language"]
            if self.language == "fr":
                self.accent = "`"
            return rows(1)

        def postprocess(self, input_dicts, fetch_data, data_id, log_id):
            return {"language": self.language + getattr(self, "accent", "")}

    bound = bind(StoresAttributes("m"))
    run(bound, samples({"language": "en"}))
    outcomes = run(bound, samples(*({"language": item} for item in ("en", "fr", "en"))))
    assert [outcome["language"] for outcome in outcomes] == ["en", "fr`", "en`"]


def test_a_sample_reads_its_own_attributes_after_the_next_one_failed():
    class StoresAttributes(Model):
        def preprocess(self, input_dicts, data_id, log_id):
            self.language = input_dicts["read"]["language"]
            if self.language == "fr":
                raise ValueError("not spoken here")
            return rows(1)

        def postprocess(self, input_dicts, fetch_data, data_id, log_id):
            return {"language": self.language}

    bound = bind(StoresAttributes("m"))
    run(bound, samples({"language": "en"}))
    first, second = run(bound, samples({"language": "en"}, {"language": "fr"}))
    assert first == {"language": "en"}
    assert isinstance(second, UserCodeError)


def test_each_sample_of_a_batch_reads_attributes_of_its_own_preprocess():
    class StoresAttributes(Model):
        def preprocess(self, input_dicts, data_id, log_id):
            self.raw_im = data_id
            return input_dicts["read"]

        def postprocess(self, input_dicts, fetch_data, data_id, log_id):
            return {"raw_im": self.raw_im, **fetch_data}

    outcomes = run(bind(StoresAttributes("m")), samples(rows(1), rows(2), rows(3)))
    assert [outcome["raw_im"] for outcome in outcomes] == [0, 1, 2]


@pytest.mark.parametrize("feed", [{5: np.zeros(1)}, {(1, 2): [1]}, {None: 3}])
def test_feeds_with_odd_names_do_not_end_a_worker(feed):
    class Anything(Model):
        def process(self, feed_batch, typical_logid):
            return {"n": np.zeros(1)}

    outcomes = run(bind(Anything("m")), samples(feed, dict(feed)))
    assert all(outcome is not None for outcome in outcomes)


def test_samples_that_are_over_are_not_touched():
    bound = bind(Model("m"))
    batch = samples(rows(1), rows(2))
    batch[0].is_over = True
    outcomes = run(bound, batch)
    assert outcomes[0] is None
    assert outcomes[1]["y"].tolist() == [4]
    assert bound.op.calls == [1]


def test_a_resumed_run_retains_results_and_does_not_preprocess_again():
    class Twice(Model):
        def preprocess(self, input_dicts, data_id, log_id):
            self.prepared = getattr(self, "prepared", 0) + 1
            return input_dicts["read"]

    bound = bind(Twice("m"))
    first = BatchRun(samples(rows(1), {"x": np.zeros((1, 2), np.float32)}))
    first.run(bound, Watch(), lambda: 0)
    first.outcomes = [None, None]
    first.calls[1].done = False  # as if the second group's call hung
    second = first.resumed("m", 0, attempts=3)
    second.run(bound, Watch(), lambda: 0)
    assert bound.op.prepared == 2
    assert bound.op.calls == [1, 1, 1]
    assert [outcome["y"].shape for outcome in second.outcomes] == [(1,), (1, 2)]


def test_a_single_sample_resumed_by_another_worker_reads_its_attributes():
    class StoresAttributes(Model):
        def preprocess(self, input_dicts, data_id, log_id):
            self.language = input_dicts["read"]["language"]
            return rows(1)

        def postprocess(self, input_dicts, fetch_data, data_id, log_id):
            return {"language": self.language}

    hanging, other = bind(StoresAttributes("m")), bind(StoresAttributes("m"))
    run(other, samples({"language": "fr"}))
    first = BatchRun(samples({"language": "en"}))
    first.prepare(hanging, lambda: 0)
    second = first.resumed("m", 0, attempts=3)
    second.take_along(hanging.state)
    second.run(other, Watch(), lambda: 0)
    assert second.outcomes == [{"language": "en"}]


def test_a_resumed_run_without_attempts_left_fails_the_hung_call_only():
    bound = bind(Model("m"))
    first = BatchRun(samples(rows(1), {"x": np.zeros((1, 2), np.float32)}))
    first.run(bound, Watch(), lambda: 0)
    first.outcomes = [None, None]
    first.calls[1].done = False
    second = first.resumed("m", 0, attempts=1)
    second.run(bound, Watch(), lambda: 0)
    assert second.outcomes[0]["y"].tolist() == [2]
    assert second.outcomes[1].code == 6000
    assert "exceeded retry count" in str(second.outcomes[1])


def test_a_merged_call_that_hung_is_repeated_one_sample_at_a_time():
    """Only the sample that is to blame hangs again; what it has used up counts for each."""

    bound = bind(Model("m"))
    first = BatchRun(samples(rows(1), rows(2), rows(3)))
    first.prepare(bound, lambda: 0)
    assert [call.items for call in first.calls] == [[0, 1, 2]]
    first.calls[0].attempts = 1  # it was begun
    second = first.resumed("m", 0, attempts=3)
    assert [(call.items, call.attempts) for call in second.calls] == [
        ([0], 1),
        ([1], 1),
        ([2], 1),
    ]
    second.calls[0].done, second.calls[0].result = True, [{"y": np.array([2])}]
    second.calls[1].attempts += 1
    third = second.resumed("m", 0, attempts=2)  # the second one hung again
    third.run(bound, Watch(), lambda: 0)
    assert third.outcomes[0]["y"].tolist() == [2]
    assert third.outcomes[1].code == 6000
    assert third.outcomes[2]["y"].tolist() == [6]


def test_a_call_that_hung_has_all_attempts_that_are_configured():
    bound = bind(Model("m"))
    run = BatchRun(samples(rows(1)))
    run.prepare(bound, lambda: 0)
    for _ in range(2):
        run.calls[0].attempts += 1  # as `_run_call` counts before it calls
        run = run.resumed("m", 0, attempts=3)
        assert not run.calls[0].done
    run.run(bound, Watch(), lambda: 0)
    assert run.outcomes[0]["y"].tolist() == [2]


def test_a_run_that_was_given_up_stops_after_its_call():
    bound = bind(Model("m"))
    given_up = BatchRun(samples(rows(1), {"x": np.zeros((1, 2), np.float32)}))

    class Late(Watch):
        def call_ends(self):
            given_up.is_superseded = True

    given_up.run(bound, Late(), lambda: 0)
    assert bound.op.calls == [1], "the second call is another worker's"
    assert given_up.outcomes == [None, None]


class Deadlines(Op):
    """Answers with the deadline that each call is given; `after` has those outside of calls."""

    def init_op(self):
        self.after = []

    def preprocess(self, input_dicts, data_id, log_id):
        self.after.append(call_deadline())
        return input_dicts["read"], False, None, ""

    def process(self, feed_batch, typical_logid):
        return {"ends": [call_deadline()] * len(feed_batch[0]["x"])}, 0, ""

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        self.after.append(call_deadline())
        return fetch_data, None, ""


def deadline_seen(*deadlines, **yml):
    bound = bind(Deadlines("d"), **yml)
    batch = samples(*(rows(1) for _ in deadlines))
    for sample, deadline in zip(batch, deadlines, strict=True):
        sample.deadline = deadline
    outcomes = run(bound, batch)
    assert bound.op.after == [None] * 2 * len(deadlines)
    return outcomes[0]["ends"][0]


def test_a_call_may_last_as_long_as_anyone_waits_for_it():
    now = time.monotonic()
    assert deadline_seen(None) is None
    assert deadline_seen(now + 5, now + 9, now + 7) == now + 9
    assert deadline_seen(now + 5, None) is None


def test_a_call_may_not_last_longer_than_the_timeout_of_its_op():
    now = time.monotonic()
    assert now + 60 <= deadline_seen(None, timeout=60_000) <= time.monotonic() + 60
    assert deadline_seen(now + 5, timeout=60_000) == now + 5
    assert now + 60 <= deadline_seen(now + 5000, timeout=60_000) <= time.monotonic() + 60


# At most so many samples in an execution ----------------------------------------------------------


class Bounded(Model):
    input_tensors = (Tensor("x", "FP32", ()),)
    max_batch_size = 8


def test_executions_get_no_more_samples_than_the_op_takes():
    bound = bind(Bounded("m"))
    outcomes = run(bound, samples(*(rows(*[1] * count) for count in (3, 3, 3, 8, 1))))
    assert bound.op.calls == [6, 3, 8, 1]
    assert [len(outcome["y"]) for outcome in outcomes] == [3, 3, 3, 8, 1]


def test_a_request_with_too_many_samples_is_refused_with_tritons_message():
    bound = bind(Bounded("m"))
    good, bad, listed = run(
        bound, samples(rows(1, 2), rows(*range(9)), [rows(1), rows(*range(10))])
    )
    assert good["y"].tolist() == [2, 4]
    for outcome in (bad, listed):
        assert isinstance(outcome, FeedError), "an Op of one's own has made them"
        assert str(outcome) == "inference request batch-size must be <= 8 for 'm'"
    assert bound.op.calls == [2]


def test_each_request_that_runs_alone_is_reported_if_it_is_not_skipped():
    class Each(Bounded):
        pipeline_merges = False

        def process(self, feed_batch, typical_logid):
            return [{"y": feed["x"]} for feed in feed_batch]

    batch = samples(rows(1), rows(*range(9)), rows(2), rows(3))
    batch[2].is_over = True
    made = BatchRun(batch)
    reported = []
    made.item_begins = reported.append
    made.run(bind(Each("m")), Watch(), time.monotonic_ns)
    assert reported == [0, 3]


def test_a_max_batch_size_of_a_users_class_does_not_bound_calls():
    class Own(Model):
        max_batch_size = 2

    bound = bind(Own("m"))
    run(bound, samples(rows(1, 2, 3), rows(4)))
    assert bound.op.calls == [4]


def test_calls_are_bounded_by_the_announced_batch_size():
    bound = bind(Model("m"), batch_size=6)
    batch = [Sample(index, rows(1, 2, 3), is_feed=True) for index in range(3)]
    run(bound, batch)
    assert bound.op.calls == [6, 3]


def ran_together(bound, batch):
    """Its samples, when it began, when its process began and ended, when it ended; of each."""
    ticks = itertools.count()
    made = BatchRun(batch)
    made.run(bound, Watch(), lambda: next(ticks))
    return [(list(indexes), *times) for indexes, times in executions(made)]


def test_a_batch_in_one_call_is_one_execution():
    bound = bind(Bounded("m"))
    assert ran_together(bound, samples(rows(1), rows(2))) == [([0, 1], 0, 1, 2, 3)]


def test_a_batch_in_several_calls_has_as_many_executions_in_a_row():
    bound = bind(Bounded("m"))
    batch = samples(*(rows(*[1] * count) for count in (5, 5, 3)))
    assert ran_together(bound, batch) == [([0], 0, 1, 2, 2), ([1, 2], 2, 2, 4, 5)]


def test_a_sample_without_a_call_is_in_no_execution_of_the_others():
    class Skips(Bounded):
        def preprocess(self, input_dicts, data_id, log_id):
            return input_dicts["read"], input_dicts["read"]["x"][0] == 0, None, ""

    bound = bind(Skips("m"))
    batch = samples(rows(1), rows(0), rows(*range(1, 10)), rows(2))
    assert ran_together(bound, batch) == [([1, 2], 0, 0, 0, 0), ([0, 3], 0, 1, 2, 3)]


def test_a_sample_that_ended_before_the_run_is_reported_apart_from_executions():
    bound = bind(Bounded("m"))
    batch = samples(*(rows(*[1] * count) for count in (5, 5, 3)))
    batch[1].is_over = True
    reported = ran_together(bound, batch)
    assert sorted(index for indexes, *_ in reported for index in indexes) == [0, 1, 2]


def test_a_run_that_was_given_up_does_not_change_executions_of_its_successor():
    bound = bind(Bounded("m"))
    first = BatchRun(samples(rows(*[1] * 5), rows(*[1] * 5)))
    first.prepare(bound, lambda: 0)
    first.calls[0].attempts = 1  # it was begun
    second = first.resumed("m", 0, attempts=2)
    second.run(bound, Watch(), lambda: 0)
    first.run(bound, Watch(), lambda: 0)
    assert len(second.execution_ends_ns) == 2


def test_a_merged_call_that_is_split_has_an_execution_for_each_sample():
    bound = bind(Bounded("m"))
    assert ran_together(bound, samples(rows(1), rows(-1))) == [
        ([0], 0, 1, 2, 2),
        ([1], 2, 2, 4, 5),
    ]


def test_the_parts_of_a_mini_batch_are_one_execution():
    bound = bind(Bounded("m"))
    batch = samples([rows(1), rows(2)], rows(3))
    assert ran_together(bound, batch) == [([0], 0, 1, 3, 3), ([1], 3, 3, 5, 6)]


@pytest.mark.parametrize(("handed_ns", "began_ns"), [(0, 100), (60, 60), (130, 100)])
def test_the_transfer_to_an_idle_process_belongs_to_the_execution(handed_ns, began_ns):
    made = BatchRun([], handed_ns=handed_ns)
    made.start_ns, made.preprocess_end_ns, made.process_end_ns, made.end_ns = 100, 110, 120, 130
    assert executions(made) == [(range(0), (began_ns, 110, 120, 130))]
