"""The verdicts of `benchmarks.soak`: what counts as growth."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.family import Holdings
from benchmarks.soak.__main__ import findings
from benchmarks.soak.loads import SOAKS

_MIB = 2**20
_HELD = Holdings(5, 60, 1, 300 * _MIB, 10 * _MIB, 20)


def grown(samples: list[Holdings], most_mib: float = 8.0) -> list[str]:
    return [text.split(":")[0] for text, is_flat in findings(samples, most_mib) if not is_flat]


@pytest.mark.parametrize("more", [{"descriptors": 61}, {"private_bytes": 400 * _MIB}])
def test_one_sample_above_the_others_is_no_growth(more):
    samples = [_HELD] * 240
    samples[200] = dataclasses.replace(_HELD, **more)
    assert grown(samples) == []


@pytest.mark.parametrize("figure", ["processes", "descriptors", "threads"])
def test_one_more_that_stays_is_growth(figure):
    more = dataclasses.replace(_HELD, **{figure: getattr(_HELD, figure) + 1})
    assert grown([_HELD] * 160 + [more] * 80) == [figure]


@pytest.mark.parametrize(("count", "expected"), [(16, []), (17, ["regions of shared memory"])])
def test_a_few_more_regions_are_no_growth(count, expected):
    """There are as many as were ever in use at a time."""
    more = dataclasses.replace(
        _HELD,
        descriptors=_HELD.descriptors + count,
        shared_descriptors=_HELD.shared_descriptors + count,
    )
    assert grown([_HELD] * 160 + [more] * 80) == expected


@pytest.mark.parametrize("kind", SOAKS)
def test_memory_that_grows_by_a_third_in_the_time_is_growth(kind):
    samples = [
        dataclasses.replace(_HELD, private_bytes=_HELD.private_bytes * (1 + at / 720))
        for at in range(240)
    ]
    assert grown(samples, SOAKS[kind].most_mib) == ["RSS, MiB"]
