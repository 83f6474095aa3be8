"""Defaults of a model's configuration: what Triton fills in where its file does not say."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from pipeline.errors import ConfigError
from pipeline.proto.inference_v2_pb2 import ModelConfig, ModelInstanceGroup

ENSEMBLE = "ensemble"
"""The platform of a model that is made of others."""

_IDLE_US = 1_000_000  # of a sequence
_FILES: Mapping[str, str] = MappingProxyType(
    {
        "tensorrt": "model.plan",
        "onnxruntime": "model.onnx",
        "openvino": "model.xml",
        "pytorch": "model.pt",
        "python": "model.py",
        "pipeline": "web_server.py",
    }
)
"""Of each backend the file by which it is known, in the order in which they are looked for."""

_PLATFORMS: Mapping[str, str] = MappingProxyType(
    {
        "tensorrt": "tensorrt_plan",
        "onnxruntime": "onnxruntime_onnx",
        "pytorch": "pytorch_libtorch",
    }
)
_TWO_INSTANCES = ("onnxruntime",)  # of these backends two on a processor, of others one


def fill_in(
    config: ModelConfig, name: str, files: Collection[str], cards: Collection[int] = ()
) -> None:
    """Fill in all defaults.

    Args:
        name: of the model's folder.
        files: names of what is in the folder of one of its versions.
        cards: numbers of the machine's.

    Raises:
        ConfigError: its backend is neither said nor seen.
    """
    config.name = config.name or name
    is_ensemble = config.platform == ENSEMBLE
    if not is_ensemble:
        _fill_in_backend(config, files)
    if not config.HasField("version_policy"):
        config.version_policy.latest.num_versions = 1
    fill_in_batching(config)
    if is_ensemble and not config.HasField("model_transaction_policy"):
        config.model_transaction_policy.decoupled = False
    if not is_ensemble:
        for memory in ("input_pinned_memory", "output_pinned_memory"):
            if not config.optimization.HasField(memory):
                getattr(config.optimization, memory).enable = True
        _fill_in_instances(config, cards)


def _fill_in_backend(config: ModelConfig, files: Collection[str]) -> None:
    """Tell backend, platform and file from each other, or from what is in the folder."""
    if not config.backend and config.platform in _PLATFORMS:  # the one for the other
        config.backend, config.platform = config.platform, ""
    is_known = bool(config.backend)
    config.backend = config.backend or _seen_backend(config, files)
    config.platform = config.platform or _PLATFORMS.get(config.backend, "")
    file = _FILES.get(config.backend, f"model.{config.backend}")
    if config.backend in _FILES or file in files or (config.backend and not is_known):
        config.default_model_filename = config.default_model_filename or file


def _seen_backend(config: ModelConfig, files: Collection[str]) -> str:
    for backend, file in _FILES.items():
        if config.platform and config.platform == _PLATFORMS.get(backend):
            return backend
        if config.default_model_filename == file:
            return backend
    if config.platform or config.default_model_filename:
        return ""  # which the checks refuse
    for backend, file in _FILES.items():
        if file in files:
            return backend
    _, dot, backend = config.name.partition(".")
    if not dot:
        raise ConfigError(
            f"Invalid model name: Could not determine backend for model '{config.name}' with no "
            "backend in model configuration. Expected model name of the form "
            "'model.<backend_name>'."
        )
    return backend


def fill_in_batching(config: ModelConfig) -> None:
    """Fill in what follows from `max_batch_size`, which the model's file may have completed."""
    most = config.max_batch_size
    sequences = config.sequence_batching if config.HasField("sequence_batching") else None
    if sequences is not None and not sequences.max_sequence_idle_microseconds:
        sequences.max_sequence_idle_microseconds = _IDLE_US
    if config.HasField("dynamic_batching"):
        preferred = config.dynamic_batching.preferred_batch_size
    elif sequences is not None and sequences.HasField("oldest"):
        preferred = sequences.oldest.preferred_batch_size
    else:
        return
    if not preferred and most > 0:
        preferred.append(most)


def _fill_in_instances(config: ModelConfig, cards: Collection[int]) -> None:
    if not config.instance_group:
        config.instance_group.add(name=config.name)
    for number, group in enumerate(config.instance_group):
        group.name = group.name or f"{config.name}_{number}"
        if group.kind == ModelInstanceGroup.KIND_AUTO:
            has_cards = bool(cards) and set(group.gpus) <= set(cards)
            group.kind = ModelInstanceGroup.KIND_GPU if has_cards else ModelInstanceGroup.KIND_CPU
        if not group.count:
            is_cpu = group.kind == ModelInstanceGroup.KIND_CPU
            group.count = 2 if is_cpu and config.backend in _TWO_INSTANCES else 1
        if group.kind == ModelInstanceGroup.KIND_GPU and not group.gpus:
            group.gpus.extend(sorted(cards))
