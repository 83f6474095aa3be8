"""`python -m pipeline.serve` as a process: what it serves, what it refuses, how it ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import grpc
import numpy as np
import pytest
from doubles import wait_until
from grpc_health.v1 import health_pb2, health_pb2_grpc
from model_files import save_model
from onnx import TensorProto
from served import PATIENCE_S, environment, family_of, no_leftovers, python

from pipeline.errors import ConfigError
from pipeline.predictors.model_conf import CLIENT_FILE, SERVER_FILE, Var, read_model_conf
from pipeline.predictors.remote.base import RemoteModel, connect_remote_predictor
from pipeline.proto.brpc import frames as baidu_std
from pipeline.proto.brpc import general_model
from pipeline.proto.brpc.frames import SERVICE, BrpcCode, FrameReader, pack, request_meta
from pipeline.proto.general_model_pb2 import Request, Response
from pipeline.serve.arguments import read_arguments


class Serve:
    """The service as a process, with its stderr in `folder`."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.port = 0
        with (folder / "stderr").open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pipeline.serve", "--port", "0", *arguments],
                cwd=folder,
                env=environment(SERVING_LOG_PATH=str(folder)),
                stderr=err,
                start_new_session=True,
            )

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()

    def wait_until_ready(self) -> Self:
        ready = r"(?m)^\S+: pipeline server is ready: brpc, gRPC and HTTP on port (\d+)"
        wait_until(
            lambda: bool(re.search(ready, self.stderr)) or self.process.poll() is not None,
            PATIENCE_S,
        )
        match = re.search(ready, self.stderr)
        assert match, self.stderr
        self.port = int(match[1])
        return self

    def ends(self) -> int:
        return self.process.wait(PATIENCE_S)

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.ends()

    def close(self) -> None:
        for pid in family_of(self.folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        wait_until(lambda: not family_of(self.folder))


@contextlib.contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[Serve]:
    with no_leftovers():
        serve = Serve(folder, *arguments)
        try:
            yield serve.wait_until_ready()
        finally:
            serve.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Serve]:
    model = save_model(tmp_path / "toy")
    with serving(tmp_path, "--model", str(model), "--thread", "2", "--log_level", "ERROR") as serve:
        yield serve


class Brpc:
    """A blocking client of one call at a time."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._frames = FrameReader()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, request: bytes, number: int = 1, kind: int = 0, **more: Any) -> None:
        meta = request_meta("inference", number, **more)
        meta.compress_type = kind
        self._socket.sendall(pack(meta, baidu_std.compress(kind, request)))

    def receive(self) -> tuple[int, str, Response]:
        """(error code, error text, answer)"""
        frames: list[Any] = []
        while not frames:
            data = self._socket.recv(65536)
            assert data, "the server hung up"
            frames = self._frames.feed(data)
        (frame,) = frames
        body = baidu_std.decompress(frame.meta.compress_type, frame.body, 2**20)
        return *baidu_std.error_of(frame.meta), Response.FromString(body)

    def ask(self, request: bytes, **more: Any) -> tuple[int, str, Response]:
        self.send(request, **more)
        return self.receive()


def request_of(value: Any, name: str = "x", alias: str = "the_x", **more: Any) -> bytes:
    tensor = general_model.value_to_tensor(name, alias, np.asarray(value))
    return Request(tensor=[tensor], **more).SerializeToString()


ROW = np.array([[1, 2, 3]], np.float32)


def arrays_of(response: Response) -> dict[str, list[Any]]:
    (output,) = response.outputs
    return {t.alias_name: general_model.tensor_to_array(t).tolist() for t in output.tensor}


def over_grpc(port: int, request: bytes, method: str = "inference") -> Response:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(f"/{SERVICE}/{method}", None, Response.FromString)
        return call(request, timeout=PATIENCE_S)


# What it serves -------------------------------------------------------------------------------


def test_brpc_is_answered_compressed_or_not(service):
    with Brpc(service.port) as brpc:
        for kind in range(4):
            code, text, answer = brpc.ask(request_of(ROW, log_id=9), kind=kind)
            assert (code, text, answer.log_id) == (0, "", 9)
            assert arrays_of(answer) == {"the_y": [[2, 4, 6]], "the_z": [[0, 0, 0]]}
            assert [tensor.name for tensor in answer.outputs[0].tensor] == ["y", "z"]
        meta = request_meta("inference", 1)
        meta.compress_type = 2
        brpc._socket.sendall(pack(meta, b"no gzip"))
        assert brpc.receive()[0] == BrpcCode.BAD_REQUEST


def test_grpc_is_answered_on_the_same_port(service):
    for method in ("inference", "debug"):
        answer = over_grpc(service.port, request_of(ROW, log_id=9), method)
        assert arrays_of(answer)["the_y"] == [[2, 4, 6]]
        assert answer.log_id == 9


def test_grpc_reports_health(service):
    with grpc.insecure_channel(f"127.0.0.1:{service.port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=PATIENCE_S)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_a_feed_may_be_called_by_either_name(service):
    with Brpc(service.port) as brpc:
        for name, alias in (("x", ""), ("", "the_x"), ("the_x", ""), ("", "x")):
            assert brpc.ask(request_of(ROW, name, alias))[0] == 0


def test_requested_outputs_are_answered_in_order(service):
    with Brpc(service.port) as brpc:
        wanted = ["the_z", "y"]
        _, _, answer = brpc.ask(request_of(ROW, fetch_var_names=wanted))
    assert list(arrays_of(answer)) == ["the_z", "the_y"]


REFUSED = [
    (request_of(ROW, "q", "q"), "the model has no 'q' among its feeds: the_x, x"),
    (request_of(ROW, fetch_var_names=["q"]), "no 'q' among its fetches: the_y, the_z, y, z"),
    (request_of(np.ones((1, 4), np.float32)), "(1, 4)"),
    (request_of(np.array(["text"])), "'x'"),
    (b"", "no tensor for feed 'x'"),
    (request_of(ROW) * 2, "feed 'x' is there twice"),
    (request_of(ROW)[:-3], "not a Request"),
]


def test_an_input_that_the_model_cannot_take_is_refused_with_the_reason(service):
    for request, text in REFUSED:
        with Brpc(service.port) as brpc:
            code, result, _ = brpc.ask(request)
            assert (code, text in result) == (BrpcCode.BAD_REQUEST, True), result
            assert brpc.ask(request_of(ROW))[0] == 0
        with pytest.raises(grpc.RpcError) as caught:
            over_grpc(service.port, request)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert text in caught.value.details()


def test_many_callers_of_both_kinds_are_served_at_once(service):
    failures: list[object] = []

    def ask(number: int) -> None:
        row = np.full((1, 3), number, np.float32)
        with Brpc(service.port) as brpc:
            for _ in range(20):
                answers = [brpc.ask(request_of(row))[2], over_grpc(service.port, request_of(row))]
                if any(arrays_of(a)["the_y"] != [[2.0 * number] * 3] for a in answers):
                    failures.append(answers)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# Other ways to run it -------------------------------------------------------------------------


def test_in_processes_in_batches_and_with_a_port_for_grpc_alone(tmp_path):
    model = save_model(tmp_path / "toy", with_conf=False)
    more = ("--device", "cpu", "--gpu_ids", "0,1", "--batch_infer_size", "4", "--grpc_port", "0")
    conf = ("--write_client_conf", "conf")
    with serving(tmp_path, "--model", str(model), *more, *conf) as serve:
        assert read_model_conf(tmp_path / "conf").fetches[1] == Var("z", "z", False, 1, (3,))
        direct = re.search(r", gRPC on port (\d+)", serve.stderr)
        assert direct, serve.stderr
        answer = over_grpc(int(direct[1]), request_of(ROW, alias=""))
        assert arrays_of(answer)["y"] == [[2, 4, 6]]
        with Brpc(serve.port) as brpc:
            for number in range(50):
                brpc.send(request_of(np.full((1, 3), number, np.float32), alias="x"), number)
            frames: list[Any] = []
            while len(frames) < 50:
                frames += brpc._frames.feed(brpc._socket.recv(65536))
        for frame in frames:
            answer = Response.FromString(frame.body)
            assert arrays_of(answer)["y"] == [[2.0 * frame.meta.correlation_id] * 3]
        assert serve.terminate() == 0
        assert "ERROR" not in serve.stderr


def test_a_signal_ends_the_service_and_leaves_nothing(tmp_path):
    model = save_model(tmp_path / "toy")
    with serving(tmp_path, "--model", str(model / "model.onnx")) as serve:
        with Brpc(serve.port) as brpc:
            assert brpc.ask(request_of(ROW))[0] == 0
            serve.process.send_signal(signal.SIGTERM)
            assert serve.ends() == 0
            assert brpc._socket.recv(100) == b""
        assert family_of(tmp_path) == set()


def test_the_configuration_of_clients_is_written_and_works(tmp_path):
    model = save_model(tmp_path / "toy")
    conf = tmp_path / "new" / "conf"
    with serving(tmp_path, "--model", str(model), "--write_client_conf", str(conf)) as serve:
        assert read_model_conf(conf) == read_model_conf(model, SERVER_FILE)
        assert [file.name for file in conf.iterdir()] == [CLIENT_FILE]
        for client_type in ("brpc", "grpc"):
            predictor = connect_remote_predictor(
                RemoteModel("toy", client_type, (f"127.0.0.1:{serve.port}",), conf)
            )
            with contextlib.closing(predictor):
                assert predictor.predict({"the_x": ROW})["the_y"].tolist() == [[2, 4, 6]]


# What it refuses ------------------------------------------------------------------------------


def outcome(folder: Path, *arguments: str) -> tuple[int, str]:
    """(exit code, what it said on stderr, but not of a slow start) of one that does not serve."""
    done = python(folder, "-m", "pipeline.serve", *arguments)
    lines = done.stderr.splitlines(keepends=True)
    return done.returncode, "".join(line for line in lines if "[pipeline.startup]" not in line)


def test_a_corrupt_model_is_an_error_in_one_line(tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"garbage")
    code, said = outcome(tmp_path, "--model", "bad.onnx", "--port", "0")
    assert code == 1
    assert said.count("\n") == 1, said
    assert said.startswith("pipeline.serve: Op 'model' failed to start: model_config: cannot load")


def test_a_port_that_is_in_use_is_an_error_in_one_line(tmp_path):
    model = save_model(tmp_path / "toy")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for flag in ("--port", "--grpc_port"):
            arguments = ["--host", "127.0.0.1", "--port", "0", flag, port]
            code, said = outcome(tmp_path, "--model", str(model), *arguments)
            assert code == 1
            assert said.count("\n") == 1, said
            assert f"{flag}: cannot listen on 127.0.0.1:{port}" in said


def test_a_folder_that_cannot_be_made_is_an_error_before_the_model_is_loaded(tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"garbage")
    arguments = ["--model", "bad.onnx", "--port", "0", "--write_client_conf", "bad.onnx/conf"]
    code, said = outcome(tmp_path, *arguments)
    assert code == 1
    assert said.startswith("pipeline.serve: --write_client_conf: bad.onnx/conf cannot be made: ")


def test_a_type_without_a_form_for_clients_is_an_error_in_one_line(tmp_path):
    model = save_model(tmp_path / "toy", kind=TensorProto.UINT64)
    code, said = outcome(
        tmp_path, "--model", str(model), "--port", "0", "--write_client_conf", "conf"
    )
    assert code == 1
    assert said.count("\n") == 1, said
    assert "the input 'x' is uint64, which has no place in the general model service" in said
    assert list((tmp_path / "conf").iterdir()) == []


def test_help_lists_the_options():
    code, _ = outcome(Path.cwd(), "--help")
    assert code == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "--model: name the model's folder or file"),
        (("--model", "no/such"), "--model: no/such does not exist"),
        (("--model", "a", "b"), "several models"),
        (("--model", ".", "--use_lite"), "--use_lite: Paddle Lite is not supported"),
        (("--model", ".", "--use_encryption_model"), "decrypt the model first"),
        (("--model", ".", "--device", "gpu"), "--device gpu: name the cards"),
        (("--model", ".", "--local_service_conf", "{"), "--local_service_conf: this is no JSON"),
        (("--model", ".", "--local_service_conf", "[]"), "expected a JSON object"),
    ],
)
def test_an_unsupported_option_is_refused(arguments, text):
    with pytest.raises(ConfigError) as caught:
        read_arguments(arguments)
    assert text in str(caught.value)


def test_the_predecessors_flags_are_understood(tmp_path):
    model = str(save_model(tmp_path / "toy"))
    settings = read_arguments(
        f"--model {model} --port 9393 --thread 10 --gpu_ids 0 --name toy --precision fp16 "
        "--use_trt --use_calib --ir_optim --mem_optim --workdir w --op_num 2 "
        "--max_body_size 1000".split()
    )
    op = settings.config["op"]["model"]
    local = op["local_service_conf"]
    assert (settings.port, settings.name, op["concurrency"]) == (9393, "toy", 10)
    assert (op["workers"], settings.config["max_message_bytes"]) == ("thread", 1000)
    assert (local["devices"], local["device_type"], local["precision"]) == ("0", 2, "fp16")
    assert all(local[key] for key in ("use_calib", "ir_optim", "mem_optim"))
    assert [note.partition(" ")[0] for note in settings.notes] == ["--workdir", "--op_num"]


@pytest.mark.parametrize(
    ("flags", "use_mkldnn", "ir_optim"),
    [([], None, None), (["--ir_optim"], None, True), (["--use_mkl"], True, True)],
)
def test_options_without_a_flag_are_left_to_the_engine(tmp_path, flags, use_mkldnn, ir_optim):
    """An explicit False switches oneDNN off, which makes Paddle several times slower."""
    model = str(save_model(tmp_path / "toy"))
    op = read_arguments(["--model", model, *flags]).config["op"]["model"]
    local = op["local_service_conf"]
    assert (local["use_mkldnn"], local["ir_optim"]) == (use_mkldnn, ir_optim)


def test_paddle_models_run_in_processes_one_a_card(tmp_path):
    for name in ("m.pdmodel", "m.pdiparams"):
        (tmp_path / name).touch()
    for cards, workers in (([], 1), (["--gpu_ids", "0,1"], 2), (["--gpu_ids", "0", "1"], 2)):
        op = read_arguments(["--model", str(tmp_path), *cards]).config["op"]["model"]
        assert (op["workers"], op["concurrency"]) == ("process", workers)
