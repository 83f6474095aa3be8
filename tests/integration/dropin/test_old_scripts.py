"""Calls in scripts of the predecessor that this library's own interface refuses."""

from __future__ import annotations

import logging

import pytest
from doubles import client_of

from pipeline import Op, RequestOp, ResponseOp
from pipeline.errors import ConfigError, GraphError
from pipeline.server import PipelineServer as OurServer

pytestmark = pytest.mark.usefixtures("installed")


def with_an_unread_branch():
    read = RequestOp()
    unread = [Op("unread", input_ops=[read])]
    unread.append(Op("behind", input_ops=unread))
    return ResponseOp(input_ops=[Op("last", input_ops=[read])]), unread


def test_a_branch_that_no_response_op_reads_is_dropped_with_a_warning(caplog):
    from paddle_serving_server.pipeline import PipelineServer

    response_op, unread = with_an_unread_branch()
    server = PipelineServer("svc")
    with caplog.at_level(logging.WARNING):
        server.set_response_op(response_op)
    (record,) = caplog.records
    assert "left out: 'behind', 'unread'" in record.getMessage()
    server.prepare_server(yml_dict={"rpc_port": 0})
    with server, client_of(server) as client:
        assert client.predict({"x": "abc"})["x"] == "abc"
    assert unread  # they were there all the time


def test_our_own_interface_refuses_an_unread_branch():
    response_op, unread = with_an_unread_branch()
    with pytest.raises(GraphError, match="do not lead to the ResponseOp: 'behind', 'unread'"):
        OurServer().set_response_op(response_op)
    assert unread


@pytest.fixture
def service():
    from paddle_serving_server.web_service import WebService

    class Service(WebService):
        def get_pipeline_response(self, read_op):
            self.unread = Op("unread", input_ops=[read_op])
            return Op("last", input_ops=[read_op])

    return Service("svc")


def test_a_web_service_may_have_an_unread_branch(service):
    service.prepare_pipeline_config(yml_dict={"rpc_port": 0})
    with service._server as server, client_of(server) as client:
        assert client.predict({"x": "abc"})["x"] == "abc"


def test_the_file_may_have_its_former_name(service, tmp_path):
    file = tmp_path / "config.yml"
    file.write_text("rpc_port: 0\nop: {last: {concurrency: 3}}\n")
    service.prepare_pipeline_config(yaml_file=str(file))
    assert service._server._graphs["svc"].last_op.pipeline_config.concurrency == 3
    with pytest.raises(ConfigError, match="yml_file or yaml_file, not both"):
        service.prepare_pipeline_config(str(file), yaml_file=str(file))
