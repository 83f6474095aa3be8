"""Payloads that are the same."""

from __future__ import annotations

from typing import Any

import numpy as np


def assert_same(left: Any, right: Any, is_private: bool = True) -> None:
    """Equal in type, order of keys, and for arrays in dtype, shape, bytes and memory order."""
    assert type(left) is type(right)
    if isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            assert_same(left[key], right[key], is_private)
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other, is_private)
    elif isinstance(left, np.ndarray):
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        for name in left.dtype.names or [...]:  # the bytes between fields have no meaning
            assert left[name].tobytes() == right[name].tobytes()
        assert left.flags.fnc == right.flags.fnc
        assert right.flags.writeable or not is_private
    else:
        assert left == right
