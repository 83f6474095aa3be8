"""CompletedConfig: what a model may add to its configuration, and what contradicts it."""

from __future__ import annotations

import json

import pytest

from pipeline.repository.backends.python.autocomplete import CompletedConfig
from pipeline.repository.backends.python.complete import completed_by

SLOT = {"name": "x", "data_type": "TYPE_FP32", "dims": [4]}


def config(**more):
    return CompletedConfig(
        json.dumps({"name": "m", "max_batch_size": 0, "input": [], "output": [], **more})
    )


def test_a_model_can_add_keys():
    result = config()
    result.set_max_batch_size(8)
    result.set_dynamic_batching()
    result.add_input({**SLOT, "optional": True})
    result.add_output(SLOT)
    result.add_output(SLOT)
    result.set_model_transaction_policy({"decoupled": True})
    assert result.as_dict() == {
        "name": "m",
        "max_batch_size": 8,
        "input": [{**SLOT, "optional": True}],
        "output": [SLOT],
        "dynamic_batching": {},
        "model_transaction_policy": {"decoupled": True},
    }


def test_an_input_without_a_type_is_completed():
    result = config(input=[{"name": "x", "data_type": "TYPE_INVALID", "dims": []}])
    result.add_input(SLOT)
    assert result.as_dict()["input"] == [SLOT]


def test_a_hook_returns_the_configuration():
    class Without:
        pass

    class Forgets:
        auto_complete_config = staticmethod(lambda config: None)

    given = config()
    assert completed_by(Without, "m", given) is given
    with pytest.raises(
        ValueError, match=r"in model 'm' must return a valid pb\.ModelConfig object"
    ):
        completed_by(Forgets, "m", given)


@pytest.mark.parametrize(
    ("given", "change", "text"),
    [
        (
            {"max_batch_size": 8},
            lambda c: c.set_max_batch_size(4),
            "configuration specified max_batch_size 8, but in auto-complete-config function for "
            "model 'm' specified max_batch_size 4",
        ),
        (
            {"sequence_batching": {}},
            lambda c: c.set_dynamic_batching(),
            "Configuration specified scheduling_choice as 'sequence_batching', but "
            "auto-complete-config function for model 'm' tries to set scheduling_choice as "
            "'dynamic_batching'",
        ),
        (
            {"input": [{**SLOT, "data_type": "TYPE_INT32"}]},
            lambda c: c.add_input(SLOT),
            "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'x', "
            "model provides TYPE_FP32",
        ),
        (
            {"output": [{**SLOT, "dims": [16]}]},
            lambda c: c.add_output(SLOT),
            "model 'm', tensor 'x': the model expects dims [4] but the model configuration "
            "specifies dims [16]",
        ),
        (
            {},
            lambda c: c.add_input({**SLOT, "is_shape_tensor:": True}),
            "input 'x' in auto-complete-config function for model 'm' contains property other "
            "than 'name', 'data_type', 'dims' and 'optional'.",
        ),
        (
            {},
            lambda c: c.add_output({"data_type": "TYPE_FP32", "dims": [4]}),
            "output in auto-complete-config function for model 'm' is missing 'name' property.",
        ),
        (
            {},
            lambda c: c.add_input({"name": "x", "dims": [4]}),
            "input 'x' in auto-complete-config function for model 'm' is missing 'data_type' "
            "property.",
        ),
        (
            {"model_transaction_policy": {"decoupled": True}},
            lambda c: c.set_model_transaction_policy({"decoupled": False}),
            "trying to change decoupled property in auto-complete-config for model 'm', which is "
            "already set to 'True'.",
        ),
        (
            {"model_transaction_policy": {"decoupled": False}},
            lambda c: c.set_model_transaction_policy({"decoupled": True}),
            "trying to change decoupled property in auto-complete-config for model 'm', which is "
            "already set to 'False'.",
        ),
    ],
)
def test_a_contradicting_key_is_refused(given, change, text):
    with pytest.raises(ValueError, match="model") as caught:
        change(config(**given))
    assert str(caught.value) == text
