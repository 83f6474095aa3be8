"""`pipeline config show SCRIPT`: with what the constructors of its Ops say."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from served import python

SCRIPT = """
from pipeline import LocalServiceHandler, Op, PipelineServer, RequestOp, ResponseOp

handler = LocalServiceHandler(model_config="m", devices="0")
bow = Op("bow", RequestOp(), retry=3, timeout=10.5, concurrency=5, sequence="direct")
server = PipelineServer("x")
server.set_response_op(ResponseOp(Op("cnn", bow, local_service_handler=handler)))
server.prepare_server(CONFIG)
server.run_server()
"""
SHOW = ("-m", "pipeline", "config", "show", "--given", "script.py")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "script.py").write_text(SCRIPT.replace("CONFIG", '"config.yml"'))
    (tmp_path / "config.yml").write_text(
        "rpc_port: 0\nop:\n  bow: {concurrency: 2, batch_size: 8}\n"
    )
    return tmp_path


def test_constructors_win_over_the_file_and_the_command_line_over_them(folder):
    done = python(folder, *SHOW, "--set", "op.bow.retry=4")
    assert (done.returncode, done.stderr) == (0, "")
    ops = yaml.safe_load(done.stdout)["op"]
    assert ops["bow"] == {
        "concurrency": 5,
        "batch_size": 8,
        "retry": 4,
        "timeout": 10.5,
        "sequence": {"strategy": "direct"},
    }
    assert ops["cnn"]["local_service_conf"]["devices"] == "0"
    origins = {
        line.split(":")[0].strip(): line.partition("# ")[2] for line in done.stdout.splitlines()
    }
    assert origins["retry"] == "--set"
    assert origins["batch_size"] == "config.yml:3"
    assert origins["concurrency"] == origins["timeout"] == "constructor of Op 'bow'"


def test_a_configuration_that_is_not_a_file_is_refused(folder):
    (folder / "script.py").write_text(SCRIPT.replace("CONFIG", 'yml_dict={"rpc_port": 0}'))
    done = python(folder, *SHOW)
    assert (done.returncode, done.stdout) == (1, "")
    assert "its configuration is a dict" in done.stderr
