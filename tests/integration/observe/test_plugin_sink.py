"""A sink that a plug-in brings: opened from config.yml by a server, fed by it, and closed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plugins
import pytest

from pipeline import Op, PipelineServer, RequestOp, ResponseOp
from pipeline.client import PipelineClient
from pipeline.config import registry
from pipeline.errors import ConfigError, InitError, ProductError


@pytest.fixture(autouse=True)
def json_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for path in plugins.install(tmp_path / "site"):
        monkeypatch.syspath_prepend(path)
    registry._plug_ins.cache_clear()
    yield
    registry._plug_ins.cache_clear()


class Upper(Op):
    def preprocess(self, input_dicts: Any, data_id: int, log_id: int) -> tuple[Any, bool, Any, Any]:
        (value,) = input_dicts.values()
        if value["text"] == "bad":
            raise ProductError(5001, "not this one")
        return {"text": value["text"].upper()}, False, None, ""


def server_of(**config: Any) -> PipelineServer:
    server = PipelineServer("svc")
    ask = RequestOp()
    first = Upper(name="first", input_ops=[ask])
    server.set_response_op(ResponseOp([Upper(name="second", input_ops=[first])]))
    server.prepare_server(yml_dict={"rpc_port": 0, "statistics": False, **config})
    return server


def test_a_sink_from_outside_gets_each_request_and_each_op_by_name(tmp_path):
    path = tmp_path / "requests.jsonl"
    with server_of(sinks={"json_lines": {"path": str(path)}}) as server, PipelineClient() as client:
        client.connect([f"127.0.0.1:{server.rpc_port}"])
        assert client.predict({"text": "good"}).err_no == 0
        assert client.predict({"text": "bad"}).err_no != 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    good, bad = [line for line in lines if line["kind"] == "request"]
    assert (good["outcome"], good["err_no"], good["op"]) == ("OK", 0, None)
    assert bad["outcome"] == "PRODUCT"
    assert bad["err_no"] != 0
    ops = [(line["data_id"], line["op"], line["outcome"]) for line in lines if line["kind"] == "op"]
    assert sorted(ops) == [
        (good["data_id"], "first", "OK"),
        (good["data_id"], "second", "OK"),
        (bad["data_id"], "first", "PRODUCT"),
    ]
    assert all(line["took_ms"] >= 0 for line in (good, bad))


def test_options_of_a_plug_in_sink_are_checked(tmp_path):
    with pytest.raises(ConfigError, match=r"sinks\.json_lines\.path: expected str, found 1"):
        server_of(sinks={"json_lines": {"path": 1}})


def test_a_sink_that_cannot_be_opened_fails_the_start(tmp_path):
    server = server_of(sinks={"json_lines": {"path": str(tmp_path / "none" / "requests.jsonl")}})
    with pytest.raises(InitError, match=r"sinks\.json_lines\.path: .*No such file"):
        server.start()


class Deaf:
    def __init__(self, context: Any, options: Any) -> None:
        pass


def broken(context: Any, options: Any) -> None:
    raise OSError("no such disk")


@pytest.mark.parametrize(
    ("sink", "error", "text"),
    [
        (Deaf, ConfigError, r"sinks\.mine: expected a Sink, which has notify, found Deaf"),
        (broken, InitError, r"sinks\.mine: it cannot be opened: OSError: no such disk"),
        (
            Deaf(None, None),
            InitError,
            r"sinks\.mine: it cannot be opened: TypeError: 'Deaf' object",
        ),
    ],
)
def test_an_invalid_sink_is_refused_with_its_name(monkeypatch, sink, error, text):
    monkeypatch.setitem(registry._registered, ("sinks", "mine"), sink)
    with pytest.raises(error, match=text):
        server_of(sinks={"mine": None}).start()


def test_one_of_our_own_is_opened_once_if_it_is_named_too():
    with server_of(sinks={"statistics": None}, statistics=True) as server:
        sinks = [type(sink).__name__ for sink in server._service._first.observation.journal.sinks]
    assert sinks == ["Statistics", "SlowRequestLog", "Recording", "LastMinute"]
