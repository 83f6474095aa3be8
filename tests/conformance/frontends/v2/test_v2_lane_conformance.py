"""One table of inference requests, asked in the lane and beside it; and mutations of them."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from doubles import server_for
from hostile import mutated, seeded
from raw_http import Answer, Connection, request

from pipeline import Op, PipelineServer, RequestOp
from pipeline.data import Tensor
from pipeline.frontends.v2.http_inference import InferEndpoint

LENGTH = "Inference-Header-Content-Length"
BESIDE = "TE: trailers"  # has a request leave the lane, and means nothing


class Mixed(Op):
    """Gives its inputs and more; fails, or gives a large answer, on request."""

    input_tensors = (Tensor("x", "FP32", (-1,)), Tensor("t", "BYTES", (1,)))

    def preprocess(self, input_dicts: Any, data_id: int, log_id: int) -> Any:
        (result,) = input_dicts.values()
        if result["t"] == "fail":
            raise ValueError("asked to fail")
        more = {"much": np.zeros(30_000, np.float32)} if result["t"] == "much" else {}
        if result["t"] == "nan":
            more = {"nan": np.array([np.nan, np.inf], np.float32)}
        if result["t"] == "list":
            more = {"list": [1, 2], "one": 1.5, "flag": np.bool_(True)}
        return {**result, "wide": np.float64([[1], [2]]), **more}, False, None, ""


@pytest.fixture(scope="module")
def server(module_logs: None) -> Iterator[PipelineServer]:
    with server_for(Mixed("mixed", RequestOp()), timeout_ms=10_000) as result:
        yield result


@pytest.fixture
def in_lane(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Has an element for each request that the lane has answered."""
    collected: list[bool] = []
    reply = InferEndpoint.reply

    def counted(self: InferEndpoint, ended: Any, failure: Any) -> Any:
        collected.append(True)
        return reply(self, ended, failure)

    monkeypatch.setattr(InferEndpoint, "reply", counted)
    return collected


def json_of(text: str = "a", x: Any = (1.5, -2), **more: Any) -> bytes:
    inputs = [
        {"name": "x", "datatype": "FP32", "shape": [len(x)], "data": [*x]},
        {"name": "t", "datatype": "BYTES", "shape": [1], "data": [text]},
    ]
    return json.dumps({**more, "inputs": inputs}).encode()


def binary_of(text: str = "a", x: Any = (1.5, -2), **more: Any) -> tuple[bytes, int]:
    raw = struct.pack("<I", len(text)) + text.encode()
    sizes = ("x", "FP32", [len(x)], 4 * len(x)), ("t", "BYTES", [1], len(raw))
    inputs = [
        {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": n}}
        for name, datatype, shape, n in sizes
    ]
    head = json.dumps({**more, "inputs": inputs}).encode()
    return head + np.array(x, np.float32).tobytes() + raw, len(head)


RAW = {"parameters": {"binary_data_output": True}}
ONE_RAW = {"outputs": [{"name": "x", "parameters": {"binary_data": True}}, {"name": "t"}]}
TWICE = {"outputs": [{"name": "x"}, {"name": "x"}]}

Row = tuple[str, bytes, tuple[str, ...], str]


def rows() -> Iterator[Row]:
    """Yield name, body, headers and model."""
    for word in ("a", "much", "nan", "list", "fail", "é", "]"):
        for said in ({}, RAW, ONE_RAW, TWICE, {"id": "7"}, {"id": "7", **RAW}):
            name = f"{word} {[*said]}"
            yield f"JSON {name}", json_of(word, **said), (), "svc"
            body, length = binary_of(word, **said)
            yield f"binary {name}", body, (f"{LENGTH}: {length}",), "svc"
    body, length = binary_of()
    for odd in (
        0,
        1,
        length - 1,
        length + 1,
        len(body),
        len(body) + 1,
        "x",
        "-1",
        "+1",
        f"0{length}",
    ):
        yield f"length {odd}", body, (f"{LENGTH}: {odd}",), "svc"
    for more in (
        {"id": 7}, {"parameters": 1}, {"parameters": {"binary_data_output": 1}},
        {"parameters": {"timeout": -1}}, {"parameters": {"sequence_id": 1.5}},
        {"parameters": {"triton_x": 1}}, {"outputs": [{"name": "nope"}]}, {"outputs": [1]},
        {"outputs": [{"name": "x", "parameters": {"classification": 2}}]},
    ):  # fmt: skip
        yield f"JSON {more}", json_of(**more), (), "svc"
    yield "no x", b'{"inputs": []}', (), "svc"
    yield "no object", b"[]", (), "svc"
    yield "no JSON", b"{", (), "svc"
    yield "nothing", b"", (), "svc"
    for model in ("mixed", "nope", "svc/versions/1", "svc/versions/2", "svc/versions/x", "%73vc"):
        yield f"model {model}", json_of(), (), model
    for header in (
        "Accept-Encoding: gzip", "Accept-Encoding: identity", "Grpc-Timeout: 5S",
        "Grpc-Timeout: x", "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "Content-Type: text/html", "X-Any: 1", "Origin: http://elsewhere.example",
    ):  # fmt: skip
        yield header, json_of(), (header,), "svc"


def path_of(model: str) -> str:
    return f"/v2/models/{model}/infer"


def id_of(answer: Answer) -> Any:
    length = answer.headers.get(LENGTH.lower())
    return json.loads(answer.body[: int(length)] if length else answer.body)["id"]


def comparable(answer: Answer) -> tuple[int, dict[str, str], bytes]:
    """Return what has to be the same; a request's number is its own."""
    body = answer.body
    if b"(data_id=" in body:
        start = body.index(b"(data_id=")
        body = body[:start] + body[body.index(b")", start) :]
    headers = {k: v for k, v in answer.headers.items() if k not in ("date", "content-length")}
    return answer.status, headers, body


@pytest.mark.parametrize("row", [*rows()], ids=lambda row: row[0])
def test_the_lane_and_the_routes_give_equal_answers(server: PipelineServer, row: Row) -> None:
    _, body, headers, model = row
    path, port = path_of(model), server.http_port
    assert port is not None
    with Connection(port) as beside:
        beside.send(request(body, *headers, BESIDE, path=path))
        expected = comparable(beside.answer())
    with Connection(port) as lane:
        for _ in range(4):  # its form is known from the third on
            lane.send(request(body, *headers, path=path))
            assert comparable(lane.answer()) == expected


def test_usual_requests_are_in_the_lane_and_unusual_ones_are_not(
    server: PipelineServer, in_lane: list[bool]
) -> None:
    assert server.http_port is not None
    binary, length = binary_of()
    with Connection(server.http_port) as connection:
        for count in range(1, 4):
            connection.send(request(json_of(), path=path_of("svc")))
            connection.send(request(binary, f"{LENGTH}: {length}", path=path_of("svc")))
            assert [connection.answer().status for _ in range(2)] == [200, 200]
            assert len(in_lane) == 2 * count
        connection.send(request(json_of(), BESIDE, path=path_of("svc")))
        assert connection.answer().status == 200
        assert len(in_lane) == 6


def test_the_lane_continues_after_a_large_answer(
    server: PipelineServer, in_lane: list[bool]
) -> None:
    assert server.http_port is not None
    asked = request(json_of("much"), path=path_of("svc"))
    for _ in range(20):  # a head that comes in two pieces is read beside the lane
        in_lane.clear()
        with Connection(server.http_port) as connection:
            for _ in range(3):
                connection.send(asked)
                assert len(connection.answer().json["outputs"][-1]["data"]) == 30_000
        if len(in_lane) == 3:
            return
    pytest.fail("a connection does not come back")


@pytest.fixture
def rng() -> random.Random:
    return seeded()


def test_requests_sent_ahead_in_any_pieces_are_answered_in_turn(
    server: PipelineServer, rng: random.Random
) -> None:
    assert server.http_port is not None
    for _ in range(20):
        whole, ids = b"", []
        for number in range(rng.randrange(1, 30)):
            ids.append(str(number))
            if rng.random() < 0.5:
                whole += request(json_of(id=ids[-1]), path=path_of("svc"))
            else:
                body, length = binary_of(id=ids[-1])
                whole += request(body, f"{LENGTH}: {length}", path=path_of("svc"))
        with Connection(server.http_port) as connection:
            while whole:
                size = rng.choice((1, 10, 100, 1000, 10_000))
                connection.send(whole[:size])
                whole = whole[size:]
            assert [id_of(connection.answer()) for _ in ids] == ids


def test_mutations_are_answered_equally_by_lane_and_routes(
    server: PipelineServer, rng: random.Random
) -> None:
    assert server.http_port is not None
    binary, length = binary_of(**ONE_RAW, id="5")
    usual = json_of(id="5")
    lane, beside = Connection(server.http_port), Connection(server.http_port)
    for _ in range(400):
        body = mutated(rng.choice((usual, binary)), rng)
        choice = rng.choice((None, length, length, length + rng.choice((-1, 1)), len(body)))
        headers = () if choice is None else (f"{LENGTH}: {choice}",)
        lane.send(request(body, *headers, path=path_of("svc")))
        beside.send(request(body, *headers, BESIDE, path=path_of("svc")))
        assert comparable(lane.answer()) == comparable(beside.answer()), body
        lane.close()
        lane = Connection(server.http_port)
        lane.send(request(usual, path=path_of("svc")))  # so that its form is known
        assert lane.answer().status == 200
    lane.close()
    beside.close()
