"""`pipeline serve`: it runs a script as Python does, with other settings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from doubles import http
from served import python

from pipeline.cli.graph import server_of_script

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


def test_an_invalid_configuration_is_reported_without_a_traceback(tmp_path):
    done = python(tmp_path, "-m", "pipeline", "serve", "--set", "op.bow.concurrency=x")
    assert (done.stdout, done.returncode) == ("", 1)
    assert done.stderr == (
        "pipeline serve: --set: op.bow.concurrency: expected int >= 1, found 'x' (str)\n"
    )


def test_a_script_that_is_not_there_is_named(tmp_path):
    done = python(tmp_path, "-m", "pipeline", "serve", "absent.py", "--reload")
    assert (done.stdout, done.returncode) == ("", 2)
    assert done.stderr.startswith("pipeline serve: can't open 'absent.py': no such file")


PART = """
from pipeline import Op, PipelineServer, RequestOp, ResponseOp

server = PipelineServer("{name}")
server.set_response_op(ResponseOp(Op("{op}", RequestOp())))
server.prepare_server("config.yml")
"""


def test_scripts_with_ops_of_one_name_cannot_be_served_together(tmp_path):
    for name in ("chat", "embed"):
        (tmp_path / f"{name}.py").write_text(PART.format(name=name, op="model"))
    done = python(tmp_path, "-m", "pipeline", "serve", "chat.py", "embed.py")
    assert (done.stdout, done.returncode) == ("", 1)
    assert done.stderr == (
        "pipeline serve: Op 'model' of the pipeline 'chat' and Op 'model' of the pipeline 'embed' "
        "have the same name: the Ops and pipelines of a server are models beside each other, give "
        "one of them another name.\n"
    )


def test_a_script_that_makes_no_server_is_named(tmp_path):
    (tmp_path / "chat.py").write_text(PART.format(name="chat", op="model"))
    (tmp_path / "embed.py").write_text("import sys\n")
    done = python(tmp_path, "-m", "pipeline", "serve", "chat.py", "embed.py")
    assert (done.stdout, done.returncode) == ("", 1)
    assert done.stderr.startswith("pipeline serve: embed.py runs no server, and makes 0")


def test_keys_of_later_configurations_without_effect_are_reported(tmp_path):
    for name in ("chat", "embed"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "web_server.py").write_text(PART.format(name=name, op=f"{name}_op"))
        (folder / "config.yml").write_text(f"rpc_port: 0\ntimeout: {len(name)}000\n")
    (tmp_path / "chat" / "config.yml").write_text("rpc_port: 0\nsinks: {no_such: null}\n")
    done = python(tmp_path, "-m", "pipeline", "serve", "chat", "embed")
    assert "no_such" in done.stderr
    (tmp_path / "chat" / "config.yml").write_text("rpc_port: 0\nhost: no.such.host\n")
    done = python(tmp_path, "-m", "pipeline", "serve", "chat", "embed")
    assert done.returncode == 1
    first = done.stderr.splitlines()[0]
    assert first == (
        "pipeline 'embed': config.yml: host, timeout: not heeded, one configuration says it for all"
    )


TOLD = """
import os

from pipeline import Op, PipelineServer, RequestOp, ResponseOp


class Note:
    pass


class Says(Op):
    def process(self, feed_batch):
        return {{"y": "{name} " + feed_batch[0]["x"], "at": str(os.getpid()), "note": Note()}}

    def postprocess(self, input_dicts, fetched):
        return {{"y": fetched["y"], "at": fetched["at"]}}


server = PipelineServer("{name}")
server.set_response_op(ResponseOp(Says("{name}_op", RequestOp())))
dag = {{"is_thread_op": False, "start_method": "spawn"}}
server.prepare_server(yml_dict={{"rpc_port": 0, "http_port": 0, "dag": dag}})
server.run_server()
"""


def test_scripts_are_served_together_by_fresh_interpreters(tmp_path):
    for name in ("chatting", "embedding"):
        (tmp_path / f"{name}.py").write_text(TOLD.format(name=name))
    first, second = (
        server_of_script(tmp_path / f"{name}.py") for name in ("chatting", "embedding")
    )
    first._join(second)
    with first:
        for name in ("chatting", "embedding"):
            _, _, answer = http(first, "POST", f"/api/{name}", {"x": "!"})
            assert answer["y"] == f"{name} !"
            assert int(answer["at"]) != os.getpid()
