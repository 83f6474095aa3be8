"""Annotations of schemas cross between processes."""

from __future__ import annotations

import pickle

import dill
import msgspec
import pytest

from pipeline.system.pickling import make_annotations_picklable

METAS = [
    msgspec.Meta(),
    msgspec.Meta(ge=1, lt=9, multiple_of=2, title="t", description="d", examples=[3]),
    msgspec.Meta(pattern="a+", min_length=1, max_length=5, extra_json_schema={"format": "x"}),
    msgspec.Meta(tz=True, extra={"a": 1}),
]


@pytest.mark.parametrize("meta", METAS, ids=range(len(METAS)))
@pytest.mark.parametrize("how", [pickle, dill], ids=["pickle", "dill"])
def test_annotations_survive_pickling(how, meta):
    make_annotations_picklable()
    assert how.loads(how.dumps(meta)) == meta
