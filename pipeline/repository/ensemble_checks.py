"""Checks of the steps of an ensemble, alone and against their models, with Triton's texts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import field

from pipeline.errors import ConfigError
from pipeline.proto.inference_v2_pb2 import DataType, ModelConfig, ModelEnsembling
from pipeline.repository.model_defaults import ENSEMBLE
from pipeline.repository.model_folders import key_of


class _Tensor(msgspec.Struct, eq=False):
    """A tensor of an ensemble: of what it is made, what is made of it, and whether it will be."""

    name: str
    is_made: bool = False
    sources: list[_Tensor] = field(default_factory=list)
    results: list[_Tensor] = field(default_factory=list)
    is_ready: bool = False


def check_ensemble(config: ModelConfig) -> None:
    """Look at the steps of an ensemble and at how its tensors go through them.

    Raises:
        ConfigError: the first thing that is wrong, in Triton's words.
    """
    name, steps = config.name, config.ensemble_scheduling.step
    if config.platform != ENSEMBLE:
        raise ConfigError(
            f"ensemble scheduling cannot be set for model '{name}' whose platform is not {ENSEMBLE}"
        )
    if config.instance_group:
        raise ConfigError(f"instance group should not be specified for ensemble '{name}'")
    if config.HasField("optimization"):
        raise ConfigError(f"optimization should not be specified for ensemble '{name}'")
    if config.model_warmup:
        raise ConfigError(f"model_warmup can not be specified for ensemble '{name}'")
    if not steps:
        raise ConfigError(f"must specify 'step' for ensemble '{name}'")
    _check_flow(config, _tensors(config))


def _tensors(config: ModelConfig) -> dict[str, _Tensor]:
    """Return the tensors of an ensemble by name, with what the steps make of which."""
    tensors: dict[str, _Tensor] = {}
    for number, step in enumerate(config.ensemble_scheduling.step):
        for key in ("model_name", "input_map", "output_map"):
            if not getattr(step, key):
                raise ConfigError(
                    f"must specify '{key}' in step {number} of ensemble '{config.name}'"
                )
        made = [tensors.setdefault(name, _Tensor(name)) for name in step.output_map.values()]
        for tensor in made:
            if tensor.is_made:
                raise ConfigError(
                    f"ensemble tensor '{tensor.name}' can appear in an output map only once for "
                    f"ensemble '{config.name}' step {number}"
                )
            tensor.is_made = True
        for name in step.input_map.values():
            source = tensors.setdefault(name, _Tensor(name))
            source.results += made
            for tensor in made:
                tensor.sources.append(source)
    return tensors


def _check_flow(config: ModelConfig, tensors: dict[str, _Tensor]) -> None:
    """Follow the inputs through the steps: each output is to be made, and each tensor used."""
    for kind, slots in (("input", config.input), ("output", config.output)):
        for slot in slots:
            if slot.name not in tensors:
                raise ConfigError(
                    f"ensemble {kind} '{slot.name}' for ensemble {config.name}' is not used"
                )
        if kind == "input":
            _follow([tensors[slot.name] for slot in slots])
    outputs = {slot.name for slot in config.output}
    for slot in config.output:
        if not tensors[slot.name].is_ready:
            raise ConfigError(_why_not_written(tensors[slot.name], config.name))
    for tensor in tensors.values():
        if tensor.name not in outputs and not (tensor.is_ready and tensor.results):
            raise ConfigError(
                f"ensemble tensor '{tensor.name}' is unused in ensemble '{config.name}'"
            )


def _follow(inputs: list[_Tensor]) -> None:
    """Set `is_ready` of every tensor that can be made of the inputs."""
    waiting = deque(inputs)
    for tensor in inputs:
        tensor.is_ready = True
    while waiting:
        for made in waiting.popleft().results:
            if not made.is_ready and all(source.is_ready for source in made.sources):
                made.is_ready = True
                waiting.append(made)


def _why_not_written(output: _Tensor, ensemble: str) -> str:
    """Return the text for an output that is not made, which names where its line breaks off."""
    text = f"output '{output.name}' for ensemble '{ensemble}' is not written"
    last, names, is_found = output, {output.name}, True
    while is_found:
        missing = (
            source for source in last.sources if not source.is_ready and source.name not in names
        )
        following = next(missing, None)
        is_found = following is not None
        last = following or last
        names.add(last.name)
    if last is output:
        return text
    return f"{text}: at least one of its depending tensors, '{last.name}', is not connected"


_ANY = -1

ConfigOf = Callable[[str, int], ModelConfig]
"""Returns the configuration of a model's version (-1: the latest). Raises PipelineError: none."""


class _StepTensor(msgspec.Struct, eq=False):
    """A tensor of an ensemble, as the first who has it describes it.

    Attributes:
        model: whose description it is.
        dims: without the batch.
        full_dims: with it.
    """

    model: str
    data_type: int
    dims: tuple[int, ...]
    full_dims: tuple[int, ...]


def check_steps(config: ModelConfig, config_of: ConfigOf) -> bool:
    """Look at how the tensors of an ensemble fit the models of its steps.

    Args:
        config: an ensemble's, whose steps `check_ensemble` has looked at.

    Returns:
        whether the ensemble answers in parts, since one of the models does.

    Raises:
        ConfigError: the first thing that is wrong, in Triton's words.
        PipelineError: a model is not there.
    """
    ensemble, tensors = config.name, _own_tensors(config)
    models = [
        config_of(key_of(step.model_namespace, step.model_name), step.model_version)
        for step in steps_of(config)
    ]
    for step, model in zip(steps_of(config), models, strict=True):
        if 0 < model.max_batch_size < config.max_batch_size:
            raise ConfigError(
                f"ensemble {ensemble} allows maximum batch size {config.max_batch_size}, but it "
                f"contains model {step.model_name} which only allows maximum batch size to be "
                f"{model.max_batch_size}"
            )
        _check_inputs(ensemble, step, model, tensors)
        _check_outputs(ensemble, step, model, tensors)
    return _check_streams(config, models)


def steps_of(config: ModelConfig) -> Sequence[ModelEnsembling.Step]:
    return list(config.ensemble_scheduling.step)


def in_order(config: ModelConfig) -> list[int]:
    """Return the numbers of the steps of an ensemble so that each comes behind all it reads."""
    steps, ordered = steps_of(config), list[int]()
    known = {slot.name for slot in config.input}
    while len(ordered) < len(steps):
        ready = [
            number
            for number, step in enumerate(steps)
            if number not in ordered and known.issuperset(step.input_map.values())
        ]
        if not ready:
            raise ConfigError(f"the steps of ensemble '{config.name}' wait for each other")
        ordered += ready
        known.update(name for number in ready for name in steps[number].output_map.values())
    return ordered


def dims_fit(some: Sequence[int], others: Sequence[int]) -> bool:
    """Return whether shapes are the same where neither is of any size."""
    return len(some) == len(others) and all(
        one == other or _ANY in (one, other) for one, other in zip(some, others, strict=True)
    )


def own_dims(slot: Any) -> tuple[int, ...]:
    """Return the shape of an ensemble's own input or output, as its steps have it."""
    return tuple(slot.reshape.shape if slot.HasField("reshape") else slot.dims)


def _own_tensors(config: ModelConfig) -> dict[str, _StepTensor]:
    slots: list[Any] = [*config.input, *config.output]
    return {
        slot.name: _tensor(config.name, config, slot.data_type, own_dims(slot)) for slot in slots
    }


def _tensor(model: str, config: ModelConfig, data_type: int, dims: tuple[int, ...]) -> _StepTensor:
    batch = (_ANY,) if config.max_batch_size > 0 else ()
    return _StepTensor(model, data_type, dims, (*batch, *dims))


def _check_inputs(
    ensemble: str, step: ModelEnsembling.Step, model: ModelConfig, tensors: dict[str, _StepTensor]
) -> None:
    """Look at what a step feeds its model."""
    known = {slot.name for slot in model.input}
    for name, tensor in step.input_map.items():
        if name not in known:
            raise ConfigError(
                f"in ensemble {ensemble}, ensemble tensor {tensor} is mapping to non-existing "
                f"input {name} in model {step.model_name}"
            )
    for slot in model.input:
        if slot.name in step.input_map:
            _check_same(ensemble, step, model, slot, step.input_map[slot.name], tensors)
        elif not slot.optional:
            raise ConfigError(
                f"in ensemble {ensemble}, input {slot.name} in model {step.model_name} is not "
                "mapped to any ensemble tensors"
            )


def _check_outputs(
    ensemble: str,
    step: ModelEnsembling.Step,
    model: ModelConfig,
    tensors: dict[str, _StepTensor],
) -> None:
    """Look at what a step takes of its model's answer."""
    known = {slot.name: slot for slot in model.output}
    for name, tensor in step.output_map.items():
        if name not in known:
            raise ConfigError(
                f"in ensemble {ensemble}, ensemble tensor {tensor} is mapped from non-existing "
                f"output {name} in model {step.model_name}"
            )
    for name, tensor in step.output_map.items():
        _check_same(ensemble, step, model, known[name], tensor, tensors)


def _check_same(
    ensemble: str,
    step: ModelEnsembling.Step,
    model: ModelConfig,
    slot: Any,
    name: str,
    tensors: dict[str, _StepTensor],
) -> None:
    """Take down what a tensor is, or refuse it if others say that it is something else."""
    tensor = _tensor(step.model_name, model, slot.data_type, tuple(slot.dims))
    there = tensors.setdefault(name, tensor)
    where = f"in ensemble {ensemble}, ensemble tensor {name}: inconsistent"
    if there.data_type != tensor.data_type:
        raise ConfigError(
            f"{where} data type: {DataType.Name(there.data_type)} is inferred from model "
            f"{there.model} while {DataType.Name(tensor.data_type)} is inferred from model "
            f"{tensor.model}"
        )
    fits = dims_fit(there.dims, tensor.dims) or dims_fit(there.full_dims, tensor.full_dims)
    if not fits:
        raise ConfigError(
            f"{where} shape: {_shown(there.full_dims)} is inferred from model {there.model} while "
            f"{_shown(tensor.full_dims)} is inferred from model {tensor.model}"
        )


def _shown(dims: Sequence[int]) -> str:
    return f"[{','.join(map(str, dims))}]"


def _check_streams(config: ModelConfig, models: Sequence[ModelConfig]) -> bool:
    """Refuse a step that reads a stream beside anything else; return whether there are any."""
    streams: dict[str, int | None] = {slot.name: None for slot in config.input}
    for number in in_order(config):
        step = steps_of(config)[number]
        read = _one_stream(config.name, step.model_name, step.input_map.values(), streams)
        is_source = models[number].model_transaction_policy.decoupled
        for name in step.output_map.values():
            streams[name] = number if is_source else read
    _one_stream(config.name, config.name, [slot.name for slot in config.output], streams)
    return any(stream is not None for stream in streams.values())


def _one_stream(
    ensemble: str, model: str, names: Collection[str], streams: Mapping[str, int | None]
) -> int | None:
    """Return the step that makes the stream of these tensors; None: they come once."""
    sources = {streams[name] for name in names}
    if len(sources) > 1:
        raise ConfigError(
            f"in ensemble {ensemble}, step of model '{model}' receives inputs originated from "
            "different decoupled models"
        )
    return next(iter(sources), None)
