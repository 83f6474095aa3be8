"""Plain JSON to an Op that only runs a model: the model's signature says what comes and goes."""

from __future__ import annotations

from typing import Any

import pytest
from onnx import TensorProto, helper
from onnx_doubles import FLOAT, save, value_info

from pipeline import Op, PipelineServer, RequestOp, ResponseOp
from pipeline.testing import TestClient


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    ends = {"x": (FLOAT, ["n", 2]), "word": (TensorProto.STRING, []), "n": (TensorProto.INT32, [1])}
    save(
        path,
        [helper.make_node("Identity", [name], [f"{name}_out"]) for name in ends],
        [value_info(name, *kind) for name, kind in ends.items()],
        [value_info(f"{name}_out", *kind) for name, kind in ends.items()],
    )
    server = PipelineServer("svc")
    server.set_response_op(ResponseOp(Op("m", RequestOp())))
    local = {"client_type": "local_predictor", "model_config": str(path)}
    with TestClient(server, {"http_port": 0, "op": {"m": {"local_service_conf": local}}}) as client:
        yield client


ASKED = {"x": [[1, 2.5]], "word": "a", "n": [3]}


def test_lists_and_numbers_are_converted_to_the_inputs_of_the_model(client: TestClient) -> None:
    answer = client.post("/api/svc", json=ASKED)
    assert (answer.status, answer.json()) == (
        200,
        {"x_out": [[1.0, 2.5]], "word_out": "a", "n_out": [3]},
    )
    pairs = {"key": list(ASKED), "value": ["[[1, 2.5]]", "a", "[3]"]}
    answer = client.post("/svc/prediction", json=pairs).json()
    assert answer["err_no"] == 0, answer["err_msg"]
    assert answer["value"][0] == "array([[1. , 2.5]], dtype=float32)"


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"x": [[1, 2, 3]]}, "feed 'x' has shape (1, 3), the model wants (n, 2)"),
        ({"x": [[1, 2], [3]]}, "feed 'x' has lists of different lengths"),
        ({"n": [2.5]}, "feed 'n' has dtype float64"),
    ],
)
def test_an_invalid_input_is_a_client_error(
    client: TestClient, changed: dict[str, Any], text: str
) -> None:
    answer = client.post("/api/svc", json=ASKED | changed)
    assert answer.status == 400
    assert text in answer.json()["error"]["message"]


def test_the_document_has_the_model_s_types(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    post = document["paths"]["/api/svc"]["post"]
    asked = post["requestBody"]["content"]["application/json"]
    row = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
    assert asked["schema"]["properties"]["x"] == {
        "type": "array",
        "items": row,
        "description": "FP32 [any, 2]",
    }
    assert asked["schema"]["required"] == ["x", "word", "n"]
    reported = post["responses"]["200"]["content"]["application/json"]["schema"]
    assert list(reported["properties"]) == ["x_out", "word_out", "n_out"]
    assert client.post("/api/svc", json={**asked["example"], "word": "a"}).status == 200
