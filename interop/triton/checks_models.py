"""Checks of what there is, of inference, errors and statistics; without and with asyncio."""

from __future__ import annotations

import asyncio
import queue
from typing import Any

import numpy as np
import tritonclient.grpc.aio as v2_grpc_aio
import tritonclient.http.aio as v2_http_aio
from caller import DURATIONS, Caller, check, refused

NO_GOOD = 2**31 - 1  # what the Op "sum" refuses


def pair(rows: int = 1) -> dict[str, np.ndarray]:
    numbers = np.arange(16 * rows, dtype=np.int32).reshape(rows, 16)
    return {"A": numbers, "B": np.full((rows, 16), 5, np.int32)}


# --- what there is --------------------------------------------------------------------------


@check("numbers")
def the_server_and_its_models_are_ready(caller: Caller) -> None:
    assert caller.client.is_server_live()
    assert caller.client.is_server_ready()
    assert caller.client.is_model_ready("numbers")
    assert caller.client.is_model_ready("sum", "1")
    assert not caller.client.is_model_ready("nope")
    assert not caller.client.is_model_ready("sum", "2")


@check("numbers")
def the_server_and_its_models_are_described(caller: Caller) -> None:
    assert "statistics" in caller.ask("get_server_metadata")["extensions"]
    metadata = caller.ask("get_model_metadata", "numbers")
    assert metadata["name"] == "numbers"
    assert metadata["versions"] == ["1"]
    described = [
        (tensor["name"], tensor["datatype"], [int(size) for size in tensor["shape"]])
        for tensor in (*metadata["inputs"], *metadata["outputs"])
    ]
    assert described == [(name, "INT32", [-1, 16]) for name in ("A", "B", "SUM", "DIFFERENCE")]


@check("numbers")
def the_pipeline_is_an_ensemble_of_its_ops(caller: Caller) -> None:
    config = caller.ask("get_model_config", "numbers")
    config = config.get("config", config)
    assert (config["platform"], config["max_batch_size"]) == ("ensemble", 8)
    steps = [step["model_name"] for step in config["ensemble_scheduling"]["step"]]
    assert sorted(steps) == ["both", "difference", "sum"]
    for step in steps:
        assert caller.ask("get_model_config", step)


@check("numbers")
def the_repository_lists_all_models(caller: Caller) -> None:
    index = caller.ask("get_model_repository_index")
    models = index if isinstance(index, list) else index["models"]
    assert [(model["name"], model["state"]) for model in models] == [
        (name, "READY") for name in ("both", "difference", "numbers", "sum")
    ]
    with refused("not allowed"):
        caller.client.load_model("sum")
    with refused("not allowed"):
        caller.client.unload_model("sum")


# --- inference ------------------------------------------------------------------------------


@check("numbers")
def a_batch_passes_the_pipeline(caller: Caller) -> None:
    for rows in (1, 3, 8):
        result = caller.infer("numbers", pair(rows), request_id="7")
        assert result.as_numpy("SUM").tolist() == (pair(rows)["A"] + 5).tolist()
        assert result.as_numpy("DIFFERENCE").tolist() == (pair(rows)["A"] - 5).tolist()
        response = result.get_response()
        fields = response if isinstance(response, dict) else {"id": response.id}
        assert fields["id"] == "7"


@check("numbers")
def one_op_answers_alone(caller: Caller) -> None:
    assert caller.infer("sum", pair(2)).as_numpy("SUM").tolist() == (pair(2)["A"] + 5).tolist()
    inputs = {"sum.SUM": pair()["A"], "difference.DIFFERENCE": pair()["B"]}
    assert caller.infer("both", inputs).as_numpy("SUM").tolist() == pair()["A"].tolist()


@check("numbers")
def only_the_outputs_that_are_asked_for_come(caller: Caller) -> None:
    result = caller.infer("numbers", pair(), "DIFFERENCE")
    assert result.as_numpy("SUM") is None
    assert result.as_numpy("DIFFERENCE").tolist() == (pair()["A"] - 5).tolist()


@check("numbers")
def calls_side_by_side_get_their_own_answers(caller: Caller) -> None:
    if caller.protocol == "http":
        inputs = [
            [caller.input(name, array + number) for name, array in pair().items()]
            for number in range(50)
        ]
        calls = [caller.client.async_infer("numbers", tensors) for tensors in inputs]
        sums = [call.get_result().as_numpy("SUM")[0, 0] for call in calls]
    else:
        answers: queue.Queue[Any] = queue.Queue()
        for number in range(50):
            tensors = [caller.input(name, array + number) for name, array in pair().items()]
            caller.client.async_infer(
                "numbers", tensors, lambda result, error: answers.put(error or result)
            )
        sums = sorted(answers.get(timeout=20).as_numpy("SUM")[0, 0] for _ in range(50))
    assert sums == [5 + 2 * number for number in range(50)]


@check("numbers", ("grpc",))
def a_stream_answers_in_order_and_outlives_errors(caller: Caller) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    caller.client.start_stream(lambda result, error: answers.put(error or result))
    for number in range(20):
        model = "nope" if number == 10 else "numbers"
        tensors = [caller.input(name, array + number) for name, array in pair().items()]
        caller.client.async_stream_infer(model, tensors, request_id=str(number))
    received = [answers.get(timeout=20) for _ in range(20)]
    caller.client.stop_stream()
    assert "unknown model" in str(received.pop(10))
    numbers = [number for number in range(20) if number != 10]
    assert [result.get_response().id for result in received] == [str(number) for number in numbers]
    sums = [result.as_numpy("SUM")[0, 0] for result in received]
    assert sums == [5 + 2 * number for number in numbers]


@check("parts", ("grpc",))
def a_model_that_answers_in_parts_is_streamed(caller: Caller) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    caller.client.start_stream(lambda result, error: answers.put(error or result))
    for number in range(5):
        tensors = [caller.input("N", np.array([number], np.int32))]
        caller.client.async_stream_infer(
            "count", tensors, request_id=str(number), enable_empty_final_response=True
        )
    received: dict[str, list[int]] = {str(number): [] for number in range(5)}
    open_ids = set(received)
    while open_ids:
        result = answers.get(timeout=20)
        response = result.get_response()
        if response.parameters["triton_final_response"].bool_param:
            open_ids.remove(response.id)
        else:
            received[response.id] += result.as_numpy("NUMBER").tolist()
    caller.client.stop_stream()
    assert received == {str(number): list(range(number)) for number in range(5)}


@check("parts", ("grpc",))
def a_stream_that_is_cancelled_ends(caller: Caller) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    caller.client.start_stream(lambda result, error: answers.put(error or result))
    caller.client.async_stream_infer("count", [caller.input("N", np.array([10**9], np.int32))])
    assert answers.get(timeout=20).as_numpy("NUMBER").tolist() == [0]
    caller.client.stop_stream(cancel_requests=True)
    assert caller.client.is_server_ready()


@check("parts")
def a_unary_call_of_a_model_that_answers_in_parts_is_refused(caller: Caller) -> None:
    config = caller.ask("get_model_config", "count")
    policy = config.get("config", config)["model_transaction_policy"]
    assert policy == {"decoupled": True}
    with refused("doesn't support models with decoupled transaction policy"):
        caller.infer("count", {"N": np.array([1], np.int32)})


@check("numbers")
def packed_requests_and_answers_are_understood(caller: Caller) -> None:
    for algorithm in ("gzip", "deflate"):
        if caller.protocol == "grpc":
            more = {"compression_algorithm": algorithm}
        else:
            more = {
                "request_compression_algorithm": algorithm,
                "response_compression_algorithm": algorithm,
            }
        result = caller.infer("numbers", pair(8), **more)
        assert result.as_numpy("SUM").tolist() == (pair(8)["A"] + 5).tolist()


# --- errors ---------------------------------------------------------------------------------


@check("numbers")
def what_does_not_fit_is_refused(caller: Caller) -> None:
    invalid = ("400", "INVALID_ARGUMENT")
    with refused("Request for unknown model: 'nope' is not found", "404", "NOT_FOUND"):
        caller.infer("nope", pair())
    with refused("'sum' version 9 is not found", "404", "NOT_FOUND"):
        caller.infer("sum", pair(), model_version="9")
    with refused("inference request batch-size must be <= 8 for 'numbers'", *invalid):
        caller.infer("numbers", pair(9))
    with refused("unexpected inference output 'ZZ' for model 'numbers'", *invalid):
        caller.infer("numbers", pair(), "ZZ")
    with refused("data-type is 'FP32'", *invalid):
        caller.infer("numbers", {name: array.astype(np.float32) for name, array in pair().items()})
    with refused("unexpected shape for input 'A'", *invalid):
        caller.infer("numbers", {**pair(), "A": np.ones((1, 15), np.int32)})
    with refused("expected 2 inputs but got 1 inputs", *invalid):
        caller.infer("numbers", {"A": pair()["A"]})
    with refused("expected 2 inputs but got 3 inputs", *invalid):
        caller.infer("numbers", {**pair(), "C": pair()["A"]})
    with refused("unexpected inference input 'C'", *invalid):
        caller.infer("numbers", {"A": pair()["A"], "C": pair()["A"]})
    with refused("[request id: <id_unknown>] input 'A' already exists in request", *invalid):
        caller.client.infer("numbers", [caller.input("A", pair()["A"])] * 2)
    with refused("[request id: <id_unknown>] output 'SUM' already exists in request", *invalid):
        tensors = [caller.input(name, array) for name, array in pair().items()]
        outputs = [caller.module.InferRequestedOutput("SUM")] * 2
        caller.client.infer("numbers", tensors, outputs=outputs)
    with refused("in ensemble 'numbers', [51] this number is not allowed", *invalid):
        caller.infer("numbers", {**pair(), "A": np.full((1, 16), NO_GOOD, np.int32)})


@check("numbers")
def an_op_is_a_model_of_the_python_backend(caller: Caller) -> None:
    assert caller.ask("get_model_metadata", "sum")["platform"] == "python"
    config = caller.ask("get_model_config", "sum")
    config = config.get("config", config)
    assert (config.get("platform", ""), config["backend"]) == ("", "python")


@check("numbers")
def descriptions_of_what_is_not_there_are_refused(caller: Caller) -> None:
    with refused("Request for unknown model: 'nope' is not found", "404", "NOT_FOUND"):
        caller.ask("get_model_metadata", "nope")
    with refused("Request for unknown model: 'nope' is not found", "404", "NOT_FOUND"):
        caller.ask("get_model_config", "nope")
    with refused("requested model 'nope' is not available", "400", "INVALID_ARGUMENT"):
        caller.ask("get_inference_statistics", "nope")
    with refused("requested model version is not available for model 'sum'"):
        caller.ask("get_inference_statistics", "sum", "9")


@check("numbers")
def a_call_without_time_fails(caller: Caller) -> None:
    with refused("deadline passed", "503", "UNAVAILABLE"):
        caller.infer("numbers", pair(), timeout=1)


# --- statistics -----------------------------------------------------------------------------


@check("numbers")
def requests_are_counted_where_they_went(caller: Caller) -> None:
    before = {name: caller.counters(name) for name in ("numbers", "sum", "difference", "both")}
    for _ in range(3):
        caller.infer("numbers", pair(2))
    caller.infer("sum", pair(4))
    with refused("this number is not allowed"):
        caller.infer("numbers", {**pair(), "A": np.full((1, 16), NO_GOOD, np.int32)})
    after = {name: caller.counters(name) for name in before}
    moved = {
        name: {key: after[name][key] - before[name][key] for key in before[name]} for name in before
    }
    assert [moved["numbers"][key] for key in ("success", "fail", "inferences")] == [3, 1, 6]
    assert [moved["both"][key] for key in ("success", "fail")] == [3, 0]
    assert [moved["sum"][key] for key in ("success", "fail")] == [4, 1]
    for counts in moved.values():
        assert counts["queue"] == counts["compute_infer"] == counts["success"]


@check("numbers")
def all_models_are_counted_in_order(caller: Caller) -> None:
    models = caller.ask("get_inference_statistics")["model_stats"]
    names = [(model["name"], model["version"]) for model in models]
    assert names == [(name, "1") for name in ("both", "difference", "numbers", "sum")]
    if caller.protocol == "http":
        for model in models:
            assert set(model["inference_stats"]) == set(DURATIONS.split())
            assert model["response_stats"] == {}


# --- asyncio --------------------------------------------------------------------------------


@check("numbers")
def the_asyncio_clients_are_answered(caller: Caller) -> None:
    module, port = (
        (v2_http_aio, caller.ports[0])
        if caller.protocol == "http"
        else (v2_grpc_aio, caller.ports[1])
    )
    tensors = [caller.input(name, array) for name, array in pair().items()]

    async def ask() -> None:
        async with module.InferenceServerClient(f"127.0.0.1:{port}") as client:
            assert await client.is_server_ready()
            assert await client.get_model_metadata("numbers")
            assert await client.get_model_config("numbers")
            assert await client.get_inference_statistics("sum")
            results = await asyncio.gather(*[client.infer("numbers", tensors) for _ in range(20)])
            for result in results:
                assert result.as_numpy("SUM").tolist() == (pair()["A"] + 5).tolist()
            with refused("unknown model"):
                await client.infer("nope", tensors)
            if caller.protocol == "grpc":
                await stream(client)

    async def stream(client: Any) -> None:
        async def requests() -> Any:
            for number in range(5):
                yield {"model_name": "numbers", "inputs": tensors, "request_id": str(number)}

        received = [answer async for answer in client.stream_infer(requests())]
        assert [error for _, error in received] == [None] * 5
        assert [result.get_response().id for result, _ in received] == list("01234")

    asyncio.run(ask())
