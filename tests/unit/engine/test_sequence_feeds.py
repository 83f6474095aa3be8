"""Sequences add controls, states, and fillers of empty slots to a call of `process`."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline import Op, RequestOp
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.data import SequenceStep
from pipeline.engine.sequences.feeds import SequenceFeeds

READY = {"name": "READY", "kind": "ready", "int32_false_true": [-5, 1]}
START = {"name": "START", "kind": "start", "bool_false_true": [False, True]}
STATE = {"input_name": "seen", "output_name": "next", "data_type": "INT64", "dims": [-1]}


def feeds(*controls, strategy="direct", states=(), batch_size=4):
    sequence = {"strategy": strategy, "controls": list(controls), "state": list(states)}
    keys = {"batch_size": batch_size, "sequence": sequence}
    op = Op("m", RequestOp())
    config = load_config(yml_dict={"rpc_port": 18070, "op": {"m": keys}})
    op.pipeline_config = resolve_op("m", {}, config)
    return SequenceFeeds(op)


def x(*values):
    return {"x": np.array([values], np.int32)}


def step(slot, **flags):
    return SequenceStep(id=slot + 10, slot=slot, **flags)


def only(made, items, steps, most_rows=4):
    (call,) = made.plan(dict(enumerate(items)), steps, most_rows)
    return made.fed(call, steps)


STEPS = [step(1, start=True), step(3)]


def test_rows_have_the_index_of_their_slot_with_a_ready_control():
    fed = only(feeds(READY, START), [x(1), x(3)], STEPS)
    assert fed.feed["x"].tolist() == [[0], [1], [0], [3]]
    assert fed.feed["READY"].tolist() == [[-5], [1], [-5], [1]]
    assert fed.feed["START"].tolist() == [[False], [True], [False], [False]]
    assert fed.without_states({"y": fed.feed["x"] * 2})["y"].tolist() == [[2], [6]]


@pytest.mark.parametrize(
    "made", [feeds(START), feeds(READY, START, strategy="oldest")], ids=["no READY", "oldest"]
)
def test_without_a_ready_control_there_are_no_fillers(made):
    fed = only(made, [x(1), x(3)], STEPS)
    assert fed.feed["x"].tolist() == [[1], [3]]
    assert fed.feed["START"].tolist() == [[True], [False]]


def test_requests_of_another_shape_run_separately():
    made = feeds(READY)
    steps = [step(0), step(1), step(2)]
    calls = made.plan({0: x(1), 1: x(2, 2), 2: x(3)}, steps, 4)
    fed = [made.fed(call, steps).feed for call in calls]
    assert [item["x"].tolist() for item in fed] == [[[1], [0], [3]], [[0, 0], [2, 2]]]
    assert [item["READY"].ravel().tolist() for item in fed] == [[1, -5, 1], [-5, 1]]


def test_a_request_of_several_rows_has_no_place_among_fillers():
    made = feeds(READY)
    calls = made.plan({0: {"x": np.zeros((2, 1))}, 1: x(1)}, STEPS, 4)
    assert [call.items for call in calls if call.error is None] == [[1]]
    (text,) = [str(call.error) for call in calls if call.error is not None]
    assert "'m' must specify batch-size 1 due to requirements of sequence batcher" in text


def test_a_filler_has_an_initial_state_which_is_not_saved():
    made = feeds(READY, states=[STATE])
    steps = [step(2)]
    made.begin(steps)
    assert only(made, [x(1)], steps).feed["seen"].tolist() == [[0], [0], [0]]
    for count in (2, 3):
        fed = only(made, [x(1)], steps)
        fed.without_states({"next": np.full((3, count), 7)})
        fed.keep()
        assert only(made, [x(1)], steps).feed["seen"].tolist() == [[0] * count] * 2 + [[7] * count]
    others = [step(0), step(2)]
    made.begin(others)
    first, second = made.plan({0: x(5), 1: x(6)}, others, 4)
    assert made.fed(first, others).feed["seen"].tolist() == [[0]]
    assert made.fed(second, others).feed["seen"].tolist() == [[0] * 3, [0] * 3, [7] * 3]


def test_a_state_without_an_axis_of_requests_has_no_fillers():
    made = feeds(READY, states=[{**STATE, "dims": [1], "batch_axis": -1}])
    made.begin(STEPS)
    calls = made.plan({0: x(1), 1: x(3)}, STEPS, 4)
    assert [made.fed(call, STEPS).feed["x"].tolist() for call in calls] == [[[1]], [[3]]]
