"""Settings of the Op that serves a model: ModelConfig in the words of `op.<name>` of config.yml."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from google.protobuf.json_format import MessageToDict

from pipeline.config.sequences import Control, ControlConfig, controls_of
from pipeline.proto.inference_v2_pb2 import (
    ModelConfig,
    ModelDynamicBatching,
    ModelInstanceGroup,
    ModelSequenceBatching,
)

_LOGGER = logging.getLogger(__name__)

_US_IN_MS = 1000
_FIRST_RESPONSES = "nv_inference_first_response_histogram_ms"


def op_settings(config: ModelConfig) -> dict[str, Any]:
    """Return what config.yml would say of the Op of a model, whatever its backend is.

    Args:
        config: with its defaults, and checked.
    """
    settings: dict[str, Any] = {
        "concurrency": max(1, instances_of(config)),
        "batch_size": max(1, config.max_batch_size),
        "rate_limiter": _needs(config),
    }
    if config.HasField("sequence_batching"):
        settings |= _sequences(config, config.sequence_batching)
    elif config.HasField("dynamic_batching"):
        settings |= _dynamic(config.dynamic_batching)
    else:
        settings["batch_size"] = 1  # each request runs alone, however many samples it brings
    return settings


def metrics_settings(config: ModelConfig) -> dict[str, Any]:
    """Return what config.yml would say of the metrics of a model: its own bounds of a histogram."""
    settings = {}
    for control in config.model_metrics.metric_control:
        family = control.metric_identifier.family
        if family == _FIRST_RESPONSES:
            settings["first_response_buckets_ms"] = sorted(control.histogram_options.buckets)
        else:
            where = f"Metric family '{family}' in 'metric_identifier'"
            _LOGGER.warning("%s is not a customizable metric in Triton core.", where)
    return settings


def instances_of(config: ModelConfig) -> int:
    """Return how many instances of a model there are, on all devices."""
    return sum(
        group.count * (max(1, len(group.gpus)) if group.kind == ModelInstanceGroup.KIND_GPU else 1)
        for group in config.instance_group
    )


def instance_names(config: ModelConfig) -> list[str]:
    """Return the names of a model's instances; those of one group on several cards share them."""
    return [
        f"{group.name}_{number}"
        for group in config.instance_group
        for number in range(group.count)
        for _ in group.gpus or (0,)
    ]


def _needs(config: ModelConfig) -> list[dict[str, Any]]:
    """Return what instances need while they run; none: no group of them says so."""
    groups = config.instance_group
    if not any(group.HasField("rate_limiter") for group in groups):
        return []
    needs = []
    for group in groups:
        limiter = MessageToDict(group.rate_limiter, preserving_proto_field_name=True)
        on_cards = group.kind == ModelInstanceGroup.KIND_GPU and list(group.gpus)
        per_device = [
            {**limiter, "workers": group.count, "device": card} for card in on_cards or [0]
        ]
        needs += per_device
    return needs


def kinds_of_instances(config: ModelConfig) -> set[bytes]:
    """Return what is different between the instances of a model: all but names and counts."""
    kinds = set()
    for group in config.instance_group:
        kind = ModelInstanceGroup()
        kind.CopyFrom(group)
        kind.ClearField("name")
        kind.ClearField("count")
        kinds.add(kind.SerializeToString(deterministic=True))
    return kinds


def cards_of(config: ModelConfig) -> list[int]:
    """Return the cards that the instances of a model take turns on; none: the processor."""
    return [
        card
        for group in config.instance_group
        if group.kind == ModelInstanceGroup.KIND_GPU
        for card in group.gpus
    ]


def _dynamic(batching: ModelDynamicBatching) -> dict[str, Any]:
    settings = MessageToDict(batching, preserving_proto_field_name=True)
    for name in ("max_queue_delay_microseconds", "default_timeout_microseconds"):
        _as_number(settings, name)
    policies = [settings.get("default_queue_policy", {})]
    levels = settings.pop("priority_queue_policy", {})
    for level, policy in levels.items():
        policies.append(policy)
        policy["level"] = int(level)
    for policy in filter(None, policies):
        _as_number(policy, "default_timeout_microseconds")
        if "timeout_action" in policy:
            policy["timeout_action"] = policy["timeout_action"].lower()
    if levels:
        settings["priority_queue_policy"] = sorted(
            levels.values(), key=lambda policy: policy["level"]
        )
    for name in ("priority_levels", "default_priority_level"):
        _as_number(settings, name)
    return {"batching": "dynamic", "dynamic_batching": settings}


def _as_number(settings: dict[str, Any], name: str) -> None:
    """Make a number of what protobuf's JSON has as text; Structs have only signed numbers."""
    if name in settings:
        settings[name] = min(int(settings[name]), 2**63 - 1)


def _sequences(config: ModelConfig, batching: ModelSequenceBatching) -> dict[str, Any]:
    settings = MessageToDict(batching, preserving_proto_field_name=True)
    for tensor in settings.get("control_input", []):
        for control in tensor.get("control", []):
            control.setdefault("kind", "CONTROL_SEQUENCE_START")  # 0, which is not shown
    sequence: dict[str, Any] = {
        "max_idle_ms": max(1, -(-batching.max_sequence_idle_microseconds // _US_IN_MS)),
        "controls": settings.get("control_input", []),
        "state": [_state(state, config.max_batch_size) for state in settings.get("state", [])],
    }
    if batching.iterative_sequence:
        del sequence["max_idle_ms"]
        return {"batching": "iterative", "sequence": sequence}
    if batching.HasField("oldest"):
        oldest = batching.oldest
        sequence |= {
            "strategy": "oldest",
            "max_candidates": oldest.max_candidate_sequences,
            "preferred_batch_sizes": list(oldest.preferred_batch_size),
            "max_queue_delay_ms": -(-oldest.max_queue_delay_microseconds // _US_IN_MS),
            "preserve_ordering": oldest.preserve_ordering,
        }
    else:
        direct = batching.direct
        sequence |= {
            "strategy": "direct",
            "min_slot_utilization": direct.minimum_slot_utilization,
            "max_queue_delay_ms": -(-direct.max_queue_delay_microseconds // _US_IN_MS),
        }
    return {"sequence": sequence}


def sequence_controls(config: ModelConfig) -> tuple[Control, ...]:
    """Return the inputs with sequence controls. Raises ConfigError."""
    if not config.HasField("sequence_batching"):
        return ()
    controls = _sequences(config, config.sequence_batching)["sequence"]["controls"]
    return controls_of(
        config.name, [msgspec.convert(control, ControlConfig) for control in controls]
    )


def _state(settings: dict[str, Any], max_batch_size: int) -> dict[str, Any]:
    """Return a state with its sizes as numbers; requests are along an axis of it if any are."""
    if max_batch_size == 0:
        settings["batch_axis"] = -1
    for entry in (settings, *settings.get("initial_state", [])):
        if "dims" in entry:
            entry["dims"] = [int(size) for size in entry["dims"]]
    settings.setdefault("dims", [])
    return settings
