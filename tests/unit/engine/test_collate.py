from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pipeline.engine.run.collate import distribute, plan, rows_of
from pipeline.errors import PayloadTypeError


def run_identity(samples):
    """Run every planned call with an identity `process`; results by sample."""
    results = {index: [] for index in samples}
    for call in plan(samples):
        assert call.error is None
        call.result = call.feed
        for index, piece in zip(call.items, distribute(call), strict=True):
            results[index].append(piece)
    return results


def same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(np.asarray(left[name]), np.asarray(right[name]))
        assert type(left[name]) is type(right[name])


def test_a_single_sample_is_fed_unchanged():
    sample = {"x": np.zeros((1, 3)), "n": object()}
    (call,) = plan({4: sample})
    assert call.feed is sample
    assert call.items == [4]


def test_like_samples_are_merged_along_axis_0():
    samples = {i: {"x": np.full((i + 1, 2), i)} for i in range(3)}
    (call,) = plan(samples)
    assert call.feed["x"].shape == (6, 2)
    assert call.items == [0, 1, 2]
    assert call.spans == [[1, 2, 3]]


@pytest.mark.parametrize(
    "other",
    [
        {"x": np.zeros((1, 4))},
        {"x": np.zeros((1, 3), np.float32)},
        {"y": np.zeros((1, 3))},
        {"x": np.zeros((1, 3)), "flag": 1},
    ],
    ids=["trailing shape", "dtype", "names", "extra key"],
)
def test_samples_of_different_shapes_run_in_separate_calls(other):
    calls = plan({0: {"x": np.zeros((1, 3))}, 1: other, 2: {"x": np.ones((1, 3))}})
    assert sorted(call.items for call in calls) == [[0, 2], [1]]


def test_scalars_are_preserved_and_not_mixed():
    calls = plan(
        {
            0: {"x": np.zeros((1, 2)), "k": 5},
            1: {"x": np.ones((1, 2)), "k": 5},
            2: {"x": np.ones((1, 2)), "k": 6},
        }
    )
    assert [(call.items, call.feed["k"]) for call in calls] == [([0, 1], 5), ([2], 6)]


def test_zero_dimensional_arrays_count_as_scalars():
    calls = plan({i: {"x": np.zeros((1, 2)), "sr": np.array(16000)} for i in range(2)})
    assert len(calls) == 1
    assert calls[0].feed["sr"].shape == ()


def test_lists_are_joined_whole():
    (call,) = plan({0: {"text": ["a", "b"]}, 1: {"text": ["c"]}})
    assert call.feed == {"text": ["a", "b", "c"]}
    call.result = {"label": ["A", "B", "C"]}
    assert distribute(call) == [{"label": ["A", "B"]}, {"label": ["C"]}]


def test_objects_that_cannot_be_merged_run_alone():
    calls = plan({0: {"x": {"deep": 1}}, 1: {"x": {"deep": 1}}})
    assert sorted(call.items for call in calls) == [[0], [1]]


def test_rows_that_disagree_within_a_sample_run_alone():
    odd = {"x": np.zeros((2, 3)), "y": np.zeros((5, 1))}
    calls = plan({0: odd, 1: dict(odd)})
    assert sorted(call.items for call in calls) == [[0], [1]]


def test_mini_batches_run_one_by_one():
    calls = plan({0: [{"x": 1}, {"x": 2}], 1: [], 2: [{"x": 3}]})
    assert [(call.items, call.part, call.feed["x"]) for call in calls] == [
        ([0], 0, 1),
        ([0], 1, 2),
        ([2], 0, 3),
    ]


def test_mini_batches_and_dicts_may_meet_in_one_batch():
    calls = plan({0: [{"x": np.zeros((1, 2))}], 1: {"x": np.zeros((1, 2))}})
    assert sorted((call.items, call.part) for call in calls) == [([0], 0), ([1], None)]


def test_a_feed_of_another_type_fails_alone():
    calls = plan({0: 5, 1: {"x": np.zeros((1, 2))}})
    by_sample = {call.items[0]: call for call in calls}
    assert isinstance(by_sample[0].error, PayloadTypeError)
    assert "expect input type is dict or list, but get <class 'int'>" in str(by_sample[0].error)
    assert by_sample[1].error is None


def test_lod_offsets_are_rebased_in_both_directions():
    samples = {
        0: {"w": np.arange(5).reshape(5, 1), "w.lod": [0, 2, 5]},
        1: {"w": np.arange(3).reshape(3, 1), "w.lod": [0, 3]},
    }
    (call,) = plan(samples)
    assert call.feed["w.lod"] == [0, 2, 5, 8]
    assert call.feed["w"].shape == (8, 1)
    for index, pieces in run_identity(samples).items():
        same(pieces[0], samples[index])


def test_outputs_may_have_a_row_per_sequence_or_per_token():
    samples = {
        0: {"w": np.zeros((5, 1)), "w.lod": [0, 2, 5]},
        1: {"w": np.zeros((3, 1)), "w.lod": [0, 3]},
    }
    (call,) = plan(samples)
    call.result = {"per_sequence": np.arange(3), "per_token": np.arange(8)}
    first, second = distribute(call)
    assert first["per_sequence"].tolist() == [0, 1]
    assert second["per_sequence"].tolist() == [2]
    assert second["per_token"].tolist() == [5, 6, 7]


def test_a_broken_lod_keeps_its_sample_out_of_the_merge():
    good = {"w": np.zeros((3, 1)), "w.lod": [0, 3]}
    broken = {"w": np.zeros((3, 1)), "w.lod": [0, 7]}
    calls = plan({0: good, 1: broken, 2: dict(good)})
    assert sorted(call.items for call in calls) == [[0, 2], [1]]


def test_outputs_without_rows_are_given_to_each_sample():
    (call,) = plan({i: {"x": np.zeros((1, 2))} for i in range(2)})
    call.result = {"version": "v1", "scale": np.array(2.0), "y": np.arange(2)}
    assert [piece["version"] for piece in distribute(call)] == ["v1", "v1"]


@pytest.mark.parametrize("rows", [1, 3, 5])
def test_an_output_with_other_rows_than_were_fed_is_refused(rows):
    (call,) = plan({i: {"x": np.zeros((2, 2))} for i in range(2)})
    call.result = {"y": np.zeros((rows, 1))}
    with pytest.raises(PayloadTypeError, match=f"'y' with {rows} rows for a batch of 4 rows"):
        distribute(call)


def test_a_result_that_is_an_array_is_cut_like_a_value():
    (call,) = plan({i: {"x": np.zeros((1, 2))} for i in range(2)})
    call.result = np.arange(2)
    assert [piece.tolist() for piece in distribute(call)] == [[0], [1]]


def test_taking_a_call_apart_gives_every_sample_its_own():
    samples = {i: {"x": np.full((1, 2), i)} for i in range(3)}
    (call,) = plan(samples)
    assert [(c.items, c.feed) for c in call.alone(samples)] == [([i], samples[i]) for i in range(3)]


dtypes = st.sampled_from([np.float32, np.int64, np.uint8, np.bool_, np.float16])


@st.composite
def feeds(draw):
    rows = draw(st.integers(0, 4))
    sample = {}
    for name in draw(st.lists(st.sampled_from("abc"), unique=True, min_size=1)):
        trailing = draw(st.sampled_from([(), (2,), (3, 1)]))
        sample[name] = draw(hnp.arrays(draw(dtypes), (rows, *trailing)))
    if draw(st.booleans()):
        sample["k"] = draw(st.sampled_from([1, "a", b"b", None]))
    if draw(st.booleans()):
        sample["names"] = [str(i) for i in range(rows)]
    return sample


@st.composite
def lod_feeds(draw):
    lengths = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    offsets = [0, *np.cumsum(lengths).tolist()]
    words = draw(hnp.arrays(np.int64, (offsets[-1], 1)))
    return {"w": words, "w.lod": offsets}


@given(st.lists(st.one_of(feeds(), lod_feeds()), min_size=1, max_size=6))
def test_merged_and_split_samples_equal_their_feeds(samples):
    by_index = dict(enumerate(samples))
    for index, pieces in run_identity(by_index).items():
        assert len(pieces) == 1
        same(pieces[0], by_index[index])


def test_results_of_several_models_are_split_within():
    (call,) = plan({0: {"x": np.zeros((1, 2))}, 1: {"x": np.zeros((2, 2))}})
    call.result = {"bow": {"y": np.arange(3)}, "cnn": {"y": np.arange(3) * 2, "name": "cnn"}}
    first, second = distribute(call)
    assert first["bow"]["y"].tolist() == [0]
    assert second["bow"]["y"].tolist() == [1, 2]
    assert second["cnn"]["y"].tolist() == [2, 4]
    assert first["cnn"]["name"] == second["cnn"]["name"] == "cnn"


# At most so many rows -----------------------------------------------------------------------------


def fed(call):
    return [len(call.feed["x"]), call.items]


@pytest.mark.parametrize("odd", [{}, {"scalar": 1}])
@pytest.mark.parametrize(
    ("rows", "calls"),
    [
        ((3, 3, 3), [[6, [0, 1]], [3, [2]]]),
        ((8, 8), [[8, [0]], [8, [1]]]),
        ((4, 4, 1), [[8, [0, 1]], [1, [2]]]),
        ((1, 8, 1), [[1, [0]], [8, [1]], [1, [2]]]),
        ((9, 1), [[9, [0]], [1, [1]]]),
    ],
)
def test_samples_are_merged_in_order_up_to_a_limit_of_rows(rows, calls, odd):
    samples = {index: {"x": np.zeros((count, 2)), **odd} for index, count in enumerate(rows)}
    assert [fed(call) for call in plan(samples, 8)] == calls
    assert len(plan(samples)) == 1


def test_rows_of_a_lod_tensor_are_its_sequences():
    sample = {"x": np.zeros((7, 1)), "x.lod": [0, 3, 7]}
    assert rows_of(sample) == 2
    assert rows_of({"x": [1, 2, 3]}) == 3
    assert rows_of({"k": 1}) == 1
    assert [call.items for call in plan({i: dict(sample) for i in range(3)}, 4)] == [[0, 1], [2]]
