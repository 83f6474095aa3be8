"""A server that answers imports nothing more: it may have no file descriptor left then."""

from __future__ import annotations

from pathlib import Path

from served import python

SCRIPT = """
import http.client
import sys
import traceback

from pipeline import Op, PipelineServer, RequestOp, ResponseOp

late = []


def note(event, arguments):
    if event == "import" and is_up:
        places = [frame.filename for frame in traceback.extract_stack()]
        if any("/pipeline/" in place for place in places):
            late.append(arguments[0])


is_up = False
sys.addaudithook(note)
server = PipelineServer("svc")
server.set_response_op(ResponseOp(Op("echo", RequestOp())))
server.prepare_server(yml_dict={"http_port": 0})
with server:
    is_up = True
    pairs = b'{"key": ["x"], "value": ["1"]}'
    for path, body in [("/svc/prediction", pairs), ("/metrics", None)] * 2:
        client = http.client.HTTPConnection("127.0.0.1", server.http_port)
        client.request("POST" if body else "GET", path, body)
        assert client.getresponse().status == 200
        client.close()
    is_up = False
print(late)
"""


def test_a_servers_modules_are_imported_before_it_is_ready(tmp_path: Path):
    (tmp_path / "web_server.py").write_text(SCRIPT)
    done = python(tmp_path, "web_server.py")
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr
