"""The benchmark of trials: when a search is as good, and as quick, as it is to be."""

from __future__ import annotations

import pytest

from benchmarks.advice_live import Comparison


@pytest.mark.parametrize(
    ("search_s", "share", "is_good"),
    [(10.0, 0.9, True), (10.1, 1.0, False), (5.0, 0.89, False), (0.5, 1.2, True)],
)
def test_a_search_is_nearly_as_good_in_a_tenth_of_the_time(search_s, share, is_good):
    assert Comparison("s", 80, 100.0, 7, search_s, share).is_good is is_good
