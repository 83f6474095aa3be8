"""Scalars of requests at an Op with a batch size: a value for each row, whatever the load."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from doubles import Engine, answers, settle, virtual

from pipeline import Op, RequestOp
from pipeline.engine.run.collate import with_columns


class RecordsFeeds(Op):
    """Keeps what its `process` is fed; the data id of a request says what it feeds."""

    feeds = ()

    def __init__(self, *feeds, **settings):
        super().__init__("keeps", [RequestOp()])
        self.pipeline_feeds = feeds
        self.fed = []

    def preprocess(self, input_dicts, data_id, log_id):
        return self.pipeline_feeds[data_id], False, None, ""  # as the predecessor's scripts do

    def process(self, feed_batch, typical_logid):
        (feed,) = feed_batch
        self.fed.append(feed)
        if any(text == "bad" for text in feed.get("text", ())):
            raise ValueError("bad")
        return {"is": [str(x) for x in np.atleast_1d(feed["x"])]}, None, ""

    def postprocess(self, input_dicts, fetched, data_id, log_id):
        return {"is": str(fetched["is"])}, None, ""


async def ask(op, batch_size, count):
    """Return the answers to so many requests that wait together behind another."""
    config = {"op": {"keeps": {"batch_size": batch_size}}}
    async with Engine(op, config, {"keeps": None}) as engine:
        asked = [engine.ask()]
        await settle()
        asked += [engine.ask() for _ in range(count - 1)]
        await settle()
        engine.pools["keeps"].service_s = 0.0
        engine.pools["keeps"].release()
        return await asyncio.gather(*asked)


def feeds(*texts):
    return [{"x": number, "text": text} for number, text in enumerate(texts)]


@virtual
async def test_scalars_of_eight_callers_are_one_call():
    op = RecordsFeeds(*feeds("first", *"abcdefgh"))
    responses = await ask(op, 8, 9)
    alone, together = op.fed
    assert (alone["x"].tolist(), alone["text"]) == ([0], ["first"])
    assert together["x"].dtype == alone["x"].dtype == np.int64
    assert (together["x"].tolist(), together["text"]) == ([*range(1, 9)], [*"abcdefgh"])
    assert [answers(response)["is"] for response in responses] == [
        f"['{number}']" for number in range(9)
    ]


@virtual
async def test_at_a_batch_size_of_one_scalars_are_scalars():
    op = RecordsFeeds(*feeds("a", "b"))
    await ask(op, 1, 2)
    assert op.fed == feeds("a", "b")


@virtual
async def test_a_batch_that_is_split_feeds_the_same_types():
    op = RecordsFeeds(*feeds("first", "good", "bad"))
    responses = await ask(op, 8, 3)
    assert [feed["text"] for feed in op.fed] == [["first"], ["good", "bad"], ["good"], ["bad"]]
    assert [response.err_no == 0 for response in responses] == [True, True, False]


@virtual
async def test_a_mini_batch_whose_parts_run_one_by_one_is_fed_unchanged():
    class Parts(RecordsFeeds):
        def process(self, feed_batch, typical_logid):
            self.fed += feed_batch
            return {"is": "part"}, None, ""

        def postprocess(self, input_dicts, fetched, data_id, log_id):
            return {"is": str(fetched)}, None, ""

    op = Parts(feeds("a", "b"), feeds("c"))
    await ask(op, 8, 2)
    assert op.fed == [*feeds("a", "b"), *feeds("c")]


@virtual
async def test_a_sample_that_skips_process_has_no_columns():
    class Skips(RecordsFeeds):
        def preprocess(self, input_dicts, data_id, log_id):
            return {"is": data_id}, True, None, ""

        def postprocess(self, input_dicts, fetched, data_id, log_id):
            return {"is": repr(fetched)}, None, ""

    response = await ask(Skips(), 8, 2)
    assert [answers(item)["is"] for item in response] == ["{'is': 0}", "{'is': 1}"]


@virtual
async def test_an_op_without_a_process_method_passes_scalars_on():
    class Passes(Op):
        def preprocess(self, input_dicts, data_id, log_id):
            return {"x": data_id}

        def postprocess(self, input_dicts, fetched, data_id, log_id):
            return {"is": repr(fetched)}

    config = {"op": {"keeps": {"batch_size": 8}}}
    async with Engine(Passes("keeps", [RequestOp()]), config) as engine:
        assert answers(await engine.ask()) == {"is": "{'x': 0}"}


@pytest.mark.parametrize(
    ("value", "column"),
    [
        (3, np.array([3])),
        (True, np.array([True])),
        (0.5, np.array([0.5])),
        (1j, np.array([1j])),
        (np.float32(0.5), np.array([0.5], np.float32)),
        (2**70, [2**70]),
        ("a", ["a"]),
        (np.str_("a"), ["a"]),
        (b"a", [b"a"]),
        (None, [None]),
    ],
)
def test_a_scalar_becomes_a_column_of_its_type(value, column):
    result = with_columns({"x": value})["x"]
    assert type(result) is type(column)
    assert getattr(result, "dtype", None) == getattr(column, "dtype", None)
    assert [*result] == [*column]


def test_a_scalar_next_to_rows_is_repeated_for_each_row():
    result = with_columns({"x": np.zeros((3, 2)), "low": 0.5, "name": "a"})
    assert result["low"].tolist() == [0.5] * 3
    assert result["name"] == ["a"] * 3


def test_values_other_than_scalars_are_unchanged():
    feed = {"x": np.array(3), "y": np.zeros((1, 2)), "z": ["a"], "w": {"a": 1}}
    assert with_columns(feed) is feed
    beside = with_columns({**feed, "n": 1})
    assert all(beside[name] is value for name, value in feed.items())
