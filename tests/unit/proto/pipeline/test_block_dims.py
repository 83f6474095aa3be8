"""The shape of nested lists, told from their brackets and commas alone."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.proto.pipeline.shapes import block_dims

LISTS = st.recursive(st.just(0), lambda item: st.lists(item, min_size=1, max_size=4), max_leaves=30)


def skeleton(value) -> str:
    return "" if value == 0 else "[" + ",".join(map(skeleton, value)) + "]"


def dims_of(value) -> tuple[int, ...] | None:
    """Return the shape of a block, or None for any other value."""
    if value == 0:
        return ()
    inner = {dims_of(item) for item in value}
    if len(inner) != 1 or None in inner:
        return None
    return (len(value), *inner.pop())


@given(LISTS)
@example([[[0], [0]], [[0], [0]]])
@example([[0, 0], [0], [0, 0, 0]])
@example([[[0, 0], [0]], [[0, 0], [0]]])
@example([[0], 0])
@example([0, [0]])
@example([[[0]], [0]])
def test_only_a_block_has_a_shape(value):
    assert block_dims(skeleton(value).encode()) == (dims_of(value) or None)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_the_shape_of_a_block_is_computed(shape):
    value = 0
    for size in reversed(shape):
        value = [value] * size
    assert block_dims(skeleton(value).encode()) == tuple(shape)


def test_an_unbalanced_text_is_not_a_block():
    for text in (
        b"",
        b"[",
        b"[[",
        b"]",
        b"[[]",
        b"[]]",
        b"[[],",
        b"[[][]]",
        b"[" * 100 + b"]" * 100,
    ):
        assert block_dims(text) is None
