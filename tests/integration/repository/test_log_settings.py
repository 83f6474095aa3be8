"""Log settings of v2: shown and changed over HTTP and gRPC, and what the log has then."""

from __future__ import annotations

import itertools
import logging

import grpc
import pytest
from doubles import http, wait_until
from repositories import add_python, infer, serving

from pipeline.proto import inference_v2_pb2 as pb

AT_FIRST = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}
METHOD = "/inference.GRPCInferenceService/LogSettings"
NUMBERS = itertools.count()
LOGGER = logging.getLogger("pipeline.of_this_test")


def logged(capfd, *levels):
    """The levels of which the log has a line that was just logged."""
    for level in levels:
        LOGGER.log(getattr(logging, level), "said at %s", level)
    last = f"the last line {next(NUMBERS)}"
    LOGGER.critical(last)
    result = [""]

    def is_written():  # by a thread of its own
        result[0] += capfd.readouterr().out
        return last in result[0]

    wait_until(is_written)
    return [level for level in levels if f"said at {level}" in result[0]]


@pytest.fixture
def server(tmp_path):
    with serving(tmp_path) as server:
        yield server


def test_kinds_of_records_are_switched_off_and_on(server, capfd):
    levels = ("DEBUG", "INFO", "WARNING", "ERROR")
    assert http(server, "GET", "/v2/logging")[2] == AT_FIRST
    assert logged(capfd, *levels) == ["INFO", "WARNING", "ERROR"]
    fields = {"log_info": False, "log_warning": False, "log_verbose_level": 1, "nothing": 5}
    now = {**AT_FIRST, **fields}
    del now["nothing"]
    assert http(server, "POST", "/v2/logging", fields)[2] == now
    assert logged(capfd, *levels) == ["DEBUG", "ERROR"]
    again = {"log_info": True, "log_warning": True, "log_verbose_level": 0, "log_error": None}
    assert http(server, "POST", "/v2/logging", again)[2] == AT_FIRST
    assert logged(capfd, *levels) == ["INFO", "WARNING", "ERROR"]


@pytest.mark.parametrize(
    ("said", "status", "text"),
    [
        ({"log_file": "x"}, 501, "log file location can not be updated through network protocol"),
        ({"log_info": 1}, 400, "expect boolean for 'log_info'"),
        ({"log_error": "yes"}, 400, "expect boolean for 'log_error'"),
        ({"log_verbose_level": -1}, 400, "expect int32 for 'log_verbose_level'"),
        ({"log_verbose_level": True}, 400, "expect int32 for 'log_verbose_level'"),
        ({"log_format": 5}, 400, "expect string for 'log_format'"),
        ({"log_format": "xml"}, 400, "invalid argument for log_format, got: xml"),
        ([], 400, "the dynamic logging request must be a JSON object"),
    ],
)
def test_an_invalid_setting_changes_nothing(server, said, status, text):
    if isinstance(said, dict):
        said = {"log_warning": False, **said}
    result, _, answer = http(server, "POST", "/v2/logging", said)
    assert (result, text in answer["error"]) == (status, True), answer
    assert http(server, "GET", "/v2/logging")[2] == AT_FIRST


def test_the_same_by_messages(server):
    request = pb.LogSettingsRequest()
    request.settings["log_format"].string_param = "ISO8601"
    request.settings["log_verbose_level"].uint32_param = 2
    request.settings["log_info"].SetInParent()
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        call = channel.unary_unary(METHOD)
        answer = pb.LogSettingsResponse.FromString(call(request.SerializeToString()))
    assert answer.settings["log_format"].string_param == "ISO8601"
    assert answer.settings["log_verbose_level"].uint32_param == 2
    assert answer.settings["log_info"].bool_param
    reported = {**AT_FIRST, "log_format": "ISO8601", "log_verbose_level": 2}
    assert http(server, "GET", "/v2/logging")[2] == reported


def test_the_next_server_starts_with_its_configuration(tmp_path):
    with serving(tmp_path) as server:
        http(server, "POST", "/v2/logging", {"log_error": False})
    with serving(tmp_path) as server:
        assert http(server, "GET", "/v2/logging")[2] == AT_FIRST
        assert http(server, "PUT", "/v2/logging")[0] == 405


def test_the_file_of_the_log_is_reported(tmp_path):
    with serving(tmp_path, log_file="/logs/server") as server:
        reported = {**AT_FIRST, "log_file": "/logs/server"}
        assert http(server, "GET", "/v2/logging")[2] == reported


LOGS = """
import triton_python_backend_utils as pb

class TritonPythonModel:
    def initialize(self, args):
        pb.Logger.log_verbose("verbose at first")

    def execute(self, requests):
        pb.Logger.log_verbose("verbose in execute")
        pb.Logger.log_warn("warning in execute")
        return [pb.InferenceResponse([
            pb.Tensor("OUTPUT0", each.inputs()[0].as_numpy())]) for each in requests]

    def finalize(self):
        pb.Logger.log_verbose("verbose at the end")
        pb.Logger.log_warn("warning at the end")
"""


def test_a_python_model_logs_at_the_current_level_of_its_server(tmp_path, capfd):
    add_python(tmp_path, "logs", LOGS)
    with serving(tmp_path, "none") as server:
        changes = {"log_warning": False, "log_verbose_level": 1}
        http(server, "POST", "/v2/logging", changes)
        infer(server, "logs", [1.0])
    captured = capfd.readouterr()
    assert "warning" not in captured.out + captured.err
    assert "verbose at first" not in captured.out
    assert "verbose in execute" in captured.out
    assert "verbose at the end" in captured.out
