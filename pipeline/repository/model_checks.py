"""Checks of a model's configuration, with Triton's texts for what is wrong."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence

from pipeline.errors import ConfigError
from pipeline.proto.inference_v2_pb2 import (
    TYPE_FP32,
    TYPE_INT32,
    TYPE_INVALID,
    BatchInput,
    BatchOutput,
    ModelConfig,
    ModelDynamicBatching,
    ModelInput,
    ModelInstanceGroup,
    ModelMetrics,
    ModelOutput,
    ModelQueuePolicy,
)
from pipeline.repository.ensemble_checks import check_ensemble
from pipeline.repository.model_defaults import ENSEMBLE

_ANY = -1
_OWN_PLATFORMS = {  # of a backend that has one
    "tensorrt": "tensorrt_plan",
    "onnxruntime": "onnxruntime_onnx",
    "pytorch": "pytorch_libtorch",
}
_LEAST_CAPABILITY = "6.000000"  # of CUDA, as Triton prints it
_IMAGES = (ModelInput.FORMAT_NHWC, ModelInput.FORMAT_NCHW)


def check(config: ModelConfig, cards: Collection[int] = (), with_tensors: bool = True) -> None:
    """Look at everything in a configuration whose defaults are filled in.

    Controls and states of sequences are looked at by the Op that has them.

    Args:
        cards: numbers of the machine's.
        with_tensors: False: the inputs and outputs are still to be completed.

    Raises:
        ConfigError: the first thing that is wrong, in Triton's words.
    """
    if config.HasField("ensemble_scheduling"):
        check_ensemble(config)
    _check_backend(config)
    if config.max_batch_size < 0:
        raise ConfigError(f"'max_batch_size' must be non-negative value for {config.name}")
    if not config.HasField("version_policy"):
        raise ConfigError(f"must specify 'version policy' for {config.name}")
    if config.HasField("dynamic_batching"):
        _check_dynamic_batching(config, config.dynamic_batching)
    if config.HasField("sequence_batching"):
        _check_sequence_batching(config)
    if config.platform != ENSEMBLE:
        _check_instances(config, cards)
    elif not config.HasField("ensemble_scheduling"):
        raise ConfigError(
            f"ensemble scheduling must be set for ensemble {config.name} whose platform is "
            f"{ENSEMBLE}"
        )
    if config.model_transaction_policy.decoupled and config.response_cache.enable:
        raise ConfigError(
            f"Response Cache does not currently support model {config.name} with 'decoupled' "
            "transaction policy. Please disable the response cache."
        )
    _check_metrics(config.model_metrics)
    if with_tensors:
        check_tensors(config)


def _check_backend(config: ModelConfig) -> None:
    name, platform, backend = config.name, config.platform, config.backend
    if not name:
        raise ConfigError("model configuration must specify 'name'")
    if not backend and platform != ENSEMBLE:
        raise ConfigError(f"unexpected platform type '{platform}' for {name}")
    if backend and platform == ENSEMBLE:
        raise ConfigError(
            f"Ensemble model '{name}' must have platform type '{ENSEMBLE}' and empty backend type"
        )
    if backend in _OWN_PLATFORMS and platform != _OWN_PLATFORMS[backend]:
        raise ConfigError(f"unexpected 'platform' and 'backend' pair, got:{platform}, {backend}")


# Batching -----------------------------------------------------------------------------------


def _check_dynamic_batching(config: ModelConfig, batching: ModelDynamicBatching) -> None:
    name = config.name
    _check_preferred(
        config,
        batching.preferred_batch_size,
        "dynamic batching preferred size must be positive",
        "dynamic batching preferred size must be <= max batch size",
    )
    levels = batching.priority_levels
    if levels and not 1 <= batching.default_priority_level <= levels:
        raise ConfigError(f"default priority level must be in range [1, {levels}] for {name}")
    if levels and not all(1 <= level <= levels for level in batching.priority_queue_policy):
        raise ConfigError(
            f"priority queue policy must have priority level in range [1, {levels}] for {name}"
        )
    if not batching.preserve_ordering:
        return
    if levels > 1:
        raise ConfigError(
            f"Only one priority level is allowed when 'preserve_ordering' is true for {name}"
        )
    policies = (batching.default_queue_policy, *batching.priority_queue_policy.values())
    if any(map(_delays, policies)):
        raise ConfigError(
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true "
            f"for {name}"
        )


def _delays(policy: ModelQueuePolicy) -> bool:
    is_timed = policy.default_timeout_microseconds != 0
    return is_timed and policy.timeout_action == ModelQueuePolicy.DELAY


def _check_sequence_batching(config: ModelConfig) -> None:
    name, batching = config.name, config.sequence_batching
    if config.response_cache.enable:
        raise ConfigError(
            f"Response Cache does not currently support model {name} with sequence batching "
            "scheduler. Please disable the response cache."
        )
    if batching.HasField("oldest"):
        _check_preferred(
            config,
            batching.oldest.preferred_batch_size,
            "sequence batching preferred batch size must be positive",
            "sequence batching preferred batch size must be <= max batch size",
        )
    if not 0.0 <= batching.direct.minimum_slot_utilization <= 1.0:
        raise ConfigError(
            f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {name}"
        )


def _check_preferred(
    config: ModelConfig, sizes: Iterable[int], if_not_positive: str, if_too_large: str
) -> None:
    for size in sizes:
        if size <= 0:
            raise ConfigError(f"{if_not_positive} for {config.name}")
        if size > config.max_batch_size:
            raise ConfigError(f"{if_too_large} for {config.name}")


# Instances ----------------------------------------------------------------------------------


def _check_instances(config: ModelConfig, cards: Collection[int]) -> None:
    if not config.instance_group:
        raise ConfigError(f"must specify one or more 'instance group's for {config.name}")
    for group in config.instance_group:
        what = f"instance group {group.name} of model {config.name}"
        if problem := _wrong_with(group, cards):
            raise ConfigError(f"{what} {problem}")
        if group.profile and config.platform != _OWN_PLATFORMS["tensorrt"]:
            raise ConfigError(
                f"{what} and platform {config.platform}specifies profile field which is only "
                "supported for TensorRT models"
            )


def _wrong_with(group: ModelInstanceGroup, cards: Collection[int]) -> str:
    """Return what is wrong with the cards of a group; "" for nothing."""
    if group.kind != ModelInstanceGroup.KIND_GPU:
        kind = ModelInstanceGroup.Kind.Name(group.kind)
        return f"has kind {kind} but specifies one or more GPUs" if group.gpus else ""
    if not group.gpus:
        return "has kind KIND_GPU but no GPUs are available"
    missing = [card for card in group.gpus if card not in cards]
    known = ", ".join(map(str, sorted(cards)))
    if not missing:
        return ""
    return (
        f"specifies invalid or unsupported gpu id {missing[0]}. GPUs with at least the minimum "
        f"required CUDA compute compatibility of {_LEAST_CAPABILITY} are: {known}"
    )


# Tensors ------------------------------------------------------------------------------------


def check_tensors(config: ModelConfig) -> None:
    """Look at the inputs and outputs. ConfigError: as `check` raises."""
    problems = (
        *(_wrong_with_input(tensor, config) for tensor in config.input),
        *(_wrong_with_output(tensor, config) for tensor in config.output),
        *_wrong_with_batch_inputs(config),
        *_wrong_with_batch_outputs(config),
    )
    for problem in filter(None, problems):
        raise ConfigError(f"{problem} for {config.name}")


def _wrong_with_input(tensor: ModelInput, config: ModelConfig) -> str:
    problem = _wrong_with_shape(tensor, config.max_batch_size)
    if problem:
        return f"model input {problem}"
    if tensor.format in _IMAGES and len(tensor.dims) != 3:
        return "model input NHWC/NCHW require 3 dims"
    return _only_of_tensorrt(tensor, config)


def _wrong_with_output(tensor: ModelOutput, config: ModelConfig) -> str:
    problem = _wrong_with_shape(tensor, config.max_batch_size)
    return f"model output {problem}" if problem else _only_of_tensorrt(tensor, config)


def _only_of_tensorrt(tensor: ModelInput | ModelOutput, config: ModelConfig) -> str:
    if config.platform == _OWN_PLATFORMS["tensorrt"]:
        return ""
    if tensor.is_shape_tensor:
        return "shape tensors are only supported for TensorRT platform"
    if tensor.is_non_linear_format_io:
        return "Non-linear IO format is only supported for the TensorRT platform"
    return ""


def _wrong_with_shape(tensor: ModelInput | ModelOutput, max_batch_size: int) -> str:
    """Return what is wrong with the name, the type and the shapes of a tensor; "" for nothing."""
    if not tensor.name:
        return "must specify 'name'"
    return next((f"'{tensor.name}' {text}" for text in _shape_problems(tensor, max_batch_size)), "")


def _shape_problems(tensor: ModelInput | ModelOutput, max_batch_size: int) -> Iterator[str]:
    variable = f", or {_ANY} to indicate a variable-size dimension"
    dims, has_reshape = list(tensor.dims), tensor.HasField("reshape")
    shape = list(tensor.reshape.shape)
    if tensor.data_type == TYPE_INVALID:
        yield "must specify 'data_type'"
    if not dims:
        yield "must specify 'dims'"
    if has_reshape and not shape and max_batch_size == 0:
        yield (
            "cannot have empty reshape for non-batching model as scalar tensors are not supported"
        )
    if any(dim < 1 and dim != _ANY for dim in dims):
        yield f"dimension must be integer >= 1{variable}"
    if not has_reshape:
        return
    if any(dim < 1 and dim != _ANY for dim in shape):
        yield f"reshape dimensions must be integer >= 1{variable}"
    ours, theirs = _between_variable(dims), _between_variable(shape)
    if (len(ours) == 1) == (len(theirs) == 1) and len(ours) != len(theirs):
        yield "has different number of variable-size dimensions for dims and reshape"
    elif ours != theirs:
        yield "has different size for dims and reshape"


def _between_variable(dims: Sequence[int]) -> list[int]:
    """Return the elements of each run of dimensions that are known: [2, 4, -1, 6] is [8, 6]."""
    runs: list[list[int]] = [[]]
    for dim in dims:
        if dim == _ANY:
            runs.append([])
        else:
            runs[-1].append(dim)
    return [math.prod(run) for run in runs]


def _wrong_with_batch_inputs(config: ModelConfig) -> Iterator[str]:
    for made in config.batch_input:
        yield _wrong_with_sources("input", BatchInput.Kind.Name(made.kind), made, config)
        if made.data_type not in (TYPE_INT32, TYPE_FP32):
            yield "batch input data type must be TYPE_INT32 or TYPE_FP32"


def _wrong_with_batch_outputs(config: ModelConfig) -> Iterator[str]:
    known = {tensor.name for tensor in config.output}
    for made in config.batch_output:
        yield _wrong_with_sources("output", BatchOutput.Kind.Name(made.kind), made, config)
        targets = list(made.target_name)
        for place, target in enumerate(targets):
            if target not in known:
                yield f"unknown target output name '{target}'"
            if target in targets[:place]:
                yield f"target output name '{target}' can only be specified once"


def _wrong_with_sources(
    what: str, kind: str, made: BatchInput | BatchOutput, config: ModelConfig
) -> str:
    known = {tensor.name for tensor in config.input}
    count = len(made.source_input)
    if count != 1:
        return f"batch {what} kind '{kind}' expects 1 source input, got {count}"
    unknown = [name for name in made.source_input if name not in known]
    return f"unknown source input name '{unknown[0]}'" if unknown else ""


def _check_metrics(metrics: ModelMetrics) -> None:
    for control in metrics.metric_control:
        if not control.HasField("metric_identifier"):
            raise ConfigError("metric control must specify 'metric_identifier'")
        if not control.metric_identifier.family:
            raise ConfigError("metric identifier must specify non-empty 'family'")
        if not control.HasField("histogram_options"):
            raise ConfigError("metric control must specify 'histogram_options'")
        if not control.histogram_options.buckets:
            raise ConfigError("histogram options must specify non-empty 'buckets'")
