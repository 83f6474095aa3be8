"""LocalCache: which answers stay, and how many bytes they take."""

from __future__ import annotations

import pytest

from pipeline.caches.local import ENTRY_BYTES, LocalCache, LocalOptions
from pipeline.engine.op.answer_cache import CacheError


def cache(values: int, size: int = 100) -> LocalCache:
    """A cache with room for so many values of `size` bytes."""
    return LocalCache(LocalOptions(size=values * (size + ENTRY_BYTES)))


def test_a_value_is_returned_for_its_key():
    there = cache(2)
    there.insert(b"a", b"1" * 100)
    assert there.lookup(b"a") == b"1" * 100
    assert there.lookup(b"b") is None


def test_the_least_recently_used_value_is_removed_first():
    there = cache(2)
    there.insert(b"a", b"1" * 100)
    there.insert(b"b", b"2" * 100)
    there.lookup(b"a")
    there.insert(b"c", b"3" * 100)
    assert [there.lookup(key) is not None for key in (b"a", b"b", b"c")] == [True, False, True]


def test_a_large_value_takes_the_place_of_several():
    there = cache(3)
    for key in (b"a", b"b", b"c"):
        there.insert(key, b"1" * 100)
    there.insert(b"d", b"4" * 300)
    assert len(there) == 2
    assert there.used <= 3 * (100 + ENTRY_BYTES)
    assert there.lookup(b"d") is not None


def test_a_value_larger_than_the_cache_is_refused_without_evictions():
    there = cache(1)
    there.insert(b"a", b"1" * 100)
    with pytest.raises(CacheError, match="larger than the cache"):
        there.insert(b"b", b"2" * 101)
    assert there.lookup(b"a") is not None


def test_a_key_that_is_there_keeps_its_value_and_is_counted_once():
    there = cache(2)
    there.insert(b"a", b"1" * 100)
    there.insert(b"a", b"2" * 100)
    assert there.lookup(b"a") == b"1" * 100
    assert there.used == 100 + ENTRY_BYTES
