"""How much callers read of the server's own errors: `errors.details`, at both doors."""

from __future__ import annotations

import json
import logging
import re
import urllib.error
import urllib.request

import grpc
import numpy as np
import pytest
from doubles import server_for

from pipeline import Op, ProductError, RequestOp, ResponseOp, Tensor
from pipeline.errors import InputError
from pipeline.proto.pipeline_service_pb2 import Request
from pipeline.proto.pipeline_service_pb2_grpc import PipelineServiceStub

SECRET = "/srv/models/secret.bin"
SAFE = r"internal error: the log of the server says why, see data_id=(\d+)"


class Failing(Op):
    input_tensors = (Tensor("how", "BYTES", (1,)),)
    output_tensors = (Tensor("y", "BYTES", (1,)),)

    def preprocess(self, input_dicts):
        (fields,) = input_dicts.values()
        how = str(np.ravel(fields["how"])[0])
        if how == "raises":
            raise OSError(f"no such file: {SECRET}")
        if how == "product":
            raise ProductError(51, "no face in the picture")
        if how == "input":
            raise InputError("x is 3 wide, and has to be 4")
        if how == "odd":
            return {"y": {how}}  # a set has no form in answers
        return {"y": how} if how == "well" else [SECRET]

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        if not isinstance(fetch_dict, dict):
            raise ValueError(SECRET)
        return fetch_dict


def failing_server(**keys):
    last = Failing("failing", RequestOp())
    return server_for(last, response_op=ResponseOp(last), **keys)


@pytest.fixture(scope="module")
def embedded():
    with failing_server() as running:
        yield running


@pytest.fixture(scope="module")
def embedded_safe():
    with failing_server(errors={"details": "safe"}, dag={"is_thread_op": False}) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(gateway_binary):
    with failing_server(edge="gateway") as running:
        yield running


@pytest.fixture(scope="module")
def gateway_full(gateway_binary):
    with failing_server(edge="gateway", errors={"details": "full"}) as running:
        yield running


@pytest.fixture(scope="module", params=["embedded_safe", "gateway"])
def safe(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module", params=["embedded", "gateway_full"])
def full(request):
    return request.getfixturevalue(request.param)


def posted(server, path, body, **headers):
    url = f"http://127.0.0.1:{server.http_port}{path}"
    headers = {"content-type": "application/json", **headers}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def pairs(server, how):
    status, body = posted(server, "/svc/prediction", {"key": ["how"], "value": [how]})
    assert status == 200
    document = json.loads(body)
    return document["err_no"], document["err_msg"]


def api(server, how):
    _, body = posted(server, "/api/svc", {"how": how})
    document = json.loads(body)["error"]
    return document["code"], document["message"]


def events(server, how):
    _, body = posted(server, "/api/svc", {"how": how}, accept="text/event-stream")
    document = json.loads(body)["error"]
    return document["code"], document["message"]


def v2(server, how):
    body = {"inputs": [{"name": "how", "datatype": "BYTES", "shape": [1], "data": [how]}]}
    status, body = posted(server, "/v2/models/svc/infer", body)
    return {500: 10000, 400: 51}.get(status), json.loads(body)["error"]


def rpc(server, how):
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        request = Request(key=["how"], value=[how])
        response = PipelineServiceStub(channel).inference(request, timeout=60)
    return response.err_no, response.err_msg


DOORS = [pairs, api, events, v2, rpc]


@pytest.mark.parametrize("door", DOORS)
def test_clients_get_a_sentence_with_a_reference_to_the_log(safe, door, caplog):
    with caplog.at_level(logging.ERROR):
        code, text = door(safe, "raises")
    assert code == 10000
    match = re.search(SAFE, text)
    assert match, text
    for word in (SECRET, "OSError", "Failing", "preprocess"):
        assert word not in text
    lines = [record.getMessage() for record in caplog.records]
    assert any(SECRET in line and f"data_id={match[1]} " in line for line in lines), lines


@pytest.mark.parametrize("door", DOORS)
def test_trusted_clients_get_the_whole_error(full, door):
    code, text = door(full, "raises")
    assert code == 10000
    assert f"OSError: no such file: {SECRET}" in text


def test_an_error_of_pack_does_not_reveal_the_answer(safe, caplog):
    with caplog.at_level(logging.ERROR):
        code, text = pairs(safe, "odd")
    match = re.search(SAFE, text)
    assert match, text
    assert code == 7000
    lines = [record.getMessage() for record in caplog.records]
    assert any("'set'" in line and f"data_id={match[1]} " in line for line in lines), lines


class Speaks(Op):
    def process(self, feed_batch):
        yield {"y": "a"}
        yield {"y": "b"}


class OwnPack(ResponseOp):
    def pack_response_package(self, channeldata):
        if channeldata.error is None:
            raise OSError(SECRET)
        return super().pack_response_package(channeldata)


def combine(parts):
    raise OSError(SECRET)


@pytest.mark.parametrize("make", [OwnPack, lambda last: ResponseOp(last, combine=combine)])
def test_the_log_names_the_request_of_a_failed_pack(make, tmp_path):
    last = Speaks("speaks", RequestOp())
    safe = {"errors": {"details": "safe"}}
    with server_for(last, response_op=make(last), **safe) as server:
        _, text = pairs(server, "any")
    match = re.search(SAFE, text)
    assert match, text
    log = (tmp_path / "PipelineServingLogs/pipeline.log").read_text().splitlines()
    raised = [line for line in log if re.search(r"\] \w+ raised OSError", line)]
    assert len(raised) == 1
    assert f"(data_id={match[1]}" in raised[0]


@pytest.mark.parametrize("how", ["other"])
def test_an_error_that_was_not_logged_is_logged_when_it_is_hidden(safe, how, caplog):
    with caplog.at_level(logging.ERROR):
        code, text = pairs(safe, how)
    match = re.search(SAFE, text)
    assert match, text
    assert any(f"data_id={match[1]} " in record.getMessage() for record in caplog.records)
    assert code != 0


@pytest.mark.parametrize("door", DOORS)
def test_a_client_error_is_returned_in_full(safe, door):
    code, text = door(safe, "product")
    assert code == 51
    assert "no face in the picture" in text
    assert "x is 3 wide, and has to be 4" in door(safe, "input")[1]


def test_a_timeout_is_returned_in_full(safe):
    body = {"key": ["how"], "value": ["well"]}
    _, body = posted(safe, "/svc/prediction", body, **{"grpc-timeout": "0n"})
    assert json.loads(body)["err_no"] == 6000
    assert "internal error" not in json.loads(body)["err_msg"]
