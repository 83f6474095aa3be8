"""What loading a model takes: told where it can be told."""

from __future__ import annotations

import numpy as np

from pipeline.predictors.metadata import LoadMeter

SIZE = 64 * 2**20


def test_a_load_is_charged_with_what_the_process_grew_by():
    with LoadMeter() as meter:
        model = np.ones(SIZE, np.uint8)
        (use,) = meter.uses()
    assert (use.kind, use.id) == ("CPU", 0)
    assert SIZE // 2 < use.byte_size < SIZE * 2
    del model


def test_of_loads_at_the_same_time_nobody_can_tell_whose_memory_it_was():
    with LoadMeter() as first:
        with LoadMeter() as second:
            model = np.ones(SIZE, np.uint8)
            assert second.uses() == []
        assert first.uses() == []
    with LoadMeter() as later:
        other = np.ones(SIZE, np.uint8)
        assert len(later.uses()) == 1
    del model, other
