"""Ops that do not merge: `process` gets a list of feeds, and returns a list of results."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.engine.run.call import Call
from pipeline.engine.run.collate import distribute, plan_each
from pipeline.errors import PayloadTypeError


def feed(rows, width=2):
    return {"x": np.zeros((rows, width), np.float32)}


def test_feeds_of_any_shape_share_a_call_up_to_its_limit_of_rows():
    items = {0: feed(2), 2: feed(3, 7), 3: feed(4)}
    (call,) = plan_each(items)
    assert (call.items, call.feed) == ([0, 2, 3], list(items.values()))
    assert call.spans == [[2, 3, 4]]
    assert [call.items for call in plan_each(items, most_rows=5)] == [[0, 2], [3]]


def test_results_are_one_for_each():
    call = Call([feed(1), feed(1)], [0, 1])
    call.result = [{"y": 1}, ValueError()]
    assert distribute(call) is call.result


@pytest.mark.parametrize("result", [[{}], {}, None])
def test_another_number_of_results_is_refused(result):
    call = Call([feed(1), feed(1)], [0, 1], result=result)
    with pytest.raises(PayloadTypeError, match="for each of the 2 requests"):
        distribute(call)
