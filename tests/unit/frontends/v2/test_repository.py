"""The pipeline and its Ops as models, on the real engine over scripted workers."""

from __future__ import annotations

import numpy as np
import pytest
from doubles import settle, virtual
from v2_doubles import Double, Server, bytes_of, double, floats, served

from pipeline import Op, ProductError, RequestOp, ResponseOp
from pipeline.data import Tensor
from pipeline.errors import ConfigError
from pipeline.frontends.v2 import V2Error, V2Status
from pipeline.frontends.v2.parameters import info_of, timeout_of
from pipeline.predictors.base import ModelMetadata, TensorMetadata


class Show(Op):
    """Answers with what it reads, as text."""

    def preprocess(self, input_dicts, data_id, log_id):
        return {"seen": repr(input_dicts), "log_id": log_id}


class Client:
    """A model that a worker has loaded: `score` is the sum of a row."""

    fetch_names = ("score",)

    def predict(self, feed, fetch=None, log_id=0):
        return {"score": feed["ids"].sum(axis=1, keepdims=True)}


NOTE = ModelMetadata(
    "onnxruntime_onnx",
    [TensorMetadata("ids", "int64", [-1, -1])],
    [TensorMetadata("score", "int64", [-1, 1])],
)


class Loaded(Op):
    """Has a model, and stages that must not run when the model is asked alone."""

    client = Client()

    def preprocess(self, input_dicts, data_id, log_id):
        raise AssertionError("the model was asked, not the Op")

    postprocess = preprocess


# The pipeline -------------------------------------------------------------------------------


def test_a_pipeline_without_declarations_accepts_and_returns_any_tensors():
    async def ask(server):
        response = await server.infer(a=floats(1, 2), t=bytes_of("é"), id="7")
        assert (response.model_name, response.model_version, response.id) == ("svc", "1", "7")
        assert response.outputs["a"].tolist() == [1.0, 2.0]
        assert response.outputs["t"].tolist() == ["é"]
        only = await server.infer(a=floats(1), t=bytes_of("é"), outputs=["t"])
        assert list(only.outputs) == ["t"]
        kind, text = await server.refused(a=floats(1), outputs=["z"])
        assert kind is V2Status.INVALID
        assert "unexpected inference output 'z' for model 'svc'" in text

    served(Op("echo", RequestOp()), ask)


class Declared(RequestOp):
    input_tensors = (Tensor("x", "FP32", (-1,)),)


def test_a_pipeline_that_declares_is_held_to_it():
    async def ask(server):
        response = await server.infer(x=floats(1, 2))
        assert response.outputs["y"].dtype == np.float32
        assert response.outputs["y"].tolist() == [2.0, 4.0]
        kind, text = await server.refused(x=np.array([1]), id="r1")
        assert kind is V2Status.INVALID
        assert text.startswith("[request id: r1] inference input 'x' data-type is 'INT64'")
        _, text = await server.refused()
        assert text.startswith("[request id: <id_unknown>] expected 1 inputs but got 0")
        _, text = await server.refused(x=floats(1), outputs=["z"])
        assert "unexpected inference output 'z'" in text
        await settle()
        assert server.engine.executor.state().accepted == 1, "what does not fit never gets in"

    served(Double("double", Declared()), ask)


class Reads(RequestOp):
    """Counts words; the user's own."""

    def unpack_request_package(self, request):
        data, log_id, _, _ = super().unpack_request_package(request)
        if "words" not in data:
            raise ProductError(51, "no words")
        return {"pairs": dict(zip(request.key, request.value, strict=True)), **data}, log_id


def test_a_custom_request_op_receives_a_request():
    async def ask(server):
        response = await server.infer(words=bytes_of("a b"), n=floats(1, 2), id="17")
        seen = response.outputs["seen"].item()
        assert "'pairs': {'words': 'a b'}" in seen
        assert "'n': array([1., 2.], dtype=float32)" in seen
        assert response.outputs["log_id"].tolist() == [17]
        assert await server.refused(n=floats(1)) == (
            V2Status.INVALID,
            "in ensemble 'svc', [51] no words",
        )

    served(Show("show", Reads()), ask)


class Writes(ResponseOp):
    def pack_response_package(self, channeldata):
        response = super().pack_response_package(channeldata)
        response.key.append("packed")
        response.value.append("yes")
        return response


def test_a_response_op_of_the_users_own_makes_the_answer():
    async def ask(server):
        response = await server.infer(t=bytes_of("a"))
        assert {name: array.tolist() for name, array in response.outputs.items()} == {
            "t": ["a"],
            "packed": ["yes"],
        }

    echo = Op("echo", RequestOp())
    served(echo, ask, response_op=Writes(echo))


def test_an_error_in_the_graph_is_returned():
    class Breaks(Op):
        def preprocess(self, input_dicts, data_id, log_id):
            raise ValueError("boom")

    async def ask(server):
        kind, text = await server.refused(a=floats(1))
        assert kind is V2Status.INTERNAL
        assert "boom" in text

    served(Breaks("breaks", RequestOp()), ask)


def test_an_overloaded_server_is_unavailable():
    async def ask(server):
        server.engine.pools["double"].service_s = None
        first = server.engine.ask(x="1")
        await settle()
        kind, text = await server.refused(x=floats(1))
        assert kind is V2Status.UNAVAILABLE
        assert "overloaded" in text
        server.engine.pools["double"].release()
        await first

    served(double(), ask, worker_num=1, queue_size=0)


@pytest.mark.parametrize(
    "limits", [{"timeout_s": 1.0}, {"parameters": {"timeout": 1_000_000}, "timeout_s": 5.0}]
)
def test_a_request_that_is_late_is_unavailable(limits):
    async def ask(server):
        server.engine.pools["double"].service_s = 2.0
        kind, text = await server.refused(x=floats(1), **limits)
        assert kind is V2Status.UNAVAILABLE
        assert "deadline" in text
        assert (await server.infer(x=floats(1), parameters={"timeout": 0})).outputs

    served(double(), ask, timeout=60_000)


def test_a_timeout_is_ignored_by_a_server_without_one():
    async def ask(server):
        server.engine.pools["double"].service_s = 2.0
        assert (await server.infer(x=floats(1), parameters={"timeout": 30})).outputs

    served(double(), ask)


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"timeout": "1"}, "'timeout' must be an unsigned 64-bit integer, found '1'"),
        ({"timeout": True}, "'timeout'"),
        ({"timeout": -1}, "'timeout'"),
        ({"sequence_start": 1}, "'sequence_start' must be a boolean"),
        ({"sequence_id": 1.5}, "'sequence_id'"),
        ({"sequence_id": 2**64}, "'sequence_id' must be an unsigned 64-bit integer"),
        (
            {"sequence_id": 129 * "s"},
            "string correlation ID cannot exceed 128 characters: 'sequence_id' has 129",
        ),
        (
            {"triton_mine": 1},
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not "
            "be specified.",
        ),
        ({"triton_enable_empty_final_response": "yes"}, "are reserved for Triton usage"),
        ({"triton_enable_empty_final_response": 1}, "are reserved for Triton usage"),
    ],
)
def test_parameters_of_the_protocols_own_have_their_kinds(parameters, reason):
    async def ask(server):
        kind, text = await server.refused(x=floats(1), parameters=parameters)
        assert kind is V2Status.INVALID
        assert reason in text

    served(double(), ask)


@pytest.mark.parametrize("name", ["sequence_id", "headers", "binary_data_output", "triton_mine"])
def test_a_forwarded_header_with_a_reserved_name_is_refused(name):
    text = f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
    with pytest.raises(V2Error, match=text):
        info_of("", {}, {name: "1"})
    free = {"mine": "1", "triton_grpc_error": "true"}
    assert info_of("", {}, free).headers == free


def test_parameters_of_sequences_are_ignored_by_models_without_sequences():
    async def ask(server):
        parameters = {
            "sequence_id": "s",
            "sequence_start": True,
            "sequence_end": False,
            "priority": 1,
            "triton_enable_empty_final_response": True,
            "mine": 1.5,
        }
        assert (await server.infer(x=floats(1), parameters=parameters)).parameters == {}

    served(double(), ask)


def test_a_parameter_of_http_is_an_ordinary_one_elsewhere():
    fields = {"binary_data_output": 7, "timeout": 2_000_000}
    assert info_of("", fields, {}).parameters == fields, "as a gRPC message has it"
    assert timeout_of(fields) == 2.0


# Batches ------------------------------------------------------------------------------------


def test_the_samples_of_a_request_are_its_batch():
    class Batches(RequestOp):
        input_tensors = (Tensor("x", "FP32", (1,)),)
        max_batch_size = 3

    class Doubles(Double):
        output_tensors = ()

    async def ask(server):
        response = await server.infer(x=floats(1, 2).reshape(2, 1))
        assert response.outputs["y"].shape == (2, 1)
        _, text = await server.refused(x=np.zeros((4, 1), np.float32))
        assert "batch-size must be <= 3 for 'svc'" in text
        server.engine.journal.flush()
        assert [row["rows"] for row in server.engine.requests] == [2]
        assert server.models.metadata("svc")["inputs"][0]["shape"] == [-1, 1]

    served(Doubles("double", Batches()), ask)


# One Op -------------------------------------------------------------------------------------


def test_an_op_that_declares_its_inputs_runs_as_a_whole():
    async def ask(server):
        response = await server.infer("double", x=floats(1, 2))
        assert response.model_name == "double"
        assert response.outputs["y"].tolist() == [2.0, 4.0]
        assert server.engine.pools["show"].batches == [], "the others have nothing to do"
        server.engine.journal.flush()
        assert [row["target"] for row in server.engine.requests] == [0]

    served(Show("show", double()), ask)


class Joins(Op):
    input_tensors = (
        Tensor("y", "FP32", (-1,), source="left"),
        Tensor("y", "FP32", (-1,), source="right"),
        Tensor("t", "BYTES", (1,), source="right"),
    )

    def preprocess(self, input_dicts, data_id, log_id):
        return {"seen": str({key: sorted(value) for key, value in input_dicts.items()})}


def joined(**attributes):
    read = RequestOp()
    sides = [Double("left", read), Double("right", read)]
    kind = type("Joins", (Joins,), attributes)
    return kind("join", sides)


def test_an_op_with_several_inputs_receives_them_by_prefix():
    async def ask(server):
        inputs = {"left.y": floats(1), "right.y": floats(2), "right.t": bytes_of("a")}
        response = await server.infer("join", **inputs)
        assert response.outputs["seen"].item() == "{'left': ['y'], 'right': ['t', 'y']}"
        (_, _, step) = server.models.config("svc")["ensemble_scheduling"]["step"]
        assert step["input_map"] == {"left.y": "left.y", "right.y": "right.y", "right.t": "right.t"}

    served(joined(), ask)


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ([Tensor("y", "FP32")], "'join'.*'y' has no source.*'left', 'right'"),
        ([Tensor("y", "FP32", source="middle")], "source 'middle', but the Op reads 'left'"),
        ([Tensor("y", "FP32", source="left")] * 2, "'y' is there twice"),
    ],
)
@virtual
async def test_a_declaration_that_does_not_match_the_graph_is_refused_at_the_start(tensors, reason):
    with pytest.raises(ConfigError, match=reason):
        Server(joined(input_tensors=tensors))


def loaded():
    return Loaded("bow", RequestOp())


def test_an_op_without_declarations_has_the_interface_of_its_model():
    async def ask(server):
        server.engine.pools["bow"].note = NOTE
        response = await server.infer("bow", ids=np.array([[1, 2], [3, 4]]))
        assert response.outputs["score"].tolist() == [[3], [7]]
        metadata = server.models.metadata("bow")
        assert metadata["platform"] == "onnxruntime_onnx"
        assert metadata["inputs"] == [{"name": "ids", "datatype": "INT64", "shape": [-1, -1]}]
        assert metadata["outputs"] == [{"name": "score", "datatype": "INT64", "shape": [-1, 1]}]
        server.engine.journal.flush()
        assert [row["rows"] for row in server.engine.requests] == [2]

    served(loaded(), ask)


def test_an_op_without_an_interface_cannot_be_requested_alone():
    async def ask(server):
        kind, text = await server.refused("bow", ids=np.array([[1]]))
        assert kind is V2Status.INVALID
        assert "the Op 'bow' declare input_tensors" in text
        assert server.models.metadata("bow")["inputs"] == []

    served(loaded(), ask)


# Names and versions -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "version", "kind", "reason"),
    [
        ("nope", "", V2Status.NOT_FOUND, "Request for unknown model: 'nope' is not found"),
        ("svc", "9", V2Status.NOT_FOUND, "Request for unknown model: 'svc' version 9 is not found"),
        ("svc", "abc", V2Status.INVALID, "specified version string 'abc' (details: stol)"),
        ("svc", "-1", V2Status.INVALID, "invalid model version specified '-1' ,"),
    ],
)
def test_an_unknown_model_is_refused_with_the_same_error_everywhere(name, version, kind, reason):
    async def ask(server):
        result = [await server.refused(name, version=version)]
        models = server.models
        for describe in (models.metadata, models.config, models.views.raw_inputs):
            with pytest.raises(V2Error) as caught:
                describe(name, version)
            result.append((caught.value.kind, str(caught.value)))
        assert all(found_kind is kind for found_kind, _ in result)
        assert all(reason in text for _, text in result)
        assert not await server.models.is_model_ready(name, version)

    served(double(), ask)


def test_the_version_of_every_model_is_1_in_any_spelling():
    async def ask(server):
        for version in ("", "1", "01"):
            assert (await server.infer(x=floats(1), version=version)).model_version == "1"

    served(double(), ask)


def test_an_op_named_like_the_service_has_another_model_name():
    async def ask(server):
        assert (await server.infer("svc", x=floats(1))).outputs["y"].tolist() == [2.0]
        index = await server.models.index()
        assert [entry["name"] for entry in index] == ["svc", "svc.op"]

    served(Double("svc", RequestOp()), ask)


def test_a_pipeline_without_a_name_is_called_pipeline():
    async def ask(server):
        assert (await server.infer("pipeline", x=floats(1))).model_name == "pipeline"

    served(double(), ask, name=None)


# States -------------------------------------------------------------------------------------


@virtual
async def test_a_server_is_ready_when_the_workers_of_all_replicas_are():
    server = Server(double())
    models = server.models
    assert not await models.is_ready()
    assert not await models.is_model_ready("double")
    async with server.engine:
        assert await models.is_ready()
        assert await models.is_model_ready("double")
        up = (await server.whole())[0]
    server.snapshots = [up, *await Server.whole(Server(double()))]
    assert not await models.is_ready()
    assert not await models.is_model_ready("svc")
    assert not await models.is_model_ready("double")
    assert await models.index(only_ready=True) == []
    index = await models.index()
    states = {entry["name"]: entry["state"] for entry in index}
    assert states == {"svc": "UNAVAILABLE", "double": "UNAVAILABLE"}
    assert all("takes no requests" in entry["reason"] for entry in index)
    server.snapshots = []  # nobody answers
    assert not await models.is_ready()


def test_statistics_sum_all_replicas():
    async def ask(server):
        server.snapshots = await server.whole() * 2
        (svc,) = await server.models.statistics("svc")
        assert svc.success_count == 4
        assert [model.name for model in await server.models.statistics()] == ["double", "svc"]
        with pytest.raises(V2Error, match="requested model 'nope' is not available") as caught:
            await server.models.statistics("nope")
        assert caught.value.kind is V2Status.INVALID

    served(double(), ask)


def test_statistics_that_are_switched_off_are_not_claimed():
    async def ask(server):
        assert "statistics" not in server.models.server_metadata()["extensions"]
        with pytest.raises(V2Error) as caught:
            await server.models.statistics()
        assert caught.value.kind is V2Status.UNSUPPORTED

    served(double(), ask, has_statistics=False)


@pytest.mark.parametrize(
    ("datatype", "shape", "most", "expected"),
    [("BYTES", (1,), 0, (1,)), ("FP32", (-1, 3), 0, (-1, 3)), ("FP32", (3,), 2, (1, 3))],
)
def test_a_raw_request_is_for_models_with_one_input(datatype, shape, most, expected):
    tensors = [Tensor("x", datatype, shape)]
    read = type("R", (RequestOp,), {"input_tensors": tensors, "max_batch_size": most})

    async def ask(server):
        (raw,) = server.models.views.raw_inputs("svc")
        assert (raw.name, raw.datatype, raw.shape) == ("x", datatype, expected)
        assert server.models.views.raw_inputs("echo") is None

    served(Op("echo", read()), ask)
