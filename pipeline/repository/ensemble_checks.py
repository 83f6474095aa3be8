"""Checks of the steps of an ensemble, with Triton's texts for what is wrong."""

from __future__ import annotations

from collections import deque

import msgspec
from msgspec import field

from pipeline.errors import ConfigError
from pipeline.proto.inference_v2_pb2 import ModelConfig
from pipeline.repository.model_defaults import ENSEMBLE


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
    """Set `is_ready` of all that can be made of the inputs."""
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
    last, seen, found = output, {output.name}, True
    while found:
        missing = (each for each in last.sources if not each.is_ready and each.name not in seen)
        following = next(missing, None)
        found = following is not None
        last = following or last
        seen.add(last.name)
    if last is output:
        return text
    return f"{text}: at least one of its depending tensors, '{last.name}', is not connected"
