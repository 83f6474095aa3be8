"""Bounds of what a request to load a model may ask of the server, whoever may send it."""

from __future__ import annotations

import math
from pathlib import PurePosixPath

from pipeline.frontends.v2.control import Overrides
from pipeline.frontends.v2.errors import V2Error, invalid
from pipeline.proto.inference_v2_pb2 import ModelConfig
from pipeline.repository.lenient_json import is_nested_deeper
from pipeline.repository.op_settings import instances_of

MAX_INSTANCES = 128
"""Instances of a model, where nobody says another number."""

_MAX_SLOTS = 65_536  # of sequences, at all instances
_MAX_LEVELS = 1024  # of priorities
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
            raise _refused(name, f"file:{path} is no path below the folder of the model")
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
    each = sequences.oldest.max_candidate_sequences or max(1, config.max_batch_size)
    if config.HasField("sequence_batching") and instances * each > _MAX_SLOTS:
        raise _refused(
            name,
            f"{instances} instances with {each} sequences each (max_candidate_sequences or "
            f"max_batch_size) are more than {_MAX_SLOTS}",
        )
    levels = config.dynamic_batching.priority_levels
    if levels > _MAX_LEVELS:
        raise _refused(name, f"{levels} priority_levels are more than {_MAX_LEVELS}")
    runs = sum(max(1, sample.count) for sample in config.model_warmup)
    if runs > _MAX_RUNS:
        raise _refused(name, f"model_warmup has {runs} runs, more than {_MAX_RUNS}")
    for sample in config.model_warmup:
        for tensor, given in sample.inputs.items():
            if math.prod((max(1, sample.batch_size), *given.dims)) > _MAX_SAMPLE:
                text = f"model_warmup {sample.name}: {tensor} has more than {_MAX_SAMPLE} elements"
                raise _refused(name, text)


def _can_be_a_file(name: str) -> bool:
    is_plain = all(character.isprintable() or character.isspace() for character in name)
    return is_plain and not set(name) & set("\0\n\r\v\f") and len(name.encode()) <= _MAX_NAME_BYTES


def _refused(name: str, why: str) -> V2Error:
    return invalid(f"failed to load '{name[:_MAX_NAME_BYTES]}', {why}")
