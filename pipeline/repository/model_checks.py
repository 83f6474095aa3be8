"""Checks of a model's configuration, with Triton's texts, and bounds of what a caller may send."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from pathlib import PurePosixPath

from pipeline.config.batching import (
    DynamicBatchingConfig,
    LevelPolicyConfig,
    fault_of_batching,
)
from pipeline.errors import ConfigError
from pipeline.frontends.v2.control import Overrides
from pipeline.frontends.v2.errors import V2Error, invalid
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
from pipeline.repository.model_config import is_nested_deeper
from pipeline.repository.model_defaults import ENSEMBLE
from pipeline.repository.op_settings import instances_of, sequence_controls

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

    The Op that has states of sequences looks at them.

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
        batching = _dynamic_batching(config.dynamic_batching)
        if fault := fault_of_batching(config.name, batching, config.max_batch_size):
            raise ConfigError(fault)
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


def _dynamic_batching(batching: ModelDynamicBatching) -> DynamicBatchingConfig:
    """Return it in the words of config.yml, as far as `fault_of_batching` looks at it."""
    return DynamicBatchingConfig(
        preferred_batch_size=tuple(batching.preferred_batch_size),
        preserve_ordering=batching.preserve_ordering,
        priority_levels=batching.priority_levels,
        default_priority_level=batching.default_priority_level,
        default_queue_policy=_policy(0, batching.default_queue_policy),
        priority_queue_policy=tuple(
            _policy(level, policy) for level, policy in batching.priority_queue_policy.items()
        ),
    )


def _policy(level: int, policy: ModelQueuePolicy) -> LevelPolicyConfig:
    return LevelPolicyConfig(
        level=level,
        timeout_action="delay" if policy.timeout_action == ModelQueuePolicy.DELAY else "reject",
        default_timeout_microseconds=policy.default_timeout_microseconds,
    )


def _check_sequence_batching(config: ModelConfig) -> None:
    name, batching = config.name, config.sequence_batching
    if config.response_cache.enable:
        raise ConfigError(
            f"Response Cache does not currently support model {name} with sequence batching "
            "scheduler. Please disable the response cache."
        )
    for size in batching.oldest.preferred_batch_size:
        if size <= 0:
            raise ConfigError(f"sequence batching preferred batch size must be positive for {name}")
        if size > config.max_batch_size:
            raise ConfigError(
                f"sequence batching preferred batch size must be <= max batch size for {name}"
            )
    if not 0.0 <= batching.direct.minimum_slot_utilization <= 1.0:
        raise ConfigError(
            f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {name}"
        )
    sequence_controls(config)


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
        *(
            f"model output {problem}"
            if (problem := _wrong_with_shape(tensor, config.max_batch_size))
            else _only_of_tensorrt(tensor, config)
            for tensor in config.output
        ),
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


MAX_INSTANCES = 128
"""Instances of a model, where nobody says another number."""

_MAX_SLOTS = 65_536  # of sequences, at all instances
_MAX_RUNS = 1000  # of samples before a model is ready
_MAX_SAMPLE = 2**28  # elements of one input
_MAX_DEPTH = 100  # as protobuf
_MAX_NAME_BYTES = 255  # of a file, as Linux has it
_MAX_PATH_BYTES = 2048  # below the folder of temporary files


def check_sent(name: str, overrides: Overrides) -> None:
    """Refuse names and nesting that no model has. Raises V2Error."""
    if not _can_be_a_file(name):
        raise _refused(name, "no folder can have this name")
    # Clients of Triton begin paths with a slash.
    places = {PurePosixPath(path.lstrip("/")): path for path in overrides.files}
    for place, path in places.items():
        parts, is_long = place.parts, len(path.encode()) > _MAX_PATH_BYTES
        if is_long or not parts or ".." in parts or not all(map(_can_be_a_file, parts)):
            raise _refused(name, f"file:{path} is not a path below the folder of the model")
        if places.keys() & set(place.parents):
            raise _refused(name, f"file:{path} is below another file")
    if overrides.config is not None and is_nested_deeper(overrides.config, _MAX_DEPTH):
        raise _refused(name, f"its config is nested deeper than {_MAX_DEPTH}")


def check_bounds(name: str, config: ModelConfig, max_instances: int) -> None:
    """Refuse numbers that take the whole server along. Raises V2Error."""
    for group in config.instance_group:
        if group.count < 0:
            text = f"instance group {group.name} has the count {group.count}: it must be at least 1"
            raise _refused(name, text)
    instances = instances_of(config)
    if instances > max_instances:
        raise _refused(
            name,
            f"its instance groups have {instances} instances, more than {max_instances}, which is "
            "what this server lets a model have: --max-instances",
        )
    sequences = config.sequence_batching
    per_instance = sequences.oldest.max_candidate_sequences or max(1, config.max_batch_size)
    if config.HasField("sequence_batching") and instances * per_instance > _MAX_SLOTS:
        raise _refused(
            name,
            f"{instances} instances with {per_instance} sequences each (max_candidate_sequences or "
            f"max_batch_size) are more than {_MAX_SLOTS}",
        )
    runs = sum(max(1, sample.count) for sample in config.model_warmup)
    if runs > _MAX_RUNS:
        raise _refused(name, f"model_warmup has {runs} runs, more than {_MAX_RUNS}")
    for sample in config.model_warmup:
        for tensor, value in sample.inputs.items():
            if math.prod((max(1, sample.batch_size), *value.dims)) > _MAX_SAMPLE:
                text = f"model_warmup {sample.name}: {tensor} has more than {_MAX_SAMPLE} elements"
                raise _refused(name, text)


def _can_be_a_file(name: str) -> bool:
    is_plain = all(character.isprintable() or character.isspace() for character in name)
    return is_plain and not set(name) & set("\0\n\r\v\f") and len(name.encode()) <= _MAX_NAME_BYTES


def _refused(name: str, why: str) -> V2Error:
    return invalid(f"failed to load '{name[:_MAX_NAME_BYTES]}', {why}")
