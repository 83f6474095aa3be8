"""Checks of tensors of all kinds, and of the example's models."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import numpy as np
import tritonclient.http as v2_http
from caller import Caller, check, refused

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


# --- tensors --------------------------------------------------------------------------------


@check("echo")
def every_datatype_comes_back_unchanged(caller: Caller) -> None:
    arrays = {name: np.array(values, name) for name, values in VALUES.items()}
    arrays["text"] = np.array([["a", "", "文字 🙂"]], object)
    arrays["bytes"] = np.array([[b"\xff\x00", b""]], object)
    arrays["big"] = np.random.default_rng(5).random((1000, 1000), np.float32)
    arrays["none"] = np.empty((0, 3), np.int32)
    result = caller.infer("echo", arrays)
    for name, array in arrays.items():
        output = result.as_numpy(name)
        if name == "text":
            array = np.array([[item.encode() for item in array[0]]], object)
        assert output.shape == array.shape, name
        np.testing.assert_array_equal(output, array, name)


@check("echo", ("http",))
def every_datatype_but_fp16_passes_as_json(caller: Caller) -> None:
    arrays = {name: np.array(values, name) for name, values in VALUES.items()}
    arrays["text"] = np.array([["a", "", "文字 🙂"]], object)
    del arrays["float16"]
    tensors = [caller.input(name, array, binary_data=False) for name, array in arrays.items()]
    for is_binary in (False, True):
        outputs = [v2_http.InferRequestedOutput(name, binary_data=is_binary) for name in arrays]
        result = caller.client.infer("echo", tensors, outputs=outputs)
        for name, array in arrays.items():
            output = result.as_numpy(name)
            if name == "text" and is_binary:
                array = np.array([[item.encode() for item in array[0]]], object)
            np.testing.assert_array_equal(output, array, name)


@check("echo")
def bfloat16_comes_back_unchanged(caller: Caller) -> None:
    tensor = caller.module.InferInput("x", [1, 2], "BF16")
    tensor.set_data_from_numpy(np.array([[0.5, -2.0]], np.float32))
    result = caller.client.infer("echo", [tensor])
    assert result.as_numpy("x").tolist() == [[0.5, -2.0]]


@check("echo", ("http",))
def invalid_json_is_refused(caller: Caller) -> None:
    half = caller.input("x", np.ones((1, 2), np.float16))
    output = v2_http.InferRequestedOutput("x", binary_data=False)
    with refused("FP16 has no JSON form"):
        caller.client.infer("echo", [half], outputs=[output])


@check("echo")
def user_parameters_are_accepted_and_reserved_ones_refused(caller: Caller) -> None:
    inputs = {"x": np.ones((1, 2), np.int8)}
    caller.infer("echo", inputs, parameters={"a": 1, "b": "text", "c": True})
    with refused("reserved for Triton usage", "400", "INVALID_ARGUMENT"):
        caller.infer("echo", inputs, parameters={"triton_no_such": 1})


# --- the example ----------------------------------------------------------------------------


@check("imdb")
def a_review_is_judged(caller: Caller) -> None:
    words = np.array([REVIEW], object)
    result = caller.infer("imdb", {"words": words})
    scores = [float(result.as_numpy(name)[0]) for name in ("prediction", "bow", "cnn")]
    assert scores[0] > 0.5
    assert abs(scores[0] - (scores[1] + scores[2]) / 2) < 1e-6


@check("imdb")
def its_models_answer_alone(caller: Caller) -> None:
    words = np.zeros((3, 256), np.int64)
    for model in ("bow", "cnn"):
        (entry,) = caller.ask("get_model_metadata", model)["inputs"]
        assert (entry["name"], entry["datatype"]) == ("words", "INT64")
        result = caller.infer(model, {"words": words})
        assert result.as_numpy("prediction").shape == (3, 2)


@check("imdb", ("http",))
def a_model_of_one_input_accepts_bare_data(caller: Caller) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{caller.ports[0]}/v2/models/bow/infer",
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
def both_models_are_counted_for_each_review(caller: Caller) -> None:
    models = ("imdb", "bow", "cnn", "combine")
    before = {name: caller.counters(name)["success"] for name in models}
    for _ in range(5):
        caller.infer("imdb", {"words": np.array([REVIEW], object)})
    assert [caller.counters(name)["success"] - before[name] for name in models] == [5] * 4
