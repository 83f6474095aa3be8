"""The predictor: arrays in and out over baidu_std, and what it says when something is wrong."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_brpc import WAIT_S, Collecting, FakeServer, Peer

from pipeline.deadline import set_call_deadline
from pipeline.errors import (
    ClosedError,
    DeadlineError,
    InitError,
    InputError,
    PayloadTypeError,
    PredictorError,
    PredictorUnavailableError,
)
from pipeline.predictors.base import Predictor
from pipeline.predictors.remote.base import RemoteModel, connect_remote_predictor
from pipeline.predictors.remote.general_model import GeneralModelPredictor
from pipeline.proto.brpc.frames import BrpcFrame
from pipeline.proto.general_model_pb2 import Request, Response

CONF = """
feed_var { name: "x" alias_name: "x" is_lod_tensor: false feed_type: 1 shape: 13 }
feed_var { name: "w" alias_name: "words" is_lod_tensor: true feed_type: 0 shape: -1 }
fetch_var { name: "x" alias_name: "x" is_lod_tensor: false fetch_type: 1 shape: 13 }
fetch_var { name: "w" alias_name: "words" is_lod_tensor: true fetch_type: 0 shape: -1 }
"""
SOON_S = 0.05
FEED = {
    "x": np.linspace(0, 1, 13, dtype=np.float32).reshape(1, 13),
    "words": np.array([[4], [5], [6]]),
    "words.lod": [0, 1, 3],
}


def echo_outputs(peer: Peer, frame: BrpcFrame) -> None:
    """Answer with the inputs as the outputs of one model."""
    request = Request.FromString(frame.body)
    response = Response()
    response.outputs.add(engine_name="echo").tensor.extend(request.tensor)
    peer.answer(frame, response.SerializeToString(), compression=2)


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    (tmp_path / "serving_client_conf.prototxt").write_text(CONF)
    return tmp_path


@contextlib.contextmanager
def predictor_to(*endpoints: str, conf: Path, **fields: Any) -> Iterator[GeneralModelPredictor]:
    predictor = connect_remote_predictor(RemoteModel("rec", "brpc", endpoints, conf, **fields))
    assert isinstance(predictor, GeneralModelPredictor)
    try:
        yield predictor
    finally:
        predictor.close()


def test_arrays_survive_the_round_trip(conf: Path) -> None:
    with (
        FakeServer(echo_outputs) as server,
        predictor_to(server.endpoint, conf=conf) as predictor,
    ):
        seam: Predictor = predictor
        assert seam.feed_names == seam.fetch_names == ("x", "words")
        answer = seam.predict(FEED)
        assert list(answer) == ["x", "words", "words.lod"]
        for name, value in answer.items():
            np.testing.assert_array_equal(value, FEED[name])
        assert list(seam.predict(FEED, fetch=["words"])) == ["words", "words.lod"]


def test_the_id_of_the_request_is_sent(conf: Path) -> None:
    with (
        FakeServer(echo_outputs) as server,
        predictor_to(server.endpoint, conf=conf) as predictor,
    ):
        predictor.predict(FEED, log_id=2**63 + 5)
        predictor.predict(FEED, logid=9)
        metas = [frame.meta.request.log_id for frame in server.requests]
        assert metas == [5 - 2**63, 9]
        assert [Request.FromString(frame.body).log_id for frame in server.requests] == [
            2**63 + 5,
            9,
        ]


@pytest.mark.parametrize(
    ("feed", "error"),
    [
        ({"x": FEED["x"]}, InputError),
        ({**FEED, "x": FEED["x"].astype(complex)}, InputError),
        ({**FEED, "x": FEED["x"][:0]}, InputError),
        ({**FEED, "x": "text"}, PayloadTypeError),
    ],
)
def test_an_invalid_feed_is_refused_before_the_request(
    conf: Path, feed: dict[str, Any], error: type[Exception]
) -> None:
    with (
        FakeServer(echo_outputs) as server,
        predictor_to(server.endpoint, conf=conf) as predictor,
    ):
        with pytest.raises(error, match=r"^\[rec\]"):
            predictor.predict(feed)
        assert not server.requests


def test_an_unknown_argument_is_a_mistake_of_the_caller(conf: Path) -> None:
    with (
        FakeServer(echo_outputs) as server,
        predictor_to(server.endpoint, conf=conf) as predictor,
        pytest.raises(TypeError),
    ):
        predictor.predict(FEED, fetchs=["x"])


def test_the_error_of_the_model_is_returned(conf: Path) -> None:
    def fail(peer: Peer, frame: BrpcFrame) -> None:
        peer.answer(frame, Response(err_no=5, err_msg="no memory").SerializeToString())

    with (
        FakeServer(fail) as server,
        predictor_to(server.endpoint, conf=conf) as predictor,
        pytest.raises(PredictorError, match="error 5: no memory"),
    ):
        predictor.predict(FEED)


def test_an_invalid_answer_is_an_error_and_the_next_call_works(conf: Path) -> None:
    with (
        FakeServer(lambda peer, frame: peer.answer(frame, b"\xff\xff\xff")) as server,
        predictor_to(server.endpoint, conf=conf) as predictor,
    ):
        with pytest.raises(PredictorUnavailableError, match="garbage"):
            predictor.predict(FEED)
        server.behaviour = echo_outputs
        assert predictor.predict(FEED)


@pytest.mark.parametrize("limit", ["argument", "call", "model"])
def test_each_limit_of_time_ends_a_call(conf: Path, limit: str) -> None:
    timeout_s = SOON_S if limit == "model" else WAIT_S
    deadline_s = SOON_S if limit == "argument" else None
    call = contextvars.copy_context()
    if limit == "call":
        call.run(set_call_deadline, time.monotonic() + SOON_S)
    with (
        FakeServer(Collecting()) as server,
        predictor_to(server.endpoint, conf=conf, timeout_s=timeout_s) as predictor,
        pytest.raises(DeadlineError, match=r"no answer from the server at|the deadline passed"),
    ):
        call.run(lambda: predictor.predict(FEED, deadline_s=deadline_s))


def test_without_remaining_time_no_request_is_sent(conf: Path) -> None:
    with (
        FakeServer(echo_outputs) as server,
        predictor_to(server.endpoint, conf=conf) as predictor,
    ):
        with pytest.raises(DeadlineError):
            predictor.predict(FEED, deadline_s=0.0)
        assert not server.requests


def test_an_unavailable_server_at_the_start_is_a_warning_and_may_start_later(
    conf: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with predictor_to(f"127.0.0.1:{port}", conf=conf) as predictor:
        [record] = caplog.records
        assert record.levelno == logging.WARNING
        assert record.getMessage().startswith(f"[rec] no server at 127.0.0.1:{port}: cannot")
        with pytest.raises(PredictorUnavailableError, match="Connection refused"):
            predictor.predict(FEED)
        with FakeServer(echo_outputs, port):
            assert predictor.predict(FEED)


def test_a_closed_predictor_refuses(conf: Path) -> None:
    with (
        FakeServer(echo_outputs) as server,
        predictor_to(server.endpoint, conf=conf) as predictor,
    ):
        predictor.predict(FEED)
        predictor.close()
        predictor.close()
        with pytest.raises(ClosedError, match=r"\[rec\]"):
            predictor.predict(FEED)


@pytest.mark.usefixtures("open_files")
def test_many_threads_share_a_predictor(conf: Path) -> None:
    def double(number: int) -> float:
        feed = {**FEED, "x": np.full((1, 13), number, np.float32)}
        return float(predictor.predict(feed, fetch=["x"])["x"][0, 12])

    with (
        FakeServer(echo_outputs) as server,
        predictor_to(server.endpoint, conf=conf) as predictor,
        ThreadPoolExecutor(64) as callers,
    ):
        assert list(callers.map(double, range(1000))) == list(range(1000))


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"endpoints": ()}, "server_endpoints"),
        ({"endpoints": ("localhost",)}, "server_endpoints"),
        ({"endpoints": (9393,)}, "server_endpoints"),
        ({"client_config": None}, "client_config"),
        ({"client_config": Path("/nowhere")}, "/nowhere"),
        ({"fetch_list": ["prices"]}, "prices"),
    ],
)
def test_a_configuration_that_cannot_work_is_an_error_at_start(
    conf: Path, fields: dict[str, Any], key: str
) -> None:
    whole = {"endpoints": ("127.0.0.1:1",), "client_config": conf, **fields}
    with pytest.raises(InitError, match=key):
        connect_remote_predictor(RemoteModel("rec", "brpc", **whole))
