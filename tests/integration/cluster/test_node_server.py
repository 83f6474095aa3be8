"""A server as a child of a node's process: ready, killed, ended, and one that never comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from doubles import wait_until

from pipeline.cluster.bundle import bundle_of
from pipeline.cluster.node_server import NodeServer
from pipeline.cluster.plan import ReplicaPhase

SCRIPT = """
from pipeline import Op, PipelineServer, RequestOp, ResponseOp

class Echo(Op):
    def preprocess(self, input_dicts):
        return input_dicts["@DAGExecutor"]

server = PipelineServer("echo")
server.set_response_op(ResponseOp(Echo("echo", RequestOp())))
server.prepare_server("config.yml")
server.run_server()
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "web_server.py").write_text(SCRIPT)
    (tmp_path / "config.yml").write_text("http_port: 9999\n")
    return tmp_path / "web_server.py"


@pytest.fixture
def server(script):
    made = NodeServer(bundle_of(script), "127.0.0.1", {})
    made.start()
    yield made
    made.stop(5)


def phase(server: NodeServer) -> ReplicaPhase:
    return server.look().phase


def test_a_killed_server_restarts_and_becomes_ready(server):
    wait_until(lambda: phase(server) is ReplicaPhase.READY)
    first, pid = server.look().address, server._child.pid
    assert "9999" not in first
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: phase(server) is ReplicaPhase.UNREADY)
    wait_until(lambda: phase(server) is ReplicaPhase.READY)
    assert server._child.pid != pid


def test_it_ends_and_leaves_no_process(server):
    wait_until(lambda: phase(server) is ReplicaPhase.READY)
    child = server._child
    server.stop(5)
    assert child.poll() == 0


def test_a_server_that_fails_to_start_gives_the_reason(script):
    script.write_text("raise ValueError('no model')\n")
    server = NodeServer(bundle_of(script), "127.0.0.1", {})
    server.start()
    wait_until(lambda: phase(server) is ReplicaPhase.FAILED)
    assert "ended with status 1" in server.look().detail
    assert "ValueError: no model" in server.look().detail
    server.stop(1)


def test_it_ends_with_the_process_that_has_started_it(script):
    program = (
        "import sys, time; from pathlib import Path\n"
        "from pipeline.cluster.bundle import bundle_of\n"
        "from pipeline.cluster.node_server import NodeServer\n"
        "server = NodeServer(bundle_of(Path(sys.argv[1])), '127.0.0.1', {}); server.start()\n"
        "while server._child is None or not server.look().address: time.sleep(.01)\n"
        "print(server._child.pid, flush=True); time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, script], stdout=subprocess.PIPE)
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not is_alive(pid))


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
