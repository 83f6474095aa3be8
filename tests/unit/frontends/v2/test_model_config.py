"""Configurations of models: one content, as JSON and as a message."""

from __future__ import annotations

import pytest
from google.protobuf import json_format

from pipeline import Op, RequestOp, ResponseOp
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.data import Tensor
from pipeline.engine.graph import build_graph
from pipeline.frontends.v2.interface import ModelInterface, Slot
from pipeline.frontends.v2.model_config import (
    config_of_op,
    config_of_pipeline,
    metadata_of,
    step_of,
)
from pipeline.proto.inference_v2_pb2 import (
    DataType,
    ModelConfig,
    ModelInstanceGroup,
    ModelMetadataResponse,
)
from pipeline.proto.v2.raw import DATATYPES

INTERFACE = ModelInterface(
    (Slot("ids", "INT64", (-1,)), Slot("t", "BYTES", (1,))), (Slot("y", "FP32", None),), 8
)


def op_config(**settings):
    config = load_config(yml_dict={"rpc_port": 0, "op": {"bow": settings}})
    return config_of_op("bow", "python", INTERFACE, resolve_op("bow", {}, config))


def test_an_ops_configuration_has_the_fields_that_clients_read():
    config = op_config(concurrency=3)
    assert (config["name"], config["platform"], config["backend"]) == ("bow", "", "python")
    assert config["max_batch_size"] == 8
    unset = {
        "format": "FORMAT_NONE",
        "is_shape_tensor": False,
        "allow_ragged_batch": False,
        "optional": False,
    }
    assert config["input"] == [
        {"name": "ids", "data_type": "TYPE_INT64", "dims": [-1], **unset},
        {"name": "t", "data_type": "TYPE_STRING", "dims": [1], **unset},
    ]
    unset = {"label_filename": "", "is_shape_tensor": False}
    assert config["output"] == [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1], **unset}]
    assert config["version_policy"] == {"latest": {"num_versions": 1}}
    assert config["model_transaction_policy"] == {"decoupled": False}
    assert config["instance_group"] == [
        {"name": "bow_0", "kind": "KIND_CPU", "count": 3, "gpus": []}
    ]
    assert "dynamic_batching" not in config
    assert config["response_cache"] == {"enable": False}


def test_an_ops_cache_and_resources_are_shown():
    need = {"name": "r", "count": 2, "global": True}
    config = op_config(response_cache=True, rate_limiter={"resources": need, "priority": 3})
    assert config["response_cache"] == {"enable": True}
    (group,) = config["instance_group"]
    assert group["rate_limiter"] == {"resources": [need], "priority": 3}


def test_batching_and_cards_are_shown():
    config = op_config(batch_size=4, auto_batching_timeout=2, local_service_conf={"devices": "0,2"})
    assert config["dynamic_batching"]["preferred_batch_size"] == [4]
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 2000
    (group,) = config["instance_group"]
    assert (group["kind"], group["gpus"]) == ("KIND_GPU", [0, 2])


def test_sequences_are_shown_as_triton_shows_them():
    controls = [
        {"name": "START", "kind": "start", "fp32_false_true": [0, 1]},
        {"name": "ID", "kind": "corrid", "data_type": "STRING"},
    ]
    state = {"input_name": "a", "output_name": "b", "data_type": "FP32", "dims": [-1]}
    initial = {"name": "first", "dims": [2], "zero_data": True}
    fields = {"strategy": "direct", "min_slot_utilization": 0.5, "max_queue_delay_ms": 2}
    fields |= {"controls": controls, "state": [{**state, "initial_state": initial}]}
    whole = op_config(batch_size=4, sequence=fields)
    batching = whole["sequence_batching"]
    message = json_format.ParseDict(whole, ModelConfig())
    assert message.sequence_batching.state[0].initial_state[0].zero_data
    empty = {"int32_false_true": [], "bool_false_true": []}
    start = {"kind": "CONTROL_SEQUENCE_START", "fp32_false_true": [0.0, 1.0], **empty}
    corrid = {"kind": "CONTROL_SEQUENCE_CORRID", "fp32_false_true": [], **empty}
    assert batching == {
        "direct": {"max_queue_delay_microseconds": 2000, "minimum_slot_utilization": 0.5},
        "max_sequence_idle_microseconds": 1_000_000,
        "control_input": [
            {"name": "START", "control": [{**start, "data_type": "TYPE_INVALID"}]},
            {"name": "ID", "control": [{**corrid, "data_type": "TYPE_STRING"}]},
        ],
        "state": [
            {
                "input_name": "a",
                "output_name": "b",
                "data_type": "TYPE_FP32",
                "dims": [-1],
                "initial_state": [
                    {"data_type": "TYPE_FP32", "dims": [2], "name": "first", "zero_data": True}
                ],
                "use_same_buffer_for_input_output": False,
                "use_growable_memory": False,
            }
        ],
        "iterative_sequence": False,
    }


def test_the_strategy_oldest_has_its_own_fields():
    whole = op_config(batch_size=4, sequence={"strategy": "oldest", "max_candidates": 9})
    assert whole["sequence_batching"]["oldest"] == {
        "max_candidate_sequences": 9,
        "preferred_batch_size": [INTERFACE.max_batch_size],
        "max_queue_delay_microseconds": 0,
        "preserve_ordering": False,
    }
    assert "dynamic_batching" not in whole
    assert op_config(batching="iterative")["sequence_batching"]["iterative_sequence"]


def test_both_forms_of_a_configuration_are_equal():
    config = op_config(batch_size=4, auto_batching_timeout=1)
    message = json_format.ParseDict(config, ModelConfig())
    assert message.input[1].data_type == DataType.TYPE_STRING
    assert message.instance_group[0].kind == ModelInstanceGroup.KIND_CPU
    assert message.WhichOneof("scheduling_choice") == "dynamic_batching"
    again = json_format.MessageToDict(message, preserving_proto_field_name=True)
    assert again["max_batch_size"] == config["max_batch_size"]
    assert [slot["name"] for slot in again["input"]] == ["ids", "t"]
    assert [slot["dims"] for slot in again["output"]] == [["-1"]]


@pytest.mark.parametrize("datatype", sorted(DATATYPES))
def test_every_datatype_has_its_form_in_a_configuration(datatype):
    config = config_of_pipeline("svc", ModelInterface((Slot("x", datatype, (1,)),)), [])
    name = DataType.Name(json_format.ParseDict(config, ModelConfig()).input[0].data_type)
    assert name == ("TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}")


def test_metadata_shows_the_batch_and_the_configuration_does_not():
    metadata = metadata_of("svc", "ensemble", INTERFACE, ["1"])
    assert metadata["inputs"][0] == {"name": "ids", "datatype": "INT64", "shape": [-1, -1]}
    assert metadata["versions"] == ["1"]
    message = json_format.ParseDict(metadata, ModelMetadataResponse())
    assert list(message.inputs[1].shape) == [-1, 1]
    assert message.platform == "ensemble"


class Step(Op):
    input_tensors = (Tensor("x", "FP32"),)
    output_tensors = (Tensor("y", "FP32"),)


def test_the_steps_of_a_pipeline_are_wired_by_names():
    first = Step("first", RequestOp())
    last = Step("last", first)
    graph = build_graph(ResponseOp(last))
    steps = [step_of(op.name, op, graph) for op in graph.ops]
    assert steps == [
        {
            "model_name": "first",
            "model_version": -1,
            "input_map": {"x": "x"},
            "output_map": {"y": "first.y"},
        },
        {
            "model_name": "last",
            "model_version": -1,
            "input_map": {"x": "first.x"},
            "output_map": {"y": "y"},
        },
    ]
    message = json_format.ParseDict(
        config_of_pipeline("svc", ModelInterface(), steps), ModelConfig()
    )
    assert message.ensemble_scheduling.step[1].model_version == -1
    assert dict(message.ensemble_scheduling.step[1].output_map) == {"y": "y"}
