"""Ragged batches: the inputs of `process`, their shapes, and the split of its results."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from doubles import Engine, settle, virtual

from pipeline import Op, RequestOp
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.config.sections import BatchOutputConfig
from pipeline.data import RequestInfo
from pipeline.engine.request import RequestTarget, ask
from pipeline.engine.run.collate import distribute
from pipeline.engine.run.ragged import RaggedBatch, batch_input, ragged_batch_of
from pipeline.engine.sequences.feeds import SequenceFeeds
from pipeline.errors import ConfigError, GraphError, InitError, InputError, PayloadTypeError

COUNTS = {
    "kind": "BATCH_ACCUMULATED_ELEMENT_COUNT",
    "target_name": ["ends"],
    "data_type": "TYPE_INT32",
    "source_input": ["r"],
}
KEYS = {
    "allow_ragged_batch": ["r"],
    "batch_input": [COUNTS],
    "batch_output": [{"target_name": ["twice"], "source_input": ["r"]}],
}


TWICE = BatchOutputConfig(target_name=("twice",), source_input=("r",))


def rules(**keys):
    config = load_config(yml_dict={"rpc_port": 0, "op": {"a": {**KEYS, **keys}}})
    return ragged_batch_of(resolve_op("a", {}, config))


def feed(*values, plain=0):
    return {"r": np.array([values], np.float32), "p": np.full((1, 1), plain)}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("BATCH_ELEMENT_COUNT", [6, 4]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", [6, 10]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [0, 6, 10]),
        ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", [0, 0, 0, 0, 0, 0]),
        ("BATCH_ITEM_SHAPE", [[3, 1], [3, 1], [2, 2]]),
        ("BATCH_ITEM_SHAPE_FLATTEN", [3, 1, 3, 1, 2, 2]),
    ],
)
def test_process_receives_shapes(kind, value):
    # The example of model_config.proto: two rows of [3, 1], one of [2, 2].
    assert batch_input(kind, [(2, 3, 1), (1, 2, 2)]).tolist() == value


def test_requests_of_several_shapes_share_a_call_and_each_gets_its_own():
    (call,) = rules().plan({0: feed(1, 2, 3), 2: feed(4, plain=5)})
    assert call.items == [0, 2]
    assert call.feed["r"].tolist() == [1, 2, 3, 4]
    assert call.feed["p"].tolist() == [[0], [5]]
    assert (call.feed["ends"].dtype, call.feed["ends"].tolist()) == (np.int32, [3, 4])
    call.result = {"twice": call.feed["r"] * 2, "p": call.feed["p"]}
    one, two = distribute(call)
    assert (one["twice"].tolist(), two["twice"].tolist()) == ([[2, 4, 6]], [[8]])
    assert (one["p"].tolist(), two["p"].tolist()) == ([[0]], [[5]])


def test_dense_inputs_must_have_equal_shapes_and_calls_have_a_limit_of_rows():
    wide = {"r": np.zeros((1, 2), np.float32), "p": np.zeros((1, 3), int)}
    calls = rules().plan({0: feed(1), 1: wide, 2: feed(1, 2), 3: feed(3)}, 2)
    assert [call.items for call in calls] == [[0, 2], [3], [1]]


def test_single_and_mini_batch_requests_also_receive_shapes():
    calls = rules().plan({0: [feed(1), feed(1, 2)]})
    assert [(call.part, call.feed["ends"].tolist()) for call in calls] == [(0, [1]), (1, [2])]


def test_a_call_that_is_split_gets_its_batch_inputs_again():
    (call,) = rules().plan({0: feed(1, 2), 1: feed(3)})
    apart = call.alone({}, attempts=1)
    assert [(item.feed["ends"].tolist(), item.attempts) for item in apart] == [([2], 1), ([1], 1)]


def test_a_request_without_a_ragged_input_fails_alone():
    good, bad, odd = rules().plan({0: {"p": np.zeros((1, 1))}, 1: 7, 2: feed(1)})
    assert isinstance(good.error, InputError)
    assert "'r' is missing" in str(good.error)
    assert isinstance(bad.error, PayloadTypeError)
    assert (odd.items, odd.error) == ([2], None)


def test_outputs_have_the_rows_or_the_elements_of_all():
    batch = RaggedBatch(frozenset("r"), (), [TWICE], {"twice": (-1, 1)})
    feeds = [feed(1, 2), feed(3)]
    one, two = batch.cut({"twice": np.arange(3)}, feeds)
    assert (one["twice"].tolist(), two["twice"].tolist()) == ([[[0], [1]]], [[[2]]])
    with pytest.raises(PayloadTypeError, match="'rows' has the shape"):
        batch.cut({"rows": np.arange(4)}, feeds)
    with pytest.raises(PayloadTypeError, match="'twice' has 4 elements"):
        batch.cut({"twice": np.arange(4)}, feeds)
    with pytest.raises(PayloadTypeError, match="process returned list"):
        batch.cut([], feeds)


@pytest.mark.parametrize(
    ("keys", "wrong"),
    [
        ({"batch_input": [COUNTS, COUNTS]}, "batch_input: 'ends' is there twice"),
        ({"allow_ragged_batch": ["ends"]}, "batch_input: 'ends' is sent by callers"),
        ({"batching": "iterative"}, "with batching: iterative nothing waits"),
        ({"batch_input": [{**COUNTS, "kind": "ODD"}]}, r"batch_input.*kind"),
        ({"batch_input": [{**COUNTS, "source_input": ["r", "p"]}]}, "source_input"),
        ({"batch_input": [{**COUNTS, "data_type": "TYPE_INT64"}]}, "data_type"),
    ],
)
def test_keys_that_are_wrong_are_refused(keys, wrong):
    with pytest.raises(ConfigError, match=wrong):
        rules(**keys)


class Twice(Op):
    """Doubles, and writes down how many elements each call had."""

    def init_op(self):
        self.calls = []

    def process(self, feed_batch):
        (fed,) = feed_batch
        self.calls.append(fed["ends"].tolist())
        return {"twice": fed["r"] * 2}


async def ask_all(engine, op, values, is_feed, sequences=()):
    futures = []
    for place, each in enumerate(values):
        reported = {"sequence_id": sequences[place], "sequence_start": True} if sequences else {}
        payload = feed(*each) if is_feed else {"@DAGExecutor": feed(*each)}
        target = RequestTarget(
            op, payload, raw_inputs=is_feed, wants_response=False, info=RequestInfo(**reported)
        )
        futures.append(ask(engine.executor.begin, None, target=target))
    await settle()
    return futures


@pytest.mark.parametrize(
    "batching", [{}, {"batching": "dynamic"}, {"sequence": {"strategy": "oldest"}}]
)
@pytest.mark.parametrize("is_feed", [True, False])
@virtual
async def test_an_op_gets_ragged_batches_from_each_scheduler(batching, is_feed):
    op = Twice("a", RequestOp())
    keys = {**KEYS, "batch_size": 4, **batching}
    async with Engine(op, {"op": {"a": keys}}, {"a": None}) as engine:
        ids = range(1, 4) if "sequence" in batching else ()
        futures = await ask_all(engine, op, [(1,), (2, 3), (4, 5, 6)], is_feed, ids)
        for _ in futures:
            engine.pools["a"].release()
            await settle()
        responses = await asyncio.gather(*futures)
        reported = [response.payload["twice"].tolist() for response in responses]
        assert reported == [[[2]], [[4, 6]], [[8, 10, 12]]]
        assert max(map(len, op.calls)) > 1, "some shared a call"


def test_fillers_and_ragged_batches_exclude_each_other():
    ready = {"name": "READY", "kind": "ready", "int32_false_true": [0, 1]}
    keys = {**KEYS, "batch_size": 4, "sequence": {"strategy": "direct", "controls": [ready]}}
    op = Op("a", RequestOp())
    config = load_config(yml_dict={"rpc_port": 0, "op": {"a": keys}})
    op.pipeline_config = resolve_op("a", {}, config)
    with pytest.raises(InitError, match="which slots are ready"):
        SequenceFeeds(op)


@virtual
async def test_an_op_that_streams_has_no_ragged_batches():
    class Streams(Op):
        def process(self, feed_batch):
            yield {}

    op = Streams("a", RequestOp())
    with pytest.raises(GraphError, match="are for Ops that answer once"):
        Engine(op, {"op": {"a": KEYS}})
