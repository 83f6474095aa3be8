"""The predictor for GeneralModelService over gRPC, against a server in this process."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_peers import Gate, peer

from pipeline.errors import (
    ClosedError,
    DeadlineError,
    InitError,
    InputError,
    PayloadTypeError,
    PredictorError,
    PredictorUnavailableError,
)
from pipeline.predictors.remote.base import RemoteModel, connect_remote_predictor
from pipeline.predictors.remote.general_model import GeneralModelPredictor
from pipeline.proto.brpc.frames import SERVICE
from pipeline.proto.general_model_pb2 import Request, Response

CONF = """
feed_var { name: "x0" alias_name: "x" is_lod_tensor: false feed_type: 1 shape: 2 }
feed_var { name: "t0" alias_name: "text" is_lod_tensor: false feed_type: 20 shape: 1 }
fetch_var { name: "x1" alias_name: "y" is_lod_tensor: false fetch_type: 1 shape: 2 }
fetch_var { name: "t1" alias_name: "said" is_lod_tensor: false fetch_type: 20 shape: 1 }
"""
ANSWERS = {"x": "y", "text": "said"}


class Server:
    """Answers each input as the output of its place."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answer: Callable[[Request], Response] = self.echo

    def __call__(self, message: bytes, context: Any) -> bytes:
        request = Request.FromString(message)
        self.requests.append(request)
        return self.answer(request).SerializeToString()

    def echo(self, request: Request) -> Response:
        response = Response(log_id=request.log_id)
        output = response.outputs.add(engine_name="m")
        for tensor in request.tensor:
            answer = output.tensor.add()
            answer.CopyFrom(tensor)
            answer.alias_name = ANSWERS[tensor.alias_name]
        return response


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    (tmp_path / "serving_client_conf.prototxt").write_text(CONF)
    return tmp_path


@contextlib.contextmanager
def connected(conf: Path | None, server: Any, **options: Any) -> Iterator[GeneralModelPredictor]:
    with peer(SERVICE, {"inference": server}) as there:
        model = RemoteModel("uci", "grpc", (there.endpoint,), conf, **options)
        predictor: Any = connect_remote_predictor(model)
        try:
            yield predictor
        finally:
            predictor.close()


def feed(rows: int = 1) -> dict[str, Any]:
    return {
        "x": np.arange(2 * rows, dtype=np.float32).reshape(rows, 2),
        "text": [f"é{row}" for row in range(rows)],
    }


def test_the_former_name_of_the_log_id_counts(conf: Path):
    server = Server()
    with connected(conf, server) as predictor:
        predictor.predict(feed(), logid=9)
    assert [request.log_id for request in server.requests] == [9]


def test_arrays_and_text_survive_the_round_trip(conf: Path):
    server = Server()
    with connected(conf, server) as predictor:
        assert predictor.feed_names == ("x", "text")
        assert predictor.fetch_names == ("y", "said")
        answer = predictor.predict(feed(3), log_id=7)
    assert list(answer) == ["y", "said"]
    np.testing.assert_array_equal(answer["y"], feed(3)["x"])
    assert answer["said"].tolist() == ["é0", "é1", "é2"]
    (request,) = server.requests
    assert request.log_id == 7
    assert list(request.fetch_var_names) == ["y", "said"]
    assert [(tensor.name, tensor.alias_name) for tensor in request.tensor] == [
        ("x0", "x"),
        ("t0", "text"),
    ]


def test_only_fetched_outputs_are_returned(conf: Path):
    with connected(conf, Server(), fetch_list=["said"]) as predictor:
        assert list(predictor.predict([feed()])) == ["said"]
        assert list(predictor.predict(feed(), fetch=["y"])) == ["y"]


def test_offsets_travel_with_their_array(conf: Path):
    with connected(conf, Server()) as predictor:
        answer = predictor.predict({**feed(3), "x.lod": [0, 1, 3]})
    assert answer["y.lod"].tolist() == [0, 1, 3]


def test_one_sample_gets_a_batch_axis(conf: Path):
    with connected(conf, Server()) as predictor:
        answer = predictor.predict({"x": np.zeros(2, np.float32), "text": ["a"]}, batch=False)
    assert answer["y"].shape == (1, 2)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"x": np.zeros((1, 2), np.complex64)}, InputError),
        ({"x": np.zeros((0, 2), np.float32)}, InputError),
        ({"x": "text"}, PayloadTypeError),
        ({"text": ["\ud800"]}, PayloadTypeError),
        ({"text": np.array([b"\xff"], object)}, PayloadTypeError),
    ],
)
def test_a_wrong_feed_is_refused_before_it_is_sent(
    conf: Path, wrong: dict[str, Any], error: type[Exception]
):
    server = Server()
    with connected(conf, server) as predictor, pytest.raises(error, match=r"\[uci\]"):
        predictor.predict({**feed(), **wrong})
    assert server.requests == []


def test_the_error_of_the_peer_is_named_and_the_next_call_works(conf: Path):
    server = Server()
    with connected(conf, server) as predictor:
        server.answer = lambda request: Response(err_no=12, err_msg="no memory")
        with pytest.raises(PredictorError, match=r"\[uci\].*error 12: no memory"):
            predictor.predict(feed())
        server.answer = server.echo
        predictor.predict(feed())


def test_an_invalid_answer_is_the_peers_error(conf: Path, caplog: pytest.LogCaptureFixture):
    with (
        connected(conf, lambda *_: b"\xff\xff") as predictor,
        pytest.raises(PredictorError, match=r"\[uci\] the answer of the server at .* cannot be"),
    ):
        predictor.predict(feed())
    assert caplog.records == []


def test_a_status_of_the_peer_is_named(conf: Path):
    def fail(message: bytes, context: Any) -> bytes:
        context.abort(grpc.StatusCode.INTERNAL, "engine broke")
        raise AssertionError

    with (
        connected(conf, fail) as predictor,
        pytest.raises(PredictorError, match="answered INTERNAL: engine broke"),
    ):
        predictor.predict(feed())


def test_a_slow_answer_is_a_deadline_error(conf: Path):
    gate = Gate(Server())
    with connected(conf, gate) as predictor:
        with pytest.raises(DeadlineError):
            predictor.predict(feed(), deadline_s=0.05)
        gate.opened.set()
        predictor.predict(feed())


def test_arguments_of_older_clients_are_accepted_and_others_are_not(conf: Path):
    with connected(conf, Server()) as predictor:
        predictor.predict(feed(), need_variant_tag=False, logid=3)
        with pytest.raises(TypeError, match="nonsense"):
            predictor.predict(feed(), nonsense=1)


def test_a_closed_predictor_raises(conf: Path):
    with connected(conf, Server()) as predictor:
        pass
    predictor.close()
    with pytest.raises(ClosedError):
        predictor.predict(feed())


def test_a_server_that_starts_later_is_a_warning_at_the_start(
    conf: Path, caplog: pytest.LogCaptureFixture
):
    with peer(SERVICE, {}) as gone:
        pass
    with caplog.at_level(logging.WARNING):
        predictor = connect_remote_predictor(RemoteModel("uci", "grpc", (gone.endpoint,), conf))
    assert gone.endpoint in caplog.text
    with pytest.raises(PredictorUnavailableError):
        predictor.predict(feed())
    predictor.close()


def test_without_the_models_prototxt_the_start_fails():
    model = RemoteModel("uci", "grpc", ("127.0.0.1:9292",))
    with pytest.raises(InitError, match=r"op\.uci\.client_config: client_type grpc needs"):
        connect_remote_predictor(model)
