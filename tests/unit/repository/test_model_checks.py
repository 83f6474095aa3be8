"""A configuration that cannot be is refused with Triton's text."""

from __future__ import annotations

import pytest

from pipeline.errors import ConfigError
from pipeline.repository.model_checks import check
from pipeline.repository.model_config import parse_text
from pipeline.repository.model_defaults import fill_in

PYTHON = 'backend: "python" max_batch_size: 4 '
X = 'input { name: "x" data_type: TYPE_FP32 dims: 4 } '
Y = 'output { name: "y" data_type: TYPE_FP32 dims: 4 } '


def checked(text: str, cards=()) -> None:
    config = parse_text(text.encode(), "config.pbtxt")
    fill_in(config, "m", ["model.py"], cards)
    check(config, cards)


def batching(text: str) -> str:
    return f"{PYTHON}dynamic_batching {{ {text} }}"


def reshaped(dims: str, shape: str) -> str:
    return (
        f'{PYTHON}input {{ name: "x" data_type: TYPE_FP32 dims: [{dims}] '
        f"reshape {{ shape: [{shape}] }} }}"
    )


RIGHT = {
    "no tensors": PYTHON,
    "tensors": PYTHON + X + Y,
    "equal sizes": reshaped("2, 3", "6"),
    "equal sizes around what varies": reshaped("2, 4, -1, 6", "8, -1, 1, 6"),
    "one element": reshaped("1", ""),
    "priorities": batching("priority_levels: 2 default_priority_level: 2"),
    "ordered": batching("preserve_ordering: true"),
    "a profile for TensorRT": 'backend: "tensorrt" instance_group { profile: "0" }',
}
WRONG = {
    'platform: "x"': "unexpected platform type 'x' for m",
    'backend: "b" platform: "ensemble"': (
        "Ensemble model 'm' must have platform type 'ensemble' and empty backend type"
    ),
    'platform: "ensemble"': (
        "ensemble scheduling must be set for ensemble m whose platform is ensemble"
    ),
    'backend: "onnxruntime" platform: "tensorrt_plan"': (
        "unexpected 'platform' and 'backend' pair, got:tensorrt_plan, onnxruntime"
    ),
    "max_batch_size: -1": "'max_batch_size' must be non-negative value for m",
    batching("preferred_batch_size: 0"): "dynamic batching preferred size must be positive for m",
    batching("preferred_batch_size: 5"): (
        "dynamic batching preferred size must be <= max batch size for m"
    ),
    batching("priority_levels: 3"): "default priority level must be in range [1, 3] for m",
    batching(
        "priority_levels: 3 default_priority_level: 1 priority_queue_policy { key: 4 value { } }"
    ): "priority queue policy must have priority level in range [1, 3] for m",
    batching("priority_levels: 2 default_priority_level: 1 preserve_ordering: true"): (
        "Only one priority level is allowed when 'preserve_ordering' is true for m"
    ),
    batching(
        "preserve_ordering: true default_queue_policy "
        "{ timeout_action: DELAY default_timeout_microseconds: 1 }"
    ): "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
    PYTHON + "sequence_batching { } response_cache { enable: true }": (
        "Response Cache does not currently support model m with sequence batching scheduler. "
        "Please disable the response cache."
    ),
    PYTHON + "sequence_batching { oldest { preferred_batch_size: 5 } }": (
        "sequence batching preferred batch size must be <= max batch size for m"
    ),
    PYTHON + 'sequence_batching { control_input { name: "READY" control { kind: 1 } } }': (
        "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or "
        "'bool_false_true' for CONTROL_SEQUENCE_READY for m"
    ),
    PYTHON + "sequence_batching { direct { minimum_slot_utilization: 1.5 } }": (
        "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m"
    ),
    PYTHON + "model_transaction_policy { decoupled: true } response_cache { enable: true }": (
        "Response Cache does not currently support model m with 'decoupled' transaction policy. "
        "Please disable the response cache."
    ),
    PYTHON + "instance_group { kind: KIND_CPU gpus: 0 }": (
        "instance group m_0 of model m has kind KIND_CPU but specifies one or more GPUs"
    ),
    PYTHON + "instance_group { kind: KIND_GPU }": (
        "instance group m_0 of model m has kind KIND_GPU but no GPUs are available"
    ),
    PYTHON + "instance_group { kind: KIND_GPU gpus: 42 }": (
        "instance group m_0 of model m specifies invalid or unsupported gpu id 42. GPUs with at "
        "least the minimum required CUDA compute compatibility of 6.000000 are: "
    ),
    PYTHON + "input { data_type: TYPE_FP32 dims: 1 }": "model input must specify 'name' for m",
    PYTHON + 'input { name: "x" dims: 1 }': "model input 'x' must specify 'data_type' for m",
    PYTHON + 'output { name: "y" data_type: TYPE_FP32 }': (
        "model output 'y' must specify 'dims' for m"
    ),
    PYTHON + 'input { name: "x" data_type: TYPE_FP32 dims: 0 }': (
        "model input 'x' dimension must be integer >= 1, or -1 to indicate a variable-size "
        "dimension for m"
    ),
    reshaped("2", "3"): "model input 'x' has different size for dims and reshape for m",
    reshaped("2", "-1"): "model input 'x' has different size for dims and reshape for m",
    reshaped("2, -1", "3, -1"): "model input 'x' has different size for dims and reshape for m",
    reshaped("-1, -1", "-1"): (
        "model input 'x' has different number of variable-size dimensions for dims and reshape "
        "for m"
    ),
    reshaped("2", "0"): (
        "model input 'x' reshape dimensions must be integer >= 1, or -1 to indicate a "
        "variable-size dimension for m"
    ),
    PYTHON + 'input { name: "x" data_type: TYPE_FP32 dims: 1 format: FORMAT_NHWC }': (
        "model input NHWC/NCHW require 3 dims for m"
    ),
    PYTHON + 'input { name: "x" data_type: TYPE_FP32 dims: 1 is_shape_tensor: true }': (
        "shape tensors are only supported for TensorRT platform for m"
    ),
    PYTHON + X + "batch_input { kind: BATCH_ELEMENT_COUNT data_type: TYPE_FP32 }": (
        "batch input kind 'BATCH_ELEMENT_COUNT' expects 1 source input, got 0 for m"
    ),
    PYTHON + X + 'batch_input { source_input: "x" data_type: TYPE_FP16 }': (
        "batch input data type must be TYPE_INT32 or TYPE_FP32 for m"
    ),
    PYTHON + X + 'batch_input { source_input: "z" data_type: TYPE_FP32 }': (
        "unknown source input name 'z' for m"
    ),
    PYTHON + X + Y + 'batch_output { source_input: "x" target_name: "z" }': (
        "unknown target output name 'z' for m"
    ),
    PYTHON + X + Y + 'batch_output { source_input: "x" target_name: "y" target_name: "y" }': (
        "target output name 'y' can only be specified once for m"
    ),
    PYTHON + "model_metrics { metric_control { } }": (
        "metric control must specify 'metric_identifier'"
    ),
}


@pytest.mark.parametrize("case", RIGHT)
def test_a_valid_configuration_is_accepted(case):
    checked(RIGHT[case])


@pytest.mark.parametrize("text", WRONG)
def test_an_invalid_configuration_is_refused_with_tritons_message(text):
    with pytest.raises(ConfigError) as refusal:
        checked(text)
    assert str(refusal.value) == WRONG[text]


def test_cards_that_are_there_may_be_named():
    checked(PYTHON + "instance_group { kind: KIND_GPU gpus: 1 }", cards=[0, 1])
