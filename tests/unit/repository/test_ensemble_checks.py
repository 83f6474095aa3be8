"""Steps of an ensemble that do not fit together are refused with Triton's text."""

from __future__ import annotations

import pytest

from pipeline.errors import ConfigError
from pipeline.proto.inference_v2_pb2 import ModelConfig
from pipeline.repository.ensemble_checks import check_ensemble


def ensemble(*steps, inputs=("in",), outputs=("out",), **more) -> ModelConfig:
    """Return an ensemble `e` of steps (model, {its input: tensor}, {its output: tensor})."""
    config = ModelConfig(name="e", platform=more.pop("platform", "ensemble"), **more)
    for name in inputs:
        config.input.add(name=name)
    for name in outputs:
        config.output.add(name=name)
    config.ensemble_scheduling.SetInParent()
    for model, takes, gives in steps:
        config.ensemble_scheduling.step.add(model_name=model, input_map=takes, output_map=gives)
    return config


ONE = ("a", {"x": "in"}, {"y": "out"})
WRONG = {
    "ensemble scheduling cannot be set for model 'e' whose platform is not ensemble": ensemble(
        ONE, platform="python"
    ),
    "instance group should not be specified for ensemble 'e'": ensemble(
        ONE, instance_group=[{"count": 1}]
    ),
    "optimization should not be specified for ensemble 'e'": ensemble(ONE, optimization={}),
    "model_warmup can not be specified for ensemble 'e'": ensemble(ONE, model_warmup=[{}]),
    "must specify 'step' for ensemble 'e'": ensemble(),
    "must specify 'model_name' in step 0 of ensemble 'e'": ensemble(("", {"x": "in"}, {"y": "o"})),
    "must specify 'input_map' in step 1 of ensemble 'e'": ensemble(ONE, ("b", {}, {"y": "o"})),
    "must specify 'output_map' in step 0 of ensemble 'e'": ensemble(("a", {"x": "in"}, {})),
    "ensemble tensor 'out' can appear in an output map only once for ensemble 'e' step 1": ensemble(
        ONE, ("b", {"x": "in"}, {"y": "out"})
    ),
    "ensemble input 'more' for ensemble e' is not used": ensemble(ONE, inputs=("in", "more")),
    "ensemble output 'more' for ensemble e' is not used": ensemble(ONE, outputs=("out", "more")),
    "ensemble tensor 'spare' is unused in ensemble 'e'": ensemble(
        ("a", {"x": "in"}, {"y": "out", "z": "spare"})
    ),
    "output 'out' for ensemble 'e' is not written: at least one of its depending tensors, 'gone', "
    "is not connected": ensemble(("a", {"x": "gone"}, {"y": "t"}), ("b", {"x": "t"}, {"y": "out"})),
}
RIGHT = {
    "one": ensemble(ONE),
    "a line": ensemble(("a", {"x": "in"}, {"y": "t"}), ("b", {"x": "t"}, {"y": "out"})),
    "steps in any order": ensemble(("b", {"x": "t"}, {"y": "out"}), ("a", {"x": "in"}, {"y": "t"})),
    "a branch and a join": ensemble(
        ("a", {"x": "in"}, {"y": "left"}),
        ("b", {"x": "in"}, {"y": "right"}),
        ("c", {"x": "left", "z": "right"}, {"y": "out"}),
    ),
    "a tensor that is an output and an input": ensemble(
        ("a", {"x": "in"}, {"y": "t"}), ("b", {"x": "t"}, {"y": "out"}), outputs=("out", "t")
    ),
}


@pytest.mark.parametrize("case", RIGHT)
def test_valid_steps_are_accepted(case):
    check_ensemble(RIGHT[case])


@pytest.mark.parametrize("text", WRONG)
def test_steps_that_do_not_fit_are_refused(text):
    config = WRONG[text]
    if "depending" in text:
        del config.input[:]
    with pytest.raises(ConfigError) as refusal:
        check_ensemble(config)
    assert str(refusal.value) == text


def test_steps_that_wait_for_each_other_are_refused():
    config = ensemble(
        ("a", {"x": "in", "z": "back"}, {"y": "t"}),
        ("b", {"x": "t"}, {"y": "back", "w": "out"}),
    )
    with pytest.raises(ConfigError, match="output 'out' for ensemble 'e' is not written"):
        check_ensemble(config)
