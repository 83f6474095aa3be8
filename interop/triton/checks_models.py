"""Checks of what there is, of inference, errors and statistics; without and with asyncio."""

from __future__ import annotations

import asyncio
import queue
from typing import Any

import numpy as np
import tritonclient.grpc.aio as v2_grpc_aio
import tritonclient.http.aio as v2_http_aio
from way import DURATIONS, Way, check, refused

NO_GOOD = 2**31 - 1  # what the Op "sum" refuses


def pair(rows: int = 1) -> dict[str, np.ndarray]:
    numbers = np.arange(16 * rows, dtype=np.int32).reshape(rows, 16)
    return {"A": numbers, "B": np.full((rows, 16), 5, np.int32)}


# --- what there is --------------------------------------------------------------------------


@check("numbers")
def the_server_and_its_models_are_ready(way: Way) -> None:
    assert way.client.is_server_live()
    assert way.client.is_server_ready()
    assert way.client.is_model_ready("numbers")
    assert way.client.is_model_ready("sum", "1")
    assert not way.client.is_model_ready("nope")
    assert not way.client.is_model_ready("sum", "2")


@check("numbers")
def the_server_and_its_models_are_described(way: Way) -> None:
    assert "statistics" in way.ask("get_server_metadata")["extensions"]
    metadata = way.ask("get_model_metadata", "numbers")
    assert metadata["name"] == "numbers"
    assert metadata["versions"] == ["1"]
    described = [
        (tensor["name"], tensor["datatype"], [int(size) for size in tensor["shape"]])
        for tensor in (*metadata["inputs"], *metadata["outputs"])
    ]
    assert described == [(name, "INT32", [-1, 16]) for name in ("A", "B", "SUM", "DIFFERENCE")]


@check("numbers")
def the_pipeline_is_an_ensemble_of_its_ops(way: Way) -> None:
    config = way.ask("get_model_config", "numbers")
    config = config.get("config", config)
    assert (config["platform"], config["max_batch_size"]) == ("ensemble", 8)
    steps = [step["model_name"] for step in config["ensemble_scheduling"]["step"]]
    assert sorted(steps) == ["both", "difference", "sum"]
    for step in steps:
        assert way.ask("get_model_config", step)


@check("numbers")
def the_repository_lists_all_models(way: Way) -> None:
    index = way.ask("get_model_repository_index")
    models = index if isinstance(index, list) else index["models"]
    assert [(model["name"], model["state"]) for model in models] == [
        (name, "READY") for name in ("both", "difference", "numbers", "sum")
    ]
    with refused("not allowed"):
        way.client.load_model("sum")
    with refused("not allowed"):
        way.client.unload_model("sum")


# --- inference ------------------------------------------------------------------------------


@check("numbers")
def a_batch_goes_through_the_pipeline(way: Way) -> None:
    for rows in (1, 3, 8):
        result = way.infer("numbers", pair(rows), request_id="7")
        assert result.as_numpy("SUM").tolist() == (pair(rows)["A"] + 5).tolist()
        assert result.as_numpy("DIFFERENCE").tolist() == (pair(rows)["A"] - 5).tolist()
        response = result.get_response()
        found = response if isinstance(response, dict) else {"id": response.id}
        assert found["id"] == "7"


@check("numbers")
def one_op_answers_alone(way: Way) -> None:
    assert way.infer("sum", pair(2)).as_numpy("SUM").tolist() == (pair(2)["A"] + 5).tolist()
    inputs = {"sum.SUM": pair()["A"], "difference.DIFFERENCE": pair()["B"]}
    assert way.infer("both", inputs).as_numpy("SUM").tolist() == pair()["A"].tolist()


@check("numbers")
def only_the_outputs_that_are_asked_for_come(way: Way) -> None:
    result = way.infer("numbers", pair(), "DIFFERENCE")
    assert result.as_numpy("SUM") is None
    assert result.as_numpy("DIFFERENCE").tolist() == (pair()["A"] - 5).tolist()


@check("numbers")
def calls_side_by_side_get_their_own_answers(way: Way) -> None:
    if way.protocol == "http":
        inputs = [
            [way.input(name, array + number) for name, array in pair().items()]
            for number in range(50)
        ]
        calls = [way.client.async_infer("numbers", tensors) for tensors in inputs]
        sums = [call.get_result().as_numpy("SUM")[0, 0] for call in calls]
    else:
        answers: queue.Queue[Any] = queue.Queue()
        for number in range(50):
            tensors = [way.input(name, array + number) for name, array in pair().items()]
            way.client.async_infer(
                "numbers", tensors, lambda result, error: answers.put(error or result)
            )
        sums = sorted(answers.get(timeout=20).as_numpy("SUM")[0, 0] for _ in range(50))
    assert sums == [5 + 2 * number for number in range(50)]


@check("numbers", ("grpc",))
def a_stream_answers_in_order_and_outlives_errors(way: Way) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    way.client.start_stream(lambda result, error: answers.put(error or result))
    for number in range(20):
        model = "nope" if number == 10 else "numbers"
        tensors = [way.input(name, array + number) for name, array in pair().items()]
        way.client.async_stream_infer(model, tensors, request_id=str(number))
    found = [answers.get(timeout=20) for _ in range(20)]
    way.client.stop_stream()
    assert "unknown model" in str(found.pop(10))
    numbers = [number for number in range(20) if number != 10]
    assert [result.get_response().id for result in found] == [str(number) for number in numbers]
    sums = [result.as_numpy("SUM")[0, 0] for result in found]
    assert sums == [5 + 2 * number for number in numbers]


@check("parts", ("grpc",))
def a_model_that_answers_in_parts_is_streamed(way: Way) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    way.client.start_stream(lambda result, error: answers.put(error or result))
    for number in range(5):
        tensors = [way.input("N", np.array([number], np.int32))]
        way.client.async_stream_infer(
            "count", tensors, request_id=str(number), enable_empty_final_response=True
        )
    found: dict[str, list[int]] = {str(number): [] for number in range(5)}
    open_ids = set(found)
    while open_ids:
        result = answers.get(timeout=20)
        response = result.get_response()
        if response.parameters["triton_final_response"].bool_param:
            open_ids.remove(response.id)
        else:
            found[response.id] += result.as_numpy("NUMBER").tolist()
    way.client.stop_stream()
    assert found == {str(number): list(range(number)) for number in range(5)}


@check("parts", ("grpc",))
def a_stream_that_is_cancelled_ends(way: Way) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    way.client.start_stream(lambda result, error: answers.put(error or result))
    way.client.async_stream_infer("count", [way.input("N", np.array([10**9], np.int32))])
    assert answers.get(timeout=20).as_numpy("NUMBER").tolist() == [0]
    way.client.stop_stream(cancel_requests=True)
    assert way.client.is_server_ready()


@check("parts")
def a_unary_call_of_a_model_that_answers_in_parts_is_refused(way: Way) -> None:
    config = way.ask("get_model_config", "count")
    policy = config.get("config", config)["model_transaction_policy"]
    assert policy == {"decoupled": True}
    with refused("doesn't support models with decoupled transaction policy"):
        way.infer("count", {"N": np.array([1], np.int32)})


@check("numbers")
def packed_requests_and_answers_are_understood(way: Way) -> None:
    for algorithm in ("gzip", "deflate"):
        if way.protocol == "grpc":
            more = {"compression_algorithm": algorithm}
        else:
            more = {
                "request_compression_algorithm": algorithm,
                "response_compression_algorithm": algorithm,
            }
        result = way.infer("numbers", pair(8), **more)
        assert result.as_numpy("SUM").tolist() == (pair(8)["A"] + 5).tolist()


# --- errors ---------------------------------------------------------------------------------


@check("numbers")
def what_does_not_fit_is_refused(way: Way) -> None:
    invalid = ("400", "INVALID_ARGUMENT")
    with refused("Request for unknown model: 'nope' is not found", "404", "NOT_FOUND"):
        way.infer("nope", pair())
    with refused("'sum' version 9 is not found", "404", "NOT_FOUND"):
        way.infer("sum", pair(), model_version="9")
    with refused("inference request batch-size must be <= 8 for 'numbers'", *invalid):
        way.infer("numbers", pair(9))
    with refused("unexpected inference output 'ZZ' for model 'numbers'", *invalid):
        way.infer("numbers", pair(), "ZZ")
    with refused("data-type is 'FP32'", *invalid):
        way.infer("numbers", {name: array.astype(np.float32) for name, array in pair().items()})
    with refused("unexpected shape for input 'A'", *invalid):
        way.infer("numbers", {**pair(), "A": np.ones((1, 15), np.int32)})
    with refused("expected 2 inputs but got 1 inputs", *invalid):
        way.infer("numbers", {"A": pair()["A"]})
    with refused("expected 2 inputs but got 3 inputs", *invalid):
        way.infer("numbers", {**pair(), "C": pair()["A"]})
    with refused("unexpected inference input 'C'", *invalid):
        way.infer("numbers", {"A": pair()["A"], "C": pair()["A"]})
    with refused("[request id: <id_unknown>] input 'A' already exists in request", *invalid):
        way.client.infer("numbers", [way.input("A", pair()["A"])] * 2)
    with refused("in ensemble 'numbers', [51] this number is not allowed", *invalid):
        way.infer("numbers", {**pair(), "A": np.full((1, 16), NO_GOOD, np.int32)})


@check("numbers")
def an_output_that_is_asked_for_twice_comes_once(way: Way) -> None:
    outputs = [way.module.InferRequestedOutput("SUM")] * 2
    tensors = [way.input(name, array) for name, array in pair().items()]
    result = way.client.infer("numbers", tensors, outputs=outputs)
    assert result.as_numpy("SUM").tolist() == (pair()["A"] + 5).tolist()
    response = result.get_response(**({} if way.protocol == "http" else {"as_json": True}))
    assert [output["name"] for output in response["outputs"]] == ["SUM"]


@check("numbers")
def an_op_is_a_model_of_the_python_backend(way: Way) -> None:
    assert way.ask("get_model_metadata", "sum")["platform"] == "python"
    config = way.ask("get_model_config", "sum")
    config = config.get("config", config)
    assert (config.get("platform", ""), config["backend"]) == ("", "python")


@check("numbers")
def descriptions_of_what_is_not_there_are_refused(way: Way) -> None:
    with refused("Request for unknown model: 'nope' is not found", "404", "NOT_FOUND"):
        way.ask("get_model_metadata", "nope")
    with refused("Request for unknown model: 'nope' is not found", "404", "NOT_FOUND"):
        way.ask("get_model_config", "nope")
    with refused("requested model 'nope' is not available", "400", "INVALID_ARGUMENT"):
        way.ask("get_inference_statistics", "nope")
    with refused("requested model version is not available for model 'sum'"):
        way.ask("get_inference_statistics", "sum", "9")


@check("numbers")
def a_call_without_time_fails(way: Way) -> None:
    with refused("deadline passed", "503", "UNAVAILABLE"):
        way.infer("numbers", pair(), timeout=1)


# --- statistics -----------------------------------------------------------------------------


@check("numbers")
def requests_are_counted_where_they_went(way: Way) -> None:
    before = {name: way.counters(name) for name in ("numbers", "sum", "difference", "both")}
    for _ in range(3):
        way.infer("numbers", pair(2))
    way.infer("sum", pair(4))
    with refused("this number is not allowed"):
        way.infer("numbers", {**pair(), "A": np.full((1, 16), NO_GOOD, np.int32)})
    after = {name: way.counters(name) for name in before}
    moved = {
        name: {key: after[name][key] - before[name][key] for key in before[name]} for name in before
    }
    assert [moved["numbers"][key] for key in ("success", "fail", "inferences")] == [3, 1, 6]
    assert [moved["both"][key] for key in ("success", "fail")] == [3, 0]
    assert [moved["sum"][key] for key in ("success", "fail")] == [4, 1]
    for counts in moved.values():
        assert counts["queue"] == counts["compute_infer"] == counts["success"]


@check("numbers")
def all_models_are_counted_in_order(way: Way) -> None:
    models = way.ask("get_inference_statistics")["model_stats"]
    names = [(model["name"], model["version"]) for model in models]
    assert names == [(name, "1") for name in ("both", "difference", "numbers", "sum")]
    if way.protocol == "http":
        for model in models:
            assert set(model["inference_stats"]) == set(DURATIONS.split())
            assert model["response_stats"] == {}


# --- asyncio --------------------------------------------------------------------------------


@check("numbers")
def the_asyncio_clients_are_answered(way: Way) -> None:
    module, port = (
        (v2_http_aio, way.ports[0]) if way.protocol == "http" else (v2_grpc_aio, way.ports[1])
    )
    tensors = [way.input(name, array) for name, array in pair().items()]

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
            if way.protocol == "grpc":
                await stream(client)

    async def stream(client: Any) -> None:
        async def requests() -> Any:
            for number in range(5):
                yield {"model_name": "numbers", "inputs": tensors, "request_id": str(number)}

        found = [answer async for answer in client.stream_infer(requests())]
        assert [error for _, error in found] == [None] * 5
        assert [result.get_response().id for result, _ in found] == list("01234")

    asyncio.run(ask())
