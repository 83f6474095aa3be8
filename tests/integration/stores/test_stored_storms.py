"""A short run of `fuzz.stored`, and proof that it is not blind."""

from __future__ import annotations

import pytest
from fuzz import stored

from pipeline.engine import stored_inputs
from pipeline.engine.stored_inputs import StoredInputs
from pipeline.errors import PipelineError

_MOST_CASES = 10  # until a defect is found


def test_a_request_ends_according_to_its_references():
    assert stored.run(1) == [], "python -m fuzz.stored --seed 1 --cases 1"


def _values_of_another_request(patch):
    fetched, last = stored_inputs.fetched, []

    def other(*asked):
        last.append(fetched(*asked))
        return last[-2:][0]

    patch.setattr(stored_inputs, "fetched", other)


def _only_our_errors_end_a_request(patch):
    take = StoredInputs._take

    def careless(self, request, payload, future):
        error = future.exception()
        if error is None or isinstance(error, PipelineError):
            take(self, request, payload, future)

    patch.setattr(StoredInputs, "_take", careless)


@pytest.mark.parametrize("defect", [_values_of_another_request, _only_our_errors_end_a_request])
def test_the_fuzzer_reports_a_restored_defect(monkeypatch, defect):
    monkeypatch.setattr(stored, "_PATIENCE_S", 3.0)
    defect(monkeypatch)
    assert any(stored.run(seed) for seed in range(1, 1 + _MOST_CASES))
