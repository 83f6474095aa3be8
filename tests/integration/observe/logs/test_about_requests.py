"""JSON logs: of each line, the request and the Op that it is about."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from pipeline import Op, PipelineClient, PipelineServer, RequestOp, ResponseOp

LOG = logging.getLogger("pipeline.users")


class Plain(Op):
    def preprocess(self, input_dicts):
        LOG.warning("plain")
        return {"x": np.array([[int(input_dicts["@DAGExecutor"]["x"])]])}


class Parts(Op):
    async def preprocess(self, input_dicts):
        LOG.warning("begin")
        return input_dicts["plain"]

    def process(self, feed_batch):
        LOG.warning("part")
        yield {"y": feed_batch[0]["x"]}
        if (feed_batch[0]["x"] < 0).any():
            raise ValueError("negative")


def lines(folder: Path) -> list[dict[str, object]]:
    log = folder / "PipelineServingLogs" / "pipeline.log"
    return [json.loads(line) for line in log.read_text().splitlines()]


def about(line: dict[str, object]) -> dict[str, object]:
    names = ("op", "stage", "data_id", "log_id", "trace_id", "span_id")
    return {name: line[name] for name in names if name in line}


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_a_line_has_its_request_and_op(workers, tmp_path):
    server = PipelineServer("s")
    server.set_response_op(ResponseOp(Parts("parts", Plain("plain", RequestOp()))))
    config = {"rpc_port": 0, "log": {"format": "json", "request_sample": 1}}
    server.prepare_server(yml_dict={**config, "op": {"plain": {"workers": workers}}})
    with server, PipelineClient() as client:
        client.connect(f"127.0.0.1:{server.rpc_port}")
        client.predict({"x": "1"}, log_id=70).raise_for_error()
        assert client.predict({"x": "-1"}, log_id=71).err_no
    results = [(line["message"], about(line)) for line in lines(tmp_path)]
    first, second = {"data_id": 0, "log_id": 70}, {"data_id": 1, "log_id": 71}
    for request in (first, second):
        assert ("plain", {"op": "plain", "stage": "preprocess", **request}) in results
        assert ("begin", {"op": "parts", "stage": "preprocess", **request}) in results
        assert ("part", {"op": "parts", "stage": "process", **request}) in results
    assert ("(data_id=0 log_id=70) Succ predict", first) in results
    (raised,) = [reported for text, reported in results if "raised ValueError" in str(text)]
    assert raised == {"op": "parts", "stage": "process", **second}
    (failed,) = [reported for text, reported in results if "Failed to predict" in str(text)]
    assert failed == {"op": "parts", **second}
    assert ("pipeline server stopped", {}) in results


def test_text_lines_cost_no_notes(tmp_path):
    plain = Plain("plain", RequestOp())
    server = PipelineServer("s")
    server.set_response_op(ResponseOp(plain))
    for form, is_noted in (("json", True), ("text", False)):
        server.prepare_server(yml_dict={"rpc_port": 0, "log": {"format": form}})
        with server:
            assert (plain.pipeline_notes is not None) is is_noted
