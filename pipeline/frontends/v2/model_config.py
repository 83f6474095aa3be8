"""Descriptions of models: metadata and configurations, as JSON and as messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from pipeline.config.batching import QueuePolicyConfig, traits_of
from pipeline.config.schema import OpConfig
from pipeline.config.sequences import Control, StateConfig, controls_of, datatype
from pipeline.data import ANY, declared
from pipeline.engine.graph import Graph
from pipeline.frontends.v2.interface import ModelInterface, Slot
from pipeline.op import Op

# Some clients need these keys: Triton's answers also contain settings that are not set.
_INPUT_DEFAULTS = {
    "format": "FORMAT_NONE",
    "is_shape_tensor": False,
    "allow_ragged_batch": False,
    "optional": False,
}
_BACKENDS = {"python": "python", "onnxruntime_onnx": "onnxruntime"}  # by platform
_OUTPUT_DEFAULTS = {"label_filename": "", "is_shape_tensor": False}


def metadata_of(
    name: str, platform: str, interface: ModelInterface, versions: Sequence[str]
) -> dict[str, Any]:
    """Return the metadata of a model, in the words of ModelMetadataResponse."""
    return {
        "name": name,
        "versions": list(versions),
        "platform": platform,
        "inputs": _metadata_slots(interface.inputs, interface.batches),
        "outputs": _metadata_slots(interface.outputs, interface.batches),
    }


def config_of_op(
    name: str,
    platform: str,
    interface: ModelInterface,
    settings: OpConfig,
    is_decoupled: bool = False,
) -> dict[str, Any]:
    """Return the configuration of an Op as a model, in the words of ModelConfig."""
    config = _config_of(name, platform, interface, is_decoupled)
    config["instance_group"] = [_instance_group(name, settings)]
    config["response_cache"] = {"enable": settings.response_cache}
    _tell_ragged(config, settings)
    delay_s = settings.auto_batching_timeout_s or 0.0
    if settings.sequence.strategy is not None or traits_of(settings.batching).steps:
        config["sequence_batching"] = _sequence_batching(settings, interface.max_batch_size)
    elif traits_of(settings.batching).reads_section:
        config["dynamic_batching"] = _dynamic_batching(settings, interface.max_batch_size)
    elif settings.batch_size > 1:
        config["dynamic_batching"] = {
            "preferred_batch_size": [settings.batch_size],
            "max_queue_delay_microseconds": round(delay_s * 1e6),
            "preserve_ordering": False,
        }
    return config


def _tell_ragged(config: dict[str, Any], settings: OpConfig) -> None:
    """Add the ragged inputs, and the inputs with their shapes."""
    for tensor in config["input"]:
        tensor["allow_ragged_batch"] = tensor["name"] in settings.allow_ragged_batch
    for key in ("batch_input", "batch_output"):
        config[key] = [msgspec.to_builtins(setting) for setting in getattr(settings, key)]


def _sequence_batching(settings: OpConfig, max_batch_size: int) -> dict[str, Any]:
    sequence = settings.sequence
    delay_us = sequence.max_queue_delay_ms * 1000
    strategy: dict[str, Any]
    name = sequence.strategy
    keeps_places = name is not None and traits_of(name, "strategies").keeps_places
    if keeps_places:
        strategy = {
            "max_queue_delay_microseconds": delay_us,
            "minimum_slot_utilization": sequence.min_slot_utilization,
        }
    else:
        whole = [max_batch_size] if max_batch_size else []
        strategy = {  # also of iterative Ops without a strategy: the longest wait is first
            "max_candidate_sequences": sequence.max_candidates,
            "preferred_batch_size": list(sequence.preferred_batch_sizes) or whole,
            "max_queue_delay_microseconds": delay_us,
            "preserve_ordering": sequence.preserve_ordering,
        }
    return {
        "direct" if keeps_places else "oldest": strategy,
        "max_sequence_idle_microseconds": sequence.max_idle_ms * 1000,
        "control_input": [_control(control) for control in controls_of("", sequence.controls)],
        "state": [_state(state) for state in sequence.state],
        "iterative_sequence": traits_of(settings.batching).steps,
    }


def _dynamic_batching(settings: OpConfig, max_batch_size: int) -> dict[str, Any]:
    batching = settings.dynamic_batching
    whole = max_batch_size or settings.batch_size
    return {
        "preferred_batch_size": list(batching.preferred_batch_size) or [whole],
        "max_queue_delay_microseconds": batching.max_queue_delay_microseconds,
        "preserve_ordering": batching.preserve_ordering,
        "priority_levels": batching.priority_levels,
        "default_priority_level": batching.default_priority_level,
        "default_queue_policy": _queue_policy(batching.default_queue_policy),
        "priority_queue_policy": {
            str(policy.level): _queue_policy(policy) for policy in batching.priority_queue_policy
        },
    }


def _queue_policy(policy: QueuePolicyConfig) -> dict[str, Any]:
    return {
        "timeout_action": policy.timeout_action.upper(),
        "default_timeout_microseconds": policy.default_timeout_microseconds,
        "allow_timeout_override": policy.allow_timeout_override,
        "max_queue_size": policy.max_queue_size,
    }


def _control(control: Control) -> dict[str, Any]:
    pairs = {
        f"{datatype.lower()}_false_true": list(control.values) * (datatype == control.datatype)
        for datatype in ("INT32", "FP32", "BOOL")
    }
    kind = "INVALID" if control.values else control.datatype
    settings = {"kind": control.kind.value, **pairs, "data_type": f"TYPE_{kind}"}
    return {"name": control.name, "control": [settings]}


def _state(state: StateConfig) -> dict[str, Any]:
    data_type = _data_type(datatype(state.data_type))
    return {
        "input_name": state.input_name,
        "output_name": state.output_name,
        "data_type": data_type,
        "dims": list(state.dims),
        "initial_state": [
            {
                "data_type": data_type,
                "dims": list(state.dims if initial.dims is None else initial.dims),
                "name": initial.name or "",
                **(
                    {"zero_data": bool(initial.zero_data)}
                    if initial.data_file is None
                    else {"data_file": initial.data_file}
                ),
            }
            for initial in state.initial_state
        ],
        "use_same_buffer_for_input_output": state.use_same_buffer_for_input_output,
        "use_growable_memory": state.use_growable_memory,
    }


def config_of_pipeline(
    name: str,
    interface: ModelInterface,
    steps: Sequence[Mapping[str, Any]],
    is_decoupled: bool = False,
) -> dict[str, Any]:
    """Return the configuration of the whole graph, an ensemble of its Ops."""
    config = _config_of(name, "ensemble", interface, is_decoupled)
    config["ensemble_scheduling"] = {"step": list(steps)}
    return config


def step_of(model: str, op: Op, graph: Graph) -> dict[str, Any]:
    """Return one Op as a step of the ensemble.

    The maps have its declared tensors. A tensor between Ops is called "<source Op>.<name>"; the
    first Ops' inputs and the last Op's outputs have the pipeline's names.
    """
    producers = [producer.name for producer in op.get_input_ops()]
    input_map = {}
    for tensor in declared(op, "input_tensors"):
        source = tensor.source or producers[0]
        is_outside = source == graph.request_op.name
        input_map[tensor.full_name] = tensor.name if is_outside else f"{source}.{tensor.name}"
    is_last = op is graph.last_op and not declared(graph.response_op, "output_tensors")
    output_map = {
        tensor.name: tensor.name if is_last else f"{op.name}.{tensor.name}"
        for tensor in declared(op, "output_tensors")
    }
    return {
        "model_name": model,
        "model_version": -1,  # the latest
        "input_map": input_map,
        "output_map": output_map,
    }


def _config_of(
    name: str, platform: str, interface: ModelInterface, is_decoupled: bool
) -> dict[str, Any]:
    return {
        "name": name,
        # As in Triton's configurations; the metadata of such a model has "python".
        "platform": "" if platform == "python" else platform,
        "backend": _BACKENDS.get(platform, ""),
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": interface.max_batch_size,
        "input": [_config_slot(slot) | _INPUT_DEFAULTS for slot in interface.inputs or ()],
        "output": [_config_slot(slot) | _OUTPUT_DEFAULTS for slot in interface.outputs or ()],
        "instance_group": [],
        "default_model_filename": "",
        "parameters": {},
        "model_transaction_policy": {"decoupled": is_decoupled},
        "response_cache": {"enable": False},
    }


def _metadata_slots(slots: Iterable[Slot] | None, batches: bool) -> list[dict[str, Any]]:
    return [
        {"name": slot.name, "datatype": slot.datatype, "shape": slot.full_shape(batches)}
        for slot in slots or ()
    ]


def _config_slot(slot: Slot) -> dict[str, Any]:
    dims = [ANY] if slot.shape is None else list(slot.shape)
    return {"name": slot.name, "data_type": _data_type(slot.datatype), "dims": dims}


def _data_type(datatype: str) -> str:
    return f"TYPE_{'STRING' if datatype == 'BYTES' else datatype}"


def _instance_group(name: str, settings: OpConfig) -> dict[str, Any]:
    """Return the Op's workers, which share its GPUs in turn; Triton's instances would not."""
    devices = settings.local_service_conf.devices
    cards = [int(card) for card in devices.split(",")] if devices.strip() else []
    group: dict[str, Any] = {
        "name": f"{name}_0",
        "kind": "KIND_GPU" if cards else "KIND_CPU",
        "count": settings.concurrency,
        "gpus": cards,
    }
    for needs in settings.rate_limiter[:1]:  # shown as one group with all workers
        resources = [
            {"name": resource.name, "global": resource.is_global, "count": resource.count}
            for resource in needs.resources
        ]
        group["rate_limiter"] = {"resources": resources, "priority": needs.priority}
    return group
