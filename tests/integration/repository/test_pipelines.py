"""Pipelines in a repository: conditions, streams and Ops between models that they ask."""

from __future__ import annotations

import textwrap

from doubles import http
from repositories import add_identity, control, serving

CONFIG = """
backend: "pipeline"
max_batch_size: 0
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
%s
"""
UNSURE = """
    from pipeline import Goto, Op, RequestOp, ResponseOp
    from pipeline.repository.model_ops import AskModelOp

    class Look(Op):
        def preprocess(self, input_dicts):
            (read,) = input_dicts.values()
            x = read["x"]
            return Goto({"x": x}, "small" if x[0] < 10 else "large")

    class Pick(Op):
        def preprocess(self, input_dicts):
            (answer,) = input_dicts.values()
            return {"y": answer["y"] + 1}

    look = Look("look", RequestOp())
    names = {"inputs": {"INPUT0": "x"}, "outputs": {"OUTPUT0": "y"}}
    ways = [AskModelOp(name, look, name, **names) for name in ("small", "large")]
    end = ResponseOp(Pick("pick", ways))
"""
PARTS = """
    from pipeline import Op, RequestOp, ResponseOp
    from pipeline.repository.model_ops import AskModelOp

    class Count(Op):
        def process(self, feed_batch):
            for number in range(int(feed_batch[0]["x"][0])):
                yield {"n": [float(number)]}

    class Add(Op):
        def preprocess(self, input_dicts):
            parts = input_dicts["same"]
            return {"y": [sum(part["OUTPUT0"][0] for part in parts), float(len(parts))]}

    same = AskModelOp("same", Count("count", RequestOp()), "cheap", inputs={"INPUT0": "n"})
    end = ResponseOp(Add("add", same, gather=True))
"""


def add_script(repository, name, script, more=""):
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "web_server.py").write_text(textwrap.dedent(script))
    (folder / "config.pbtxt").write_text(CONFIG % more)


def infer_one(server, model, *values):
    sent = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [len(values)], "data": list(values)}]
    }
    status, _, answer = http(server, "POST", f"/v2/models/{model}/infer", sent)
    return answer["outputs"][0]["data"] if status == 200 else (status, answer["error"])


def counts(server):
    _, _, answer = http(server, "GET", "/v2/models/stats")
    return {item["name"]: item["inference_count"] for item in answer["model_stats"]}


def test_a_request_is_routed_to_one_of_two_models(tmp_path):
    for name in ("small", "large"):
        add_identity(tmp_path, name, 1, most=0)
    add_script(tmp_path, "unsure", UNSURE)
    with serving(tmp_path, models=("small", "large", "unsure")) as server:
        for _ in range(3):
            assert infer_one(server, "unsure", 1.0, 2.0) == [2.0, 3.0]
        assert infer_one(server, "unsure", 20.0) == [21.0]
        assert counts(server) == {"small": 3, "large": 1, "unsure": 4}
        assert control(server, "large", "unload") == (200, None)
        status, text = infer_one(server, "unsure", 20.0)
        assert (status, "Request for unknown model: 'large'" in text) == (404, True)
        assert infer_one(server, "unsure", 1.0) == [2.0]


def test_parts_of_an_op_pass_a_model_and_are_gathered(tmp_path):
    add_identity(tmp_path, "cheap", 1, most=0)
    add_script(tmp_path, "parts", PARTS)
    with serving(tmp_path, models=("cheap", "parts")) as server:
        assert infer_one(server, "parts", 5.0) == [10.0, 5.0]
        assert counts(server) == {"cheap": 5, "parts": 1}


STREAM = """
    from pipeline import Op, RequestOp, ResponseOp
    from pipeline.repository.model_ops import AskModelOp

    class Lengths(Op):
        def preprocess(self, input_dicts):
            return {"y": [float(len(input_dicts["ask"]))]}

    ask = AskModelOp("ask", RequestOp(), "counts", parts=True)
    end = ResponseOp(Lengths("lengths", ask, gather=True))
"""
COUNTS = """
    from pipeline import Op, RequestOp, ResponseOp

    class Count(Op):
        def process(self, feed_batch):
            for number in range(int(feed_batch[0]["x"][0])):
                yield {"y": [float(number)]}

    end = ResponseOp(Count("count", RequestOp()))
"""


def test_a_model_that_streams_is_called_for_parts(tmp_path):
    add_script(tmp_path, "asks", STREAM)
    add_script(tmp_path, "counts", COUNTS, "model_transaction_policy { decoupled: true }")
    with serving(tmp_path, mode="none") as server:
        assert infer_one(server, "asks", 100.0) == [100.0]
        status, _ = infer_one(server, "counts", 3.0)
        assert status == 501


def test_a_script_that_fails_or_has_no_graph_is_refused(tmp_path):
    add_identity(tmp_path, "cheap", 1, most=0)
    add_script(tmp_path, "broken", "1 / 0")
    add_script(tmp_path, "empty", "x = 1")
    with serving(tmp_path) as server:
        for name, text in {
            "broken": "web_server.py raised ZeroDivisionError",
            "empty": "there are 0 ResponseOps among its names, not one",
        }.items():
            status, result = control(server, name, "load")
            assert (status, text in result) == (400, True), result
