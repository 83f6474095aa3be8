"""Requests of the pipeline's own forms belong to sequences by their pairs, and by their fields."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import grpc
import numpy as np
import pytest
from doubles import server_for, wait_until

from pipeline import Op, RequestOp, Schema
from pipeline.proto import codec
from pipeline.proto.pipeline_service_pb2 import Request, Response

INFERENCE = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
NO_ID = "Op 'tally' has sequences: a request needs a sequence_id"
NO_START = "its first request must have sequence_start: true"


class Tally(Op):
    """Counts the requests of each sequence."""

    def init_op(self):
        self.counts = {}

    def preprocess(self, input_dicts, *, context):
        step = context.sequence
        if step.start:
            self.counts[step.id] = 0
        self.counts[step.id] += 1
        kind = type(step.id).__name__
        return {"count": np.array([self.counts[step.id]]), "id": [f"{kind} {step.id}"]}


@pytest.fixture(scope="module")
def server():
    op = Tally("tally", RequestOp(), sequence={"strategy": "oldest", "max_candidates": 4})
    with server_for(op) as made:
        yield made


def state(server):
    return server.executor.state().ops[0].sequences


def over_grpc(server, fields):
    said = {key: value for key, value in fields.items() if isinstance(value, str)}
    others = [codec.numpy_to_tensor(k, np.array([v])) for k, v in fields.items() if k not in said]
    message = Request(key=[*said], value=[*said.values()], tensors=others)
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        result = channel.unary_unary(INFERENCE)(message.SerializeToString(), timeout=30)
    answer = Response.FromString(result)
    if answer.err_no:
        return answer.err_no, answer.err_msg
    return {
        **dict(zip(answer.key, answer.value, strict=True)),
        **codec.decode_tensors(answer.tensors),
    }


def posted(server, path, fields):
    url = f"http://127.0.0.1:{server.http_port}{path}"
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(url, json.dumps(fields).encode(), headers)
    try:
        with urllib.request.urlopen(asked, timeout=30) as reply:
            return json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return json.loads(error.read())


def over_http(server, fields):
    texts = [value if isinstance(value, str) else json.dumps(value) for value in fields.values()]
    answer = posted(server, "/svc/p", {"key": [*fields], "value": texts})
    if answer["err_no"]:
        return answer["err_no"], answer["err_msg"]
    return dict(zip(answer["key"], answer["value"], strict=True))


def plain(server, fields):
    answer = posted(server, "/api/svc", fields)
    return (answer["error"]["code"], answer["error"]["message"]) if "error" in answer else answer


DOORS = pytest.mark.parametrize("ask", [over_grpc, over_http, plain])


def count_in(answer):
    """The count of an answer, in whatever form it has."""
    assert isinstance(answer, dict), answer
    return int("".join(filter(str.isdigit, str(answer["count"]))))


@DOORS
def test_a_sequence_runs_over_each_frontend(server, ask):
    id = f"of {ask.__name__}"
    begun = ask(server, {"x": "1", "sequence_id": id, "sequence_start": "true"})
    assert count_in(begun) == 1
    assert id in str(begun["id"])
    assert count_in(ask(server, {"x": "1", "sequence_id": id})) == 2
    assert count_in(ask(server, {"x": "1", "sequence_id": id, "sequence_end": "1"})) == 3
    assert NO_START in ask(server, {"x": "1", "sequence_id": id})[1]


@pytest.mark.parametrize(
    ("id", "expected"),
    [("7", "int 7"), ("007", "str 007"), ("-7", "str -7"), (str(2**64 - 1), f"int {2**64 - 1}")],
)
def test_text_that_is_a_number_is_the_number(server, id, expected):
    result = over_http(
        server, {"sequence_id": id, "sequence_start": "True", "sequence_end": "True"}
    )
    assert expected in result["id"]


@pytest.mark.parametrize("ask", [over_grpc, plain])
def test_numbers_and_flags_may_be_typed(server, ask):
    result = ask(server, {"x": 1, "sequence_id": 9, "sequence_start": True, "sequence_end": True})
    assert "int 9" in str(result["id"])


@DOORS
@pytest.mark.parametrize(
    ("said", "code", "text"),
    [
        ({}, 5000, NO_ID),
        ({"sequence_id": "0"}, 5000, NO_ID),
        ({"sequence_id": "new"}, 5000, NO_START),
        ({"sequence_id": "s" * 1025}, 5000, "sequence_id must be an unsigned 64-bit integer or a"),
        (
            {"sequence_id": "a", "sequence_start": "yes"},
            5000,
            "sequence_start must be true or false",
        ),
        ({"sequence_id": "a", "sequence_end": "2"}, 5000, "sequence_end must be true or false"),
    ],
)
def test_an_invalid_field_is_refused(server, ask, said, code, text):
    result = ask(server, {"x": "1", **said})
    assert (result[0], text in result[1]) == (code, True), result


@DOORS
def test_an_end_alone_frees_the_slot_and_runs_no_op(server, ask):
    before, ended, cut = state(server).live, state(server).ended, state(server).cut
    ask(server, {"x": "1", "sequence_id": "alone", "sequence_start": "true"})
    assert state(server).live == before + 1
    assert ask(server, {"sequence_id": "alone", "sequence_end": "true"}) == {}
    wait_until(lambda: state(server).live == before)
    assert ask(server, {"sequence_id": "alone", "sequence_end": "true"}) == {}, "it may be twice"
    assert (state(server).ended, state(server).cut) == (ended + 1, cut)


# Plain JSON, and other bodies -------------------------------------------------------------------


def sent(server, path, body, content_type):
    url = f"http://127.0.0.1:{server.http_port}{path}"
    asked = urllib.request.Request(url, body, {"Content-Type": content_type})
    with urllib.request.urlopen(asked, timeout=30) as reply:
        return json.loads(reply.read())


@pytest.mark.parametrize("kind", ["image/png", "application/octet-stream", "application/json"])
def test_the_query_may_name_the_sequence(server, kind):
    body = b"{}" if kind == "application/json" else b"of bytes"
    path = f"/api/svc?sequence_id={kind}"
    assert sent(server, f"{path}&sequence_start=true", body, kind)["count"] == [1]
    assert sent(server, f"{path}&sequence_end=1", b'{"x": 1}' if body == b"{}" else body, kind)
    with pytest.raises(urllib.error.HTTPError, match=r"HTTP Error [45]00"):
        sent(server, path, body, kind)


def test_a_form_may_name_its_sequence(server):
    fields = {"sequence_id": "form", "sequence_start": "true", "sequence_end": "true", "x": "1"}
    part = '--B\r\nContent-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
    body = "".join(part.format(*pair) for pair in fields.items()) + "--B--\r\n"
    result = sent(server, "/api/svc", body.encode(), "multipart/form-data; boundary=B")
    assert result == {"count": [1], "id": ["str form"]}


def test_the_document_has_the_parameters_of_sequences(server):
    url = f"http://127.0.0.1:{server.http_port}/openapi.json"
    with urllib.request.urlopen(url, timeout=30) as reply:
        post = json.loads(reply.read())["paths"]["/api/svc"]["post"]
    names = [item["name"] for item in post["parameters"]]
    assert names == ["sequence_id", "sequence_start", "sequence_end"]


@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson"])
def test_event_streams_may_name_their_sequence(server, accept):
    for path, body in (
        ("/svc/p", {"key": ["sequence_id", "sequence_start"], "value": [accept, "1"]}),
        ("/api/svc", {"sequence_id": accept, "sequence_end": True, "x": 1}),
    ):
        url = f"http://127.0.0.1:{server.http_port}{path}"
        headers = {"Content-Type": "application/json", "Accept": accept}
        asked = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(asked, timeout=30) as reply:
            assert "str " + accept in reply.read().decode()


def test_a_stream_over_grpc_may_name_its_sequence(server):
    message = Request(key=["sequence_id", "sequence_start", "sequence_end"], value=["s", "1", "1"])
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        call = channel.unary_stream(INFERENCE + "_stream")
        (part,) = call(message.SerializeToString(), timeout=30)
    assert "str s" in str(Response.FromString(part).value)


class Strict(Schema, forbid_unknown_fields=True):
    x: int


class Shows(Op):
    """Answers with the keys that it is fed, and with its sequence."""

    def preprocess(self, input_dicts, *, context):
        (fields,) = input_dicts.values()
        return {"fed": " ".join(fields), "of": str(context.sequence_id)}


def test_neither_a_strict_schema_nor_ops_see_fields_of_a_sequence():
    first = Shows("stateless", RequestOp(schema=Strict))
    op = Last("last", first, sequence={"strategy": "direct"})
    with server_for(op) as made:
        fields = {"x": 1, "sequence_id": 4, "sequence_start": True}
        for ask in (over_grpc, plain):
            result = ask(made, fields)
            assert (result["fed"], result["of"]) == ("x", "4")
        assert posted(made, "/api/svc", {"x": 1, "sequence_id": []})["error"]["code"] == 5000


class Last(Op):
    """A stateful Op behind a stateless one."""
