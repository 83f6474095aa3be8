"""What user code says of an answer's head, its HTTP status and headers, at every door alike."""

from __future__ import annotations

import contextlib
import http.client
import json

import grpc
import pytest
from doubles import server_for

from pipeline import Answer, Op, PipelineClient, ProductError, RequestOp, ResponseOp
from pipeline.errors import InputError
from pipeline.proto.pipeline_service_pb2 import Request
from pipeline.proto.pipeline_service_pb2_grpc import PipelineServiceStub

EVENTS = "text/event-stream"


class Find(Op):
    """Gives the answer, or the error, that its callers ask for, with that status."""

    def preprocess(self, input_dicts):
        (fields,) = input_dicts.values()
        field = fields.get("asked") or fields["prompt"]
        if field == "plain":
            return {"text": "found"}
        if field == "failed":
            raise ProductError(51, "not found")
        if field == "odd":
            return Answer({"text": object()}, status=201, headers={"Location": "/faces/1"})
        status = int(field)
        if status < 300:
            return Answer({"text": "made"}, status=status, headers={"Location": "/faces/1"})
        raise ProductError(52, "no", status=status, headers={"Retry-After": "7"})


class Feeds(Find):
    """One that makes a feed that its model does not take, if its caller asks for that."""

    def preprocess(self, input_dicts):
        (fields,) = input_dicts.values()
        field = fields.get("asked") or fields["prompt"]
        if field == "feed":
            return {"text": field}
        return super().preprocess(input_dicts), True, None, ""  # process is not for these

    def process(self, feed_batch):
        raise InputError("no such input")


class Packs(ResponseOp):
    """A user's ResponseOp; its answers and errors have no heads."""

    def pack_response_package(self, channeldata):
        return super().pack_response_package(channeldata)


def find_server(op=Find, response=ResponseOp, **keys):
    last = op("find", RequestOp())
    frontends = {"openai": {"models": {"find": {"pipeline": "svc"}}}}
    return server_for(last, response_op=response(last), frontends=frontends, **keys)


@pytest.fixture(scope="module")
def threads():
    with find_server() as running:
        yield running


@pytest.fixture(scope="module")
def processes():
    with find_server(dag={"is_thread_op": False}) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(gateway_binary):
    """A server whose ports are our gateway's, which asks it over their link."""
    with find_server(edge="gateway") as running:
        yield running


@pytest.fixture(scope="module", params=["full", "safe"])
def own_response(request):
    """A server with a ResponseOp of the user's."""
    with find_server(Feeds, Packs, errors={"details": request.param}) as running:
        yield running


@pytest.fixture(scope="module", params=["threads", "processes", "gateway"])
def server(request):
    return request.getfixturevalue(request.param)


def posted(server, path, body, accept="*/*"):
    """Return status, a header of each kind, and the body; the connection may be kept."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    headers = {"content-type": "application/json", "accept": accept}
    with contextlib.closing(connection):
        connection.request("POST", path, json.dumps(body), headers)
        reply = connection.getresponse()
        return reply.status, reply.headers, reply.read()


def pairs(server, asked, accept="*/*"):
    return posted(server, "/svc/prediction", {"key": ["asked"], "value": [asked]}, accept)


def pairs_as_events(server, asked):
    return pairs(server, asked, EVENTS)


def api(server, asked, accept="*/*"):
    return posted(server, "/api/svc", {"asked": asked}, accept)


def api_as_events(server, asked):
    return api(server, asked, EVENTS)


def openai(server, asked, **more):
    return posted(server, "/v1/completions", {"model": "find", "prompt": asked, **more})


def openai_as_events(server, asked):
    return openai(server, asked, stream=True)


OF_PAIRS = [pairs, pairs_as_events]
WHOLE = [pairs, api, openai]
EVERY = [*OF_PAIRS, api, api_as_events, openai, openai_as_events]


@pytest.mark.parametrize("door", EVERY)
@pytest.mark.parametrize("status", [404, 422, 429, 503])
def test_an_error_has_its_status_and_headers(server, door, status):
    result, headers, body = door(server, str(status))
    assert (result, headers["retry-after"]) == (status, "7")
    document = json.loads(body)
    if door in OF_PAIRS:
        assert (document["err_no"], document["err_msg"]) == (52, "no")
    else:
        assert document["error"]["message"] == "no"


@pytest.mark.parametrize("door", WHOLE)
def test_an_answer_has_its_status_and_headers(server, door):
    result, headers, body = door(server, "201")
    assert (result, headers["location"]) == (201, "/faces/1")
    assert b"made" in body


@pytest.mark.parametrize("door", EVERY)
def test_an_error_without_a_status_is_answered_as_before(server, door):
    result, headers, body = door(server, "failed")
    assert result == (200 if door in OF_PAIRS else 400)
    assert headers["retry-after"] is None
    assert b"not found" in body
    assert door(server, "plain")[0] == 200, "nothing is left of the requests before"


@pytest.mark.parametrize("door", [api, api_as_events, openai])
def test_an_answer_that_cannot_be_written_has_the_status_of_the_error(server, door):
    result, headers, body = door(server, "odd")
    assert (result, headers["location"]) == (500, None)
    assert "error" in json.loads(body)


@pytest.mark.parametrize("door", [api, api_as_events, openai, openai_as_events])
def test_an_error_that_passes_a_response_op_is_unchanged(own_response, door):
    result, _, body = door(own_response, "feed")
    assert result == 500, body
    result, headers, body = door(own_response, "429")
    assert (result, headers["retry-after"]) == (429, "7")
    assert json.loads(body)["error"]["message"] == "no"
    result, headers, body = door(own_response, "odd")
    assert (result, headers["location"]) == (500, None)
    assert door(own_response, "plain")[0] == 200, "nothing is left of the requests before"


def called(server, asked):
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        stub = PipelineServiceStub(channel)
        request = Request(key=["asked"], value=[asked])
        return stub.inference.with_call(request, timeout=60)


@pytest.mark.parametrize(
    ("status", "code"),
    [(404, "NOT_FOUND"), (422, "INVALID_ARGUMENT"), (429, "RESOURCE_EXHAUSTED")],
)
def test_grpc_has_a_code_to_match(server, status, code):
    with pytest.raises(grpc.RpcError) as caught:
        called(server, str(status))
    error = caught.value
    assert (error.code().name, error.details()) == (code, "no")
    reported = dict(error.trailing_metadata())
    assert (reported["pipeline-err-no"], reported["pipeline-status"]) == ("52", str(status))
    assert reported["retry-after"] == "7"


def test_an_answer_over_grpc_has_its_headers_as_trailing_metadata(server):
    response, call = called(server, "201")
    reported = dict(call.trailing_metadata())
    assert (list(response.value), reported["pipeline-status"]) == (["made"], "201")
    assert reported["location"] == "/faces/1"
    assert called(server, "failed")[0].err_no == 51


def test_our_client_over_http_takes_an_answer_of_another_status(server):
    with PipelineClient() as client:
        client.connect(f"http://127.0.0.1:{server.http_port}/svc")
        assert client.predict({"asked": "201"}).value == ["made"]
        with pytest.raises(ProductError, match="no"):
            client.predict({"asked": "404"})
