"""What `preprocess` of one request leaves on an Op, for its own `postprocess`."""

from __future__ import annotations

import numpy as np

from pipeline.engine.run.stages import is_as_before, keep_changes, restore


def test_an_unchanged_op_state_equals_its_snapshot():
    state = {"a": 1, "b": np.arange(3)}
    assert is_as_before(state, dict(state))


def test_another_object_is_a_change_even_if_it_is_equal():
    before = {"a": [1], "b": np.arange(3)}
    assert not is_as_before({**before, "a": [1]}, before)
    assert not is_as_before({**before, "b": before["b"].copy()}, before)


def test_an_attribute_more_or_less_or_by_another_name_is_a_change():
    value = object()
    before = {"a": value}
    assert not is_as_before({}, before)
    assert not is_as_before({"a": value, "b": value}, before)
    assert not is_as_before({"b": value}, before)


def test_each_request_gets_its_own_changes_back():
    before = {"a": 1, "kept": 2}
    states = {0: {"a": 1, "kept": 2}, 1: {"a": 5, "kept": 2}, 2: {"kept": 2}}
    keep_changes(before, states, dict(states[2]))
    collected = []
    for kept in states.values():
        state = {"a": 9, "kept": 2}
        restore(state, kept)
        collected.append(state)
    assert collected == [{"a": 1, "kept": 2}, {"a": 5, "kept": 2}, {"kept": 2}]
