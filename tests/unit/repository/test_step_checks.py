"""Ensembles whose steps answer in parts: which tensors may be read together, as in Triton 2.51."""

from __future__ import annotations

import pytest
from ensembling import config_of, ensemble_of

from pipeline.errors import ConfigError
from pipeline.repository.ensemble_checks import check_steps

ONE = [2]
MODELS = {
    "parts": config_of("parts", {"x": ONE}, {"y": ONE}, parts=True),
    "once": config_of("once", {"x": ONE}, {"y": ONE}),
    "joins": config_of("joins", {"a": ONE, "b": ONE}, {"y": ONE}),
}
PARTS = ("parts", {"x": "in"}, {"y": "p"})
MORE = ("parts", {"x": "in"}, {"y": "q"})
ONCE = ("once", {"x": "in"}, {"y": "o"})
BEHIND = ("once", {"x": "p"}, {"y": "b"})
WRONG = {
    "an input of the ensemble": (PARTS, ("joins", {"a": "p", "b": "in"}, {"y": "out"})),
    "another branch": (PARTS, ONCE, ("joins", {"a": "p", "b": "o"}, {"y": "out"})),
    "another stream": (PARTS, MORE, ("joins", {"a": "p", "b": "q"}, {"y": "out"})),
    "outputs of two branches": (PARTS, ONCE),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_stream_is_not_joined_with_other_inputs(case):
    steps = WRONG[case]
    joins = steps[-1][0] == "joins"
    outputs = {"out": ONE} if joins else {"p": ONE, "o": ONE}
    config = ensemble_of("e", {"in": ONE}, outputs, *steps)
    with pytest.raises(ConfigError) as refusal:
        check_steps(config, lambda name, version: MODELS[name])
    model = "joins" if joins else "e"  # the end of an ensemble has its own name
    assert str(refusal.value) == (
        f"in ensemble e, step of model '{model}' receives inputs originated from different "
        "decoupled models"
    )


def test_results_of_a_stream_may_be_joined_with_it():
    join = ("joins", {"a": "p", "b": "b"}, {"y": "out"})
    config = ensemble_of("e", {"in": ONE}, {"out": ONE}, PARTS, BEHIND, join)
    assert check_steps(config, lambda name, version: MODELS[name]) is True
