"""Errors of `/api` tell the Op where they came from, whichever way the requests went."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from doubles import post, server_for

from pipeline import Op, ProductError, RequestOp

NAMES = ("a", "b", "c")
WAYS = {
    "fused": {},
    "apart": {"dag": {"fuse": "off"}},
    "batched": {"op": {name: {"batch_size": 4} for name in NAMES}},
    "processes": {"dag": {"is_thread_op": False}},
    "mixed": {"op": {"b": {"workers": "process"}}},
}


class Fails(Op):
    """Raises where the request says so."""

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        (fields, *_) = input_dicts.values()
        if fields.get("raises") == self.name:
            raise ValueError("of the user")
        if fields.get("refuses") == self.name:
            raise ProductError(51, "not this one")
        return fields, False, None, ""

    def postprocess(self, input_data: Any, fetch_data: Any, *args: Any) -> Any:
        return (fetch_data[0] if isinstance(fetch_data, list) else fetch_data), None, ""


class Counts(Fails):
    """Answers in parts, the second of which cannot be made."""

    def postprocess(self, input_data: Any, fetch_data: Any, *args: Any) -> Any:
        yield {"at": 0}, None, ""
        raise ValueError("of the user")


class Sleeps(Fails):
    """Takes longer than it may."""

    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        self.gate.wait(30)
        return feed_batch, None, ""


def op_of(server: Any, fields: Any) -> Any:
    status, answer = post(server, fields, "/api/svc")
    assert status != 200
    return answer["error"]["op"]


@pytest.mark.parametrize("way", WAYS)
def test_of_a_chain(way: str):
    a = Fails("a", [RequestOp()])
    with server_for(Fails("c", [Fails("b", [a])]), **WAYS[way]) as server:
        for _ in range(100):  # groups form meanwhile
            assert post(server, {"x": 1}, "/api/svc") == (200, {"x": 1})
        for _ in range(3):
            for name in NAMES:
                assert op_of(server, {"raises": name}) == name
                assert op_of(server, {"refuses": name}) == name


@pytest.mark.parametrize("way", WAYS)
def test_of_a_branch_of_a_join(way: str):
    request_op = RequestOp()
    branches = [Fails("a", [request_op]), Fails("b", [request_op])]
    with server_for(Fails("c", branches), **WAYS[way]) as server:
        for name in NAMES:
            assert op_of(server, {"raises": name}) == name


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_of_a_stream(workers: str):
    counts = Counts("counts", [RequestOp()])
    config = {"op": {"counts": {"workers": workers}}}
    with server_for(Fails("behind", [counts]), **config) as server:
        assert op_of(server, {"x": 1}) == "counts"


def test_a_timeout_names_its_op():
    op = Sleeps("sleeps", [RequestOp()], timeout=100)
    op.gate = threading.Event()
    try:
        with server_for(Fails("behind", [op])) as server:
            assert op_of(server, {"x": 1}) == "sleeps"
            op.gate.set()
    finally:
        op.gate.set()


def test_no_op_is_to_blame_for_a_request_that_cannot_be_read():
    with server_for(Fails("a", [RequestOp()])) as server:
        assert op_of(server, b"[]") is None
