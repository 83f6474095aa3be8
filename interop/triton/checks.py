"""Triton's own Python client, as it is released, asks our servers: a line a check, 1 on failure.

Runs in a virtual environment without our library: `python checks.py NAME=HTTP,GRPC ...`, where
NAME is `numbers`, `echo` or `imdb`, and the others are ports.
"""

from __future__ import annotations

import asyncio
import json
import queue
import sys
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tritonclient.grpc as v2_grpc
import tritonclient.grpc.aio as v2_grpc_aio
import tritonclient.http as v2_http
import tritonclient.http.aio as v2_http_aio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

NO_GOOD = 2**31 - 1
DURATIONS = "success fail queue compute_input compute_infer compute_output cache_hit cache_miss"
REVIEW = "A wonderful film: warm, funny and beautifully acted. I loved every minute."
VALUES: dict[str, Any] = {
    "bool": [[True, False]],
    "int8": [[-128, 127]],
    "int16": [[-(2**15), 2**15 - 1]],
    "int32": [[-(2**31), 2**31 - 1]],
    "int64": [[-(2**63), 2**63 - 1]],
    "uint8": [[0, 255]],
    "uint16": [[0, 2**16 - 1]],
    "uint32": [[0, 2**32 - 1]],
    "uint64": [[0, 2**64 - 1]],
    "float16": [[0.5, -65504.0]],
    "float32": [[0.1, -3.4e38, np.nan, np.inf]],
    "float64": [[0.1, -1.7e308, np.nan, -np.inf]],
}


@dataclass
class Way:
    """A server, and one of the two protocols to ask it by."""

    protocol: str
    module: Any
    client: Any
    ports: tuple[int, int]

    def ask(self, method: str, *arguments: Any) -> Any:
        """What the client's method answers, as JSON."""
        more = {"as_json": True} if self.protocol == "grpc" else {}
        return getattr(self.client, method)(*arguments, **more)

    def input(self, name: str, array: np.ndarray, **how: bool) -> Any:
        tensor = self.module.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array, **how)
        return tensor

    def infer(self, model: str, inputs: dict[str, np.ndarray], *wanted: str, **more: Any) -> Any:
        tensors = [self.input(name, array) for name, array in inputs.items()]
        outputs = [self.module.InferRequestedOutput(name) for name in wanted] or None
        return self.client.infer(model, tensors, outputs=outputs, **more)

    def counters(self, model: str) -> dict[str, int]:
        """The counts of one model that a request moves."""
        (entry,) = self.ask("get_inference_statistics", model)["model_stats"]
        stats = entry.get("inference_stats", {})
        counts = {name: int(stats.get(name, {}).get("count", 0)) for name in DURATIONS.split()}
        return {**counts, "inferences": int(entry.get("inference_count", 0))}


Check = Callable[[Way], None]
CHECKS: dict[str, list[Check]] = {"numbers": [], "echo": [], "imdb": []}


def check(server: str) -> Callable[[Check], Check]:
    def add(function: Check) -> Check:
        CHECKS[server].append(function)
        return function

    return add


@contextmanager
def refused(text: str, *statuses: str) -> Iterator[None]:
    """The block fails with `text`, and with one of the statuses."""
    try:
        yield
    except InferenceServerException as error:
        assert text in str(error), f"{text!r} is not in {error}"
        status = (error.status() or "").removeprefix("StatusCode.")
        assert not statuses or status in statuses, f"{status} is none of {statuses}"
    else:
        raise AssertionError(f"not refused: {text}")


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


@check("numbers")
def a_stream_answers_in_order_and_outlives_errors(way: Way) -> None:
    if way.protocol == "http":
        return
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


@check("echo")
def every_datatype_comes_back_as_it_was(way: Way) -> None:
    arrays = {name: np.array(values, name) for name, values in VALUES.items()}
    arrays["text"] = np.array([["a", "", "文字 🙂"]], object)
    arrays["bytes"] = np.array([[b"\xff\x00", b""]], object)
    arrays["big"] = np.random.default_rng(5).random((1000, 1000), np.float32)
    arrays["none"] = np.empty((0, 3), np.int32)
    result = way.infer("echo", arrays)
    for name, array in arrays.items():
        found = result.as_numpy(name)
        if name == "text":
            array = np.array([[item.encode() for item in array[0]]], object)
        assert found.shape == array.shape, name
        np.testing.assert_array_equal(found, array, name)


@check("echo")
def every_datatype_but_fp16_goes_as_json_too(way: Way) -> None:
    if way.protocol == "grpc":
        return
    arrays = {name: np.array(values, name) for name, values in VALUES.items()}
    arrays["text"] = np.array([["a", "", "文字 🙂"]], object)
    del arrays["float16"]
    tensors = [way.input(name, array, binary_data=False) for name, array in arrays.items()]
    for is_binary in (False, True):
        outputs = [v2_http.InferRequestedOutput(name, binary_data=is_binary) for name in arrays]
        result = way.client.infer("echo", tensors, outputs=outputs)
        for name, array in arrays.items():
            found = result.as_numpy(name)
            if name == "text" and is_binary:
                array = np.array([[item.encode() for item in array[0]]], object)
            np.testing.assert_array_equal(found, array, name)


@check("echo")
def bfloat16_comes_back_as_it_was(way: Way) -> None:
    tensor = way.module.InferInput("x", [1, 2], "BF16")
    tensor.set_data_from_numpy(np.array([[0.5, -2.0]], np.float32))
    result = way.client.infer("echo", [tensor])
    assert result.as_numpy("x").tolist() == [[0.5, -2.0]]


@check("echo")
def what_is_no_json_is_told(way: Way) -> None:
    if way.protocol == "grpc":
        return
    half = way.input("x", np.ones((1, 2), np.float16))
    output = v2_http.InferRequestedOutput("x", binary_data=False)
    with refused("FP16 has no JSON form"):
        way.client.infer("echo", [half], outputs=[output])


@check("echo")
def parameters_of_ones_own_are_taken_and_reserved_ones_refused(way: Way) -> None:
    inputs = {"x": np.ones((1, 2), np.int8)}
    way.infer("echo", inputs, parameters={"a": 1, "b": "text", "c": True})
    with refused("reserved", "400", "INVALID_ARGUMENT"):
        way.infer("echo", inputs, parameters={"triton_no_such": 1})


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
    with refused("unexpected inference input 'C'", *invalid):
        way.infer("numbers", {**pair(), "C": pair()["A"]})


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
    with refused("", "DEADLINE_EXCEEDED", "504", "503", "500", "400"):
        way.infer("numbers", pair(), timeout=1)


# --- statistics -----------------------------------------------------------------------------


@check("numbers")
def requests_are_counted_where_they_went(way: Way) -> None:
    before = {name: way.counters(name) for name in ("numbers", "sum", "difference", "both")}
    for _ in range(3):
        way.infer("numbers", pair(2))
    way.infer("sum", pair(4))
    with refused("this number is no good"):
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


# --- the example ----------------------------------------------------------------------------


@check("imdb")
def a_review_is_judged(way: Way) -> None:
    words = np.array([REVIEW], object)
    result = way.infer("imdb", {"words": words})
    scores = [float(result.as_numpy(name)[0]) for name in ("prediction", "bow", "cnn")]
    assert scores[0] > 0.5
    assert abs(scores[0] - (scores[1] + scores[2]) / 2) < 1e-6


@check("imdb")
def its_models_answer_alone(way: Way) -> None:
    words = np.zeros((3, 256), np.int64)
    for model in ("bow", "cnn"):
        (entry,) = way.ask("get_model_metadata", model)["inputs"]
        assert (entry["name"], entry["datatype"]) == ("words", "INT64")
        result = way.infer(model, {"words": words})
        assert result.as_numpy("prediction").shape == (3, 2)


@check("imdb")
def a_model_of_one_input_takes_data_alone(way: Way) -> None:
    if way.protocol == "grpc":
        return
    request = urllib.request.Request(
        f"http://127.0.0.1:{way.ports[0]}/v2/models/bow/infer",
        np.zeros(256, np.int64).tobytes(),
        {"Inference-Header-Content-Length": "0"},
    )
    with urllib.request.urlopen(request) as answer:
        length = int(answer.headers["Inference-Header-Content-Length"])
        body = answer.read()
    (output,) = json.loads(body[:length])["outputs"]
    assert (output["name"], output["shape"]) == ("prediction", [1, 2])
    assert len(body) - length == output["parameters"]["binary_data_size"] == 8


@check("imdb")
def both_models_are_counted_for_each_review(way: Way) -> None:
    models = ("imdb", "bow", "cnn", "combine")
    before = {name: way.counters(name)["success"] for name in models}
    for _ in range(5):
        way.infer("imdb", {"words": np.array([REVIEW], object)})
    assert [way.counters(name)["success"] - before[name] for name in models] == [5] * 4


# --- all of it ------------------------------------------------------------------------------


def failures(server: str, ways: list[Way]) -> int:
    """How many checks of a server fail."""
    count = 0
    for function in CHECKS[server]:
        for way in ways:
            name = f"tritonclient {way.protocol}: {server}: {function.__name__.replace('_', ' ')}"
            try:
                function(way)
            except Exception:  # whatever a check raises, the others are run
                count += 1
                print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
            else:
                print(f"ok {name}", flush=True)
    return count


def main() -> int:
    count = 0
    for argument in sys.argv[1:]:
        server, _, given = argument.partition("=")
        http_port, grpc_port = map(int, given.split(","))
        ports = (http_port, grpc_port)
        with (
            v2_http.InferenceServerClient(f"127.0.0.1:{http_port}", concurrency=8) as http,
            v2_grpc.InferenceServerClient(f"127.0.0.1:{grpc_port}") as grpc,
        ):
            ways = [Way("http", v2_http, http, ports), Way("grpc", v2_grpc, grpc, ports)]
            count += failures(server, ways)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
