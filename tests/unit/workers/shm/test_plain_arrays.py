"""Small arrays cross between processes without a pickle, and unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from same_payload import assert_same

from pipeline.workers.shm.arena import MIN_BLOCK_BYTES
from pipeline.workers.shm.payload import payload_of_arrays, plain_arrays

DTYPES = st.one_of(
    hnp.scalar_dtypes(), hnp.unicode_string_dtypes(min_len=1), hnp.byte_string_dtypes(min_len=1)
)
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, min_side=0, max_side=3))


@settings(max_examples=150, deadline=None)
@given(ARRAYS | st.dictionaries(st.text(), ARRAYS, min_size=1, max_size=3))
def test_small_arrays_arrive_unchanged(payload):
    reported = plain_arrays(payload, MIN_BLOCK_BYTES)
    assert reported is not None
    result = payload_of_arrays(reported, copy=True)
    assert_same(payload, result)
    arrays = [result] if isinstance(result, np.ndarray) else list(result.values())
    assert all(array.flags.writeable and array.flags.owndata for array in arrays)
    result = payload_of_arrays(reported, copy=False)
    assert_same(payload, result, is_private=False)
    arrays = [result] if isinstance(result, np.ndarray) else list(result.values())
    assert not any(array.flags.writeable for array in arrays)


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"x": 1},
        {"x": np.ones(2), "y": [1]},
        {1: np.ones(2)},
        {"x": np.ones(MIN_BLOCK_BYTES // 8)},
        {"x" * MIN_BLOCK_BYTES: np.ones(2)},
        {"x": np.ones(MIN_BLOCK_BYTES // 16), "y": np.ones(MIN_BLOCK_BYTES // 16)},
        {"x": np.array([None])},
        {"x": np.zeros(1, [("a", "i4")])},
        {"x": np.ones((2, 3)).T},
        {"x": np.ones((4, 4))[:, ::2]},
        {"x": np.ones((1, 1)).view(np.matrix)},
        dict.fromkeys(map(str, range(33)), np.ones(1)),
        [np.ones(1)],
    ],
    ids=str,
)
def test_other_payloads_are_not_plain_arrays(payload):
    assert plain_arrays(payload, MIN_BLOCK_BYTES) is None


@pytest.mark.parametrize("dtype", ["O", "|O", "V8", "f4", "<f4,<f4", "int32", "[('a', 'O')]", "x"])
def test_an_unknown_dtype_is_refused(dtype):
    arrays: Any = [("x", dtype, (1,), bytes(8))]
    with pytest.raises((ValueError, TypeError)):
        payload_of_arrays(arrays, copy=True)


@pytest.mark.parametrize("shape", [(3,), (1 << 60,), (-2,)])
def test_no_array_is_larger_than_its_data(shape):
    with pytest.raises((TypeError, ValueError)):
        payload_of_arrays([(None, "<f8", shape, bytes(16))], copy=False)
