"""A sequence goes through a gateway as through the server's own doors, the lane and the routes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance_gateway import PATIENT, both_ports, gateway_before, only_grpc
from doubles import server_for, wait_until
from raw_http import Connection, chunked, request

from pipeline import Op, PipelineClient, PipelineServer, RequestOp

PLACES = ("door", "gateway", "blind")
TALK = (  # what is sent, and the count of it
    ({"x": "1", "sequence_id": "{id}", "sequence_start": "true"}, "1"),
    ({"x": "1", "sequence_id": "{id}"}, "2"),
    ({"x": "1", "sequence_id": "{id}", "sequence_start": "maybe"}, None),
    ({"x": "1", "sequence_id": "{id}", "sequence_end": "1"}, "3"),
    ({"x": "1", "sequence_id": "{id}"}, None),
    ({"x": "1"}, None),
    ({"x": "1", "sequence_id": "{id}", "sequence_start": "True"}, "1"),
    ({"sequence_id": "{id}", "sequence_end": "true"}, ""),
    ({"x": "1", "sequence_id": "{id}"}, None),
)


class Count(Op):
    def init_op(self):
        self.counts = {}

    def preprocess(self, input_dicts, *, context):
        step = context.sequence
        self.counts[step.id] = 1 if step.start else self.counts[step.id] + 1
        return {"count": str(self.counts[step.id])}


def counting() -> PipelineServer:
    sequence = {"strategy": "oldest", "max_candidates": 8, "max_idle_ms": 60_000}
    return server_for(Count("count", RequestOp(), sequence=sequence))


@pytest.fixture(scope="module")
def server(module_logs: None) -> Iterator[PipelineServer]:
    with counting() as made:
        yield made


@pytest.fixture(scope="module")
def ports(gateway_binary: Path, server: PipelineServer) -> Iterator[dict[str, int]]:
    with (
        gateway_before(gateway_binary, both_ports(server), flags=PATIENT) as gateway,
        gateway_before(gateway_binary, only_grpc(server), flags=PATIENT) as blind,
    ):
        gateway.wait_until_ready()
        blind.wait_until_ready()
        yield {"door": server.http_port, "gateway": gateway.port, "blind": blind.port}


def answers_at(port: int, path: str, bodies: list[dict], is_chunked: bool) -> list:
    heard = []
    with Connection(port) as connection:
        for body in bodies:
            sent = json.dumps(body).encode()
            if is_chunked:
                connection.send(request(chunked(sent), "Transfer-Encoding: chunked", path=path))
            else:
                connection.send(request(sent, path=path))
            answer = connection.answer()
            heard.append((answer.status, json.loads(answer.body)))
    return heard


def pairs_of(fields: dict[str, str]) -> dict[str, list[str]]:
    return {"key": [*fields], "value": [*fields.values()]}


@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize("lane", ["in the lane", "beside it"])
def test_every_place_answers_the_same(ports, is_plain, lane):
    id = f"{is_plain} {lane}"
    is_chunked = lane == "beside it"
    sent = [{name: text.replace("{id}", id) for name, text in said.items()} for said, _ in TALK]
    path = "/api/svc" if is_plain else "/svc/p"
    bodies = sent if is_plain else [pairs_of(fields) for fields in sent]
    places = [place for place in PLACES if place != "blind" or not is_plain]
    heard = {
        place: _without_ids(answers_at(ports[place], path, bodies, is_chunked)) for place in places
    }
    for place in places:
        assert heard[place] == heard["door"], place
    for (_, count), (_, answer) in zip(TALK, heard["door"], strict=True):
        if count is None:
            assert answer.get("err_no") or answer.get("error")
        elif is_plain:
            assert answer == ({"count": count} if count else {})
        else:
            assert (answer["err_no"], answer["value"]) == (0, [count] if count else [])


def _without_ids(heard: list) -> list:
    """Answers without the numbers of requests in them."""
    return json.loads(re.sub(r"data_id=\d+", "data_id=", json.dumps(heard)))


def test_a_clients_sequence_passes_a_gateway(ports, server):
    port = ports["gateway"]
    with PipelineClient() as client:
        client.connect(f"http://127.0.0.1:{port}/svc")
        with client.sequence() as sequence:
            counts = [sequence.predict({"x": "1"})["count"] for _ in range(3)]
    assert [int(count) for count in counts] == [1, 2, 3]
    wait_until(lambda: server.executor.state().ops[0].sequences.live == 0)


def test_several_backends_are_used_in_turn(gateway_binary, server):
    """No stickiness: who says its sequence by way of several servers is refused, see limits.md."""
    with (
        counting() as other,
        gateway_before(gateway_binary, both_ports(server), both_ports(other)) as gateway,
    ):
        gateway.wait_until_ready(2)
        with PipelineClient() as client:
            client.connect(f"http://127.0.0.1:{gateway.port}/svc")
            with client.sequence() as sequence:
                answers = [sequence.predict({"x": "1"}) for _ in range(4)]
        assert {answer.err_no for answer in answers} == {0, 5000}
