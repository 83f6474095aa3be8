"""The filter `record`: requests in the form of a load, and a disk that refuses them."""

from __future__ import annotations

import json

import numpy as np
from doubles import chain, client_of, http, server_for, wait_until

from pipeline.tuning.load import read_load


def recording(path, **more):
    return {"filters": {"record": {"file": str(path), "service": "svc", **more}}}


def lines_of(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_recorded_requests_are_a_load_that_can_be_replayed(tmp_path):
    path = tmp_path / "load.jsonl"
    with (
        server_for(chain("a"), http_port=0, **recording(path)) as server,
        client_of(server) as client,
    ):
        client.predict({"x": "1"})
        client.predict({"x": np.array([[1.5, 2.0]], np.float32)})
        wait_until(lambda: path.exists() and len(lines_of(path)) == 2)
        first, second = read_load(path)
        assert (first.path, bytes(first.body)) == (
            "/svc/prediction", b'{"key":["x"],"value":["1"]}',
        )  # fmt: skip
        assert first.at_once >= 1
        for item in (first, second):
            status, _, answer = http(server, "POST", item.path, json.loads(bytes(item.body)))
            assert (status, answer["err_no"]) == (200, 0)


def test_so_many_are_written_and_single_models_are_not(tmp_path):
    path = tmp_path / "load.jsonl"
    with server_for(chain("a"), **recording(path, most=2)) as server, client_of(server) as client:
        for number in range(5):
            client.predict({"x": str(number)})
        wait_until(lambda: path.exists() and len(lines_of(path)) == 2)
    assert [line["body"]["value"] for line in lines_of(path)] == [["0"], ["1"]]


def test_an_unwritable_file_does_not_affect_requests(tmp_path, capfd):
    said = recording(tmp_path / "no" / "load.jsonl")
    with server_for(chain("a"), **said) as server, client_of(server) as client:
        for _ in range(3):
            assert client.predict({"x": "1"}).err_no == 0
