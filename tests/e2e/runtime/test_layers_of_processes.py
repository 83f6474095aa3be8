"""A configuration is read once, by the script: copies of a server and worker processes have it."""

from __future__ import annotations

from pathlib import Path

import pytest
from served import ServedWithClient

SCRIPT = """
from pathlib import Path
from pipeline import Op, PipelineServer, RequestOp, ResponseOp

class Show(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        op = self.pipeline_config
        return {"told": f"{op.retry} {op.batch_size} {op.model_version} {op.model_name}"}

here = Path(__file__).parent
server = PipelineServer("svc")
server.set_response_op(ResponseOp(Show("show", RequestOp(), retry=7)))
server.prepare_server(str(here / "config.yml"))
(here / "secret").unlink()
server.run_server()
"""


@pytest.mark.parametrize(
    "config",
    [
        {"build_dag_each_worker": True, "worker_num": 2},
        {"dag": {"is_thread_op": False}},
        {"dag": {"is_thread_op": False, "start_method": "spawn"}},
    ],
    ids=str,
)
def test_all_processes_have_the_configuration_that_the_script_read(
    tmp_path: Path, monkeypatch, config
):
    (tmp_path / "secret").write_text("s3cret\n")
    (tmp_path / "config.prod.yml").write_text("op: {show: {batch_size: 3}}\n")
    monkeypatch.setenv("PIPELINE_PROFILE", "prod")
    monkeypatch.setenv("PIPELINE__OP__show__retry", "2")
    monkeypatch.setenv("VERSION", "007")
    op = {"model_version": "${VERSION}", "model_name": "${file:secret}"}
    served = ServedWithClient(tmp_path, SCRIPT, {**config, "op": {"show": op}})
    try:
        served.wait_until_ready()
        assert served.get({"x": "y"}) == {"told": "2 3 007 s3cret"}
        assert "s3cret" not in served.log + served.text("stderr")
    finally:
        served.close()
