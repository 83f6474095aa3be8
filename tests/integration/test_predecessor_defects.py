"""Defects of Paddle Serving's pipeline that users met, each shown absent on a running server.

The numbers are those of docs/paddle_differences.md, which names the tests of the other defects.
"""

from __future__ import annotations

import threading
import tomllib

import numpy as np
import pytest
from doubles import Tag, client_of, post, server_for
from grpc_peers import peer
from paths import ROOT

from pipeline import Op, ProductError, RequestOp
from pipeline.engine.run.collate import distribute, plan
from pipeline.predictors.base import TensorSpec
from pipeline.predictors.signature import ModelSignature
from pipeline.proto.brpc import frames as baidu_std
from pipeline.proto.brpc import general_model
from pipeline.proto.general_model_pb2 import Request, Response

BATCHED = {"batch_size": 4, "auto_batching_timeout": 100}


class Hangs(Op):
    """Hangs where the request says so, until `release` is set."""

    release: threading.Event

    def process(self, feed_batch, typical_logid):
        if feed_batch[0]["how"] == "hang":
            self.release.wait(60)
        return feed_batch[0]


@pytest.fixture
def release():
    event = threading.Event()
    yield event
    event.set()


def test_a_service_continues_after_dag_retry_met_a_timeout(release):
    """2: the second attempt was an error that ended the thread which answers all requests."""
    op = Hangs("hangs", RequestOp(), timeout=500)
    op.release = release
    with server_for(op, dag={"retry": 3}) as server, client_of(server) as client:
        assert client.predict({"how": "hang"}).err_no == 6000
        for _ in range(3):
            assert client.predict({"how": "go"})["how"] == "go"
        release.set()


def grid(shape):
    return np.zeros(shape, np.float32)


class Awkward(Op):
    """Feeds and answers in the ways that ended the predecessor's workers."""

    def preprocess(self, input_dicts):
        how = input_dicts["@DAGExecutor"]["how"]
        feeds = {
            "wide": {"x": grid((1, 5))},
            "list": [{"x": grid((1, 2))}],
            "number as a name": {"x": grid((1, 2)), 0: grid((1, 2))},
            "text": "no feed",
        }
        return feeds.get(how, {"x": grid((1, 2))})

    def process(self, feed_batch):
        return {"rows": grid((len(feed_batch[0]["x"]), 1)), "odd": grid((7,))}

    def postprocess(self, input_dicts, fetch_data):
        how = input_dicts["@DAGExecutor"]["how"]
        answers = {"empty": {"x": []}, "none": None, "number": {"x": 1}, "dict": {"x": {"y": 1}}}
        return answers.get(how, {"how": how})


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("wide", 0),
        ("list", 0),
        ("number as a name", 0),
        ("empty", 0),
        ("text", 7000),
        ("none", 7000),
        ("number", 0),
        ("dict", 7000),
    ],
)
def test_no_feed_and_no_answer_ends_a_worker(how, code):
    """3: shapes that differ, an empty answer, outputs that cannot be cut, kinds that differ."""
    op = Awkward("awkward", RequestOp(), batch_size=4, auto_batching_timeout=30_000)
    with server_for(op) as server, client_of(server) as client:
        for full_batch in (("plain", how, how, "plain"), (how,) * 4, ("plain",) * 4):
            asked = [client.predict({"how": item}, asyn=True) for item in full_batch]
            codes = [future.result(20).err_no for future in asked]
            assert codes == [code if item == how else 0 for item in full_batch]


def test_a_mini_batch_may_have_a_timeout():
    """6: with a timeout every mini-batch failed."""

    class Mini(Op):
        def preprocess(self, input_dicts):
            return [{"x": grid((1, width))} for width in (2, 3)]

        def process(self, feed_batch, typical_logid):
            return {"width": feed_batch[0]["x"].shape[1:]}

        def postprocess(self, input_dicts, fetch_data):
            return {"widths": str([int(*one["width"]) for one in fetch_data])}

    op = Mini("mini", RequestOp(), timeout=30_000)
    with server_for(op) as server, client_of(server) as client:
        assert client.predict({})["widths"] == [2, 3]


def test_a_middle_op_that_returns_none_is_an_error_of_its_request_only():
    """7: the next Op's worker ended the whole process."""

    class Absent(Op):
        def process(self, feed_batch, typical_logid):
            return None if feed_batch[0]["how"] == "none" else feed_batch[0]

    last = Tag("last", Absent("absent", RequestOp()))
    with server_for(last) as server, client_of(server) as client:
        response = client.predict({"how": "none"})
        assert (response.err_no, "returned None" in response.err_msg) == (7000, True)
        assert client.predict({"how": "fine", "path": "x"})["path"] == "x>last"


def test_a_full_channel_after_several_producers_loses_no_request():
    """8: a producer that met a full channel of a join ended."""
    read = RequestOp()
    join = Tag("join", [Tag("left", read), Tag("right", Tag("middle", read))])
    with server_for(join, dag={"channel_size": 1}) as server, client_of(server) as client:
        asked = [client.predict({"path": str(i)}, asyn=True) for i in range(50)]
        for i, future in enumerate(asked):
            assert future.result(30)["path"] == f"({i}>left|{i}>middle>right)>join"


def test_one_request_may_be_queued_twice_at_an_op():
    """10: two entries of one request were compared by their data, which has no order."""

    class Doubles(Tag):
        def check_jumping(self, input_data):
            return True

    doubles = Doubles("doubles", RequestOp())
    skipped = Tag("skipped", doubles)
    doubles.set_jump_to_ops([skipped, skipped])
    last = Tag("last", skipped, **BATCHED)
    with server_for(last) as server, client_of(server) as client:
        for _ in range(3):
            assert client.predict({"path": "x"})["path"] == "x>doubles>last"


class FarAway(Op):
    """Asks its model for twice the numbers of the request."""

    def preprocess(self, input_dicts, data_id, log_id):
        x = np.array(input_dicts["@DAGExecutor"]["x"].split(","), np.float32)
        return {"x": x[np.newaxis]}

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        return {"y": str(fetch_data["y"].tolist())}


def doubled(message, context):
    """What a general model service answers that doubles `x`."""
    x = general_model.tensor_to_array(Request.FromString(message).tensor[0])
    response = Response()
    output = response.outputs.add()
    general_model.put_value(output.tensor.add(), "y", "y", x * 2)
    return response.SerializeToString()


def test_a_model_is_called_over_grpc(tmp_path):
    """12: `client_type: grpc` was accepted, and every request failed."""
    (tmp_path / "serving_client_conf.prototxt").write_text(
        'feed_var { name: "x" alias_name: "x" is_lod_tensor: false feed_type: 1 shape: 2 }\n'
        'fetch_var { name: "y" alias_name: "y" is_lod_tensor: false fetch_type: 1 shape: 2 }\n'
    )
    with peer(baidu_std.SERVICE, {"inference": doubled}) as far:
        remote = {
            "server_endpoints": [far.endpoint],
            "client_type": "grpc",
            "client_config": str(tmp_path),
        }
        server = server_for(FarAway("far", RequestOp()), op={"far": remote})
        with server, client_of(server) as client:
            assert client.predict({"x": "1,2"}).value == ["[[2.0, 4.0]]"]


class Doubled(Op):
    def process(self, feed_batch, typical_logid):
        return {"y": feed_batch[0]["x"] * 2}, 0, ""


def test_a_pipeline_is_called_by_another_one():
    """12: `client_type: pipeline_grpc` also failed at every request."""
    with server_for(Doubled("double", RequestOp())) as far:
        remote = {
            "server_endpoints": [f"127.0.0.1:{far.rpc_port}"],
            "client_type": "pipeline_grpc",
        }
        near = server_for(FarAway("far", RequestOp()), op={"far": remote})
        with near, client_of(near) as client:
            assert client.predict({"x": "1,2"}).value == ["[[2.0, 4.0]]"]


@pytest.mark.parametrize("name", ["lod", "lodging", "explode", "x.lod", "a.lod.b"])
def test_a_name_with_lod_in_it_is_a_name_as_any_other(name):
    """17: feeds whose name contains "lod" were dropped."""
    signature = ModelSignature("m", [TensorSpec(name, np.dtype(np.float32), (None, 2))], [])
    assert signature.feed({name: grid((1, 2))})[name].shape == (1, 2)

    class Echo(Op):
        def process(self, feed_batch, typical_logid):
            return feed_batch[0]

    with server_for(Echo("echo", RequestOp())) as server, client_of(server) as client:
        response = client.predict({name: grid((1, 2))}, pack_tensor_format=True)
        assert response.as_numpy(name).shape == (1, 2)


def test_names_with_lod_in_them_are_merged_and_split():
    """17: the same, in a batch."""
    samples = {i: {"explode": np.full((1, 2), i), "lod": np.full((1, 1), i)} for i in range(2)}
    (call,) = plan(samples)
    call.result = call.feed
    for i, answer in enumerate(distribute(call)):
        assert {name: value.tolist() for name, value in answer.items()} == {
            "explode": [[i, i]],
            "lod": [[i]],
        }


@pytest.mark.parametrize("stage", ["preprocess", "process", "postprocess"])
@pytest.mark.parametrize("error", [ValueError, lambda text: ProductError(51, text)])
def test_an_error_text_reaches_the_caller_whole(stage, error):
    """21: texts were cut at the first colon, tab or line break."""
    text = "x: must be\t> 0\nand 'even'"

    def raises(self, *args):
        raise error(text)

    op = type("Raises", (Op,), {stage: raises})("raises", RequestOp())
    with server_for(op) as server:
        assert text in post(server, {})[1]["err_msg"]


def test_an_op_may_have_a_number_of_attempts():
    """23: with NumPy 2 `Op(retry=...)` raised, as numpy's max had taken the place of Python's."""
    assert Op("op", RequestOp(), retry=3).pipeline_given["retry"] == 3


def test_no_dependency_is_held_back_to_an_old_version():
    """24: pins to releases without wheels for today's Python made installing impossible."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for requirement in (*project["dependencies"], *extras["onnx"], *extras["gpu"]):
        if not requirement.startswith("grpcio>"):  # from there on a peer can close the port
            assert "<" not in requirement
        assert "==" not in requirement.partition(";")[0]


def test_an_error_in_a_batch_that_jumps_reaches_its_caller_and_the_others_jump():
    """25: requests in error, and the Ops between, never saw the jump target."""

    class Jumps(Op):
        def preprocess(self, input_dicts):
            answer = input_dicts["@DAGExecutor"]
            if answer["path"] == "bad":
                raise ProductError(51, "bad one")
            return answer

        def check_jumping(self, input_data):
            return True

    read = RequestOp()
    jumper = Jumps("jumps", read, **BATCHED)
    skipped = Tag("skipped", jumper)
    jumper.set_jump_to_ops(skipped)
    join = Tag("join", [skipped, Tag("other", read)])
    with server_for(join) as server, client_of(server) as client:
        for _ in range(2):
            asked = [client.predict({"path": path}, asyn=True) for path in ("a", "bad", "c")]
            first, bad, third = (future.result(30) for future in asked)
            assert (first["path"], third["path"]) == ("(a|a>other)>join", "(c|c>other)>join")
            assert (bad.err_no, bad.err_msg) == (51, "bad one")
