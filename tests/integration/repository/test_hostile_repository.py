"""Names and paths that lead out of a repository."""

from __future__ import annotations

import json

import pytest
from repositories import add_identity, control, serving

from pipeline.repository.polled_model import find_models


@pytest.mark.parametrize("name", ["../outside", "a/../../outside", "/etc", "..", ".", ""])
def test_a_name_with_a_path_is_not_a_model(tmp_path, name):
    repository = tmp_path / "models"
    add_identity(repository, "a", 1)
    add_identity(tmp_path, "outside", 1)
    assert find_models("a", [repository], False)
    assert not find_models(name, [repository], False)


def test_a_sent_ensemble_cannot_refer_to_models_outside(tmp_path):
    repository = tmp_path / "models"
    add_identity(repository, "a", 1)
    add_identity(tmp_path, "outside", 1)
    tensor = [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}]
    step = {
        "model_name": "../outside",
        "model_version": -1,
        "input_map": {"INPUT0": "X"},
        "output_map": {"OUTPUT0": "Y"},
    }
    config = {
        "platform": "ensemble",
        "input": tensor,
        "output": [{**tensor[0], "name": "Y"}],
        "ensemble_scheduling": {"step": [step]},
    }
    with serving(repository) as server:
        status, text = control(server, "a", "load", config=json.dumps(config))
        assert status >= 400
        assert "ensemble a contains models that are not available or ambiguous: " in text
        assert control(server, "a", "load") == (200, None)
