"""The advice benchmark's own arithmetic: how advice becomes a configuration, what is a success."""

from __future__ import annotations

import pytest

from benchmarks.advice import followed, may_be_followed
from pipeline.observe.analysis.advice import Advice, OpAdvice


def test_advice_changes_only_the_named_settings():
    settings = {name: {"concurrency": 1, "batch_size": 2} for name in ("words", "bow")}
    advice = Advice(1.0, "bow", True, 1.0, (OpAdvice("bow", 4, None, ()),), ())
    assert followed(settings, advice) == {
        "words": {"concurrency": 1, "batch_size": 2},
        "bow": {"concurrency": 4, "batch_size": 2},
    }


@pytest.mark.parametrize(
    ("per_s", "is_right"),
    [
        ([100.0, 200.0, 400.0], True),
        ([100.0, 400.0, 390.0], True),
        ([100.0, 400.0, 300.0], False),
        ([100.0, 200.0], False),
        ([100.0], False),
    ],
)
def test_advice_is_good_if_it_helps_and_is_never_worse(per_s, is_right):
    assert may_be_followed(per_s) is is_right
