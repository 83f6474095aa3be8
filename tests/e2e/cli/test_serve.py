"""`pipeline serve`: it runs a script as Python does, with other settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from served import python

SCRIPT = """
import sys
from pipeline import Op, PipelineServer, RequestOp, ResponseOp

op = Op("bow", RequestOp(), concurrency=2)
server = PipelineServer("svc")
server.set_response_op(ResponseOp(op))
server.prepare_server("config.yml")
config = server._config
print(__name__, sys.argv[1:], config.host, config.http_port, config.rpc_port)
print(op.pipeline_config.concurrency, config.queue_size)
sys.exit(7)
"""


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    (tmp_path / "web_server.py").write_text(SCRIPT)
    (tmp_path / "config.yml").write_text("rpc_port: 1024\nhttp_host: '::1'\n")
    (tmp_path / "config.prod.yml").write_text("queue_size: 5\n")


def test_a_script_is_run_as_python_runs_it(tmp_path):
    done = python(tmp_path, "-m", "pipeline", "serve", "--", "-x", "--set")
    plain = python(tmp_path, "web_server.py", "-x", "--set")
    assert (done.stdout, done.returncode) == (plain.stdout, plain.returncode)
    assert done.stdout == "__main__ ['-x', '--set'] 127.0.0.1 None 1024\n2 4096\n"
    assert done.stderr == ""


def test_options_win_over_the_file_and_the_script(tmp_path):
    options = ["--profile", "prod", "--host", "::", "--port", "8080"]
    options += ["--set", "op.bow.concurrency=9"]
    done = python(tmp_path, "-m", "pipeline", "serve", ".", *options)
    assert done.stdout == "__main__ [] :: 8080 8081\n9 5\n"


def test_a_wrong_configuration_is_told_without_a_traceback(tmp_path):
    done = python(tmp_path, "-m", "pipeline", "serve", "--set", "op.bow.concurrency=x")
    assert (done.stdout, done.returncode) == ("", 1)
    assert done.stderr == (
        "pipeline serve: --set: op.bow.concurrency: expected int >= 1, found 'x' (str)\n"
    )


def test_a_script_that_is_not_there_is_named(tmp_path):
    done = python(tmp_path, "-m", "pipeline", "serve", "absent.py", "--reload")
    assert (done.stdout, done.returncode) == ("", 2)
    assert done.stderr.startswith("pipeline serve: can't open 'absent.py': no such file")
