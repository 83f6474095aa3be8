"""`python -m pipeline graph` and `... check`: what they print, and that nothing is started."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from paths import ROOT
from served import no_leftovers, python

from pipeline.cli.graph import check, graph

# Not by `python -m pipeline`: who dispatches is tested there.
RUN = "import sys; from pipeline.cli.graph import graph; sys.exit(graph(sys.argv[1:]))"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What `python -m pipeline graph ...` does in `folder`."""
    return python(folder, "-c", RUN, *arguments)


SCRIPT = """
import sys
from pipeline import Op, PipelineServer, RequestOp, ResponseOp

class Never(Op):
    def init_op(self):
        raise RuntimeError("was started")

print("about to serve", sys.argv[1:], __name__)
server = PipelineServer("svc")
server.set_response_op(ResponseOp(Never("a", RequestOp())))
server.prepare_server(yml_dict={"rpc_port": 1024, "op": {"a": {"concurrency": 2}}})
{START}
print("never printed")
"""
DRAWN = """\
svc

●  request   RequestOp
●  a         Never; 2 threads; reads request
●  response  ResponseOp; reads a
"""
STARTS = {
    "run_server": "server.run_server()",
    "start": "server.start()",
    "with": "with server:\n    pass",
    "async with": "import asyncio\nasync def main():\n    async with server:\n        pass\n"
    "asyncio.run(main())",
    "caught": "try:\n    server.run_server()\nexcept Exception:\n    print('caught')",
    "in a thread": "import threading\nthread = threading.Thread(target=server.run_server)\n"
    "thread.start()\nthread.join()\nsys.exit()",
    "left to a thread": "import threading, time\ndef later():\n    time.sleep(0.2)\n"
    "    server.run_server()\nthreading.Thread(target=later).start()\nsys.exit()",
    "beside a thread": "import threading, time\nthreading.Thread(target=time.sleep, args=[9999])"
    ".start()\nserver.run_server()",
    "exit": "try:\n    server.run_server()\nfinally:\n    sys.exit(5)",
}


@pytest.mark.parametrize("start", STARTS)
def test_a_script_runs_up_to_where_its_server_would_start(tmp_path, start):
    (tmp_path / "web_server.py").write_text(SCRIPT.replace("{START}", STARTS[start]))
    with no_leftovers():
        done = run(tmp_path, "web_server.py", "--port", "1", "--", "--format")
    assert (done.stdout, done.returncode) == (DRAWN, 0)
    assert done.stderr == "about to serve ['--port', '1', '--format'] __main__\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["web_server.py"], "no logs"


SERVICE = """
from paddle_serving_server.web_service import WebService, Op

class Service(WebService):
    def get_pipeline_response(self, read_op):
        return Op(name="only", input_ops=[read_op])

service = Service(name="old")
service.prepare_pipeline_config("config.yml")
service.run_service()
"""
CONFIG = """\
rpc_port: 0
worker_num: 4
op:
    only:
        batch_size: 8
    another:
        concurrency: 2
"""


def test_a_web_service_of_the_predecessor_and_its_warnings(tmp_path):
    (tmp_path / "service.py").write_text(SERVICE)
    (tmp_path / "config.yml").write_text(CONFIG)
    done = run(tmp_path, "service.py", "--format", "dot")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith('digraph "old" {\n')
    assert '[label="only\\n1 thread\\nbatch up to 8"]' in done.stdout
    first, second = done.stderr.splitlines()
    assert first.startswith("warning: config.yml:6: op.another: no Op of the graph has this name")
    assert second.startswith("warning: config.yml: worker_num: 4 requests at once never fill")


def test_a_module_is_drawn(tmp_path):
    (tmp_path / "web_server.py").write_text(SCRIPT.replace("{START}", STARTS["run_server"]))
    done = run(tmp_path, "--format=mermaid", "-m", "web_server")
    assert (done.stdout.partition("\n")[0], done.returncode) == ("flowchart LR", 0)


CYCLE = """
from pipeline import Op, PipelineServer, RequestOp, ResponseOp
a = Op("a", RequestOp())
b = Op("b", a)
a.set_input_ops(b)
PipelineServer().set_response_op(ResponseOp(b))
"""


def test_an_error_of_the_graph_has_its_line(tmp_path):
    (tmp_path / "cycle.py").write_text(CYCLE)
    done = run(tmp_path, "cycle.py")
    assert (done.stdout, done.returncode) == ("", 1)
    assert done.stderr.startswith("pipeline graph: cycle.py:6: GraphError: The Ops form a cycle")


@pytest.mark.parametrize(
    ("script", "status", "text"),
    [
        ("x = 1", 1, "ended without running a server"),
        ("raise SystemExit(0)", 1, "ended without running a server"),
        ("raise SystemExit(7)", 7, ""),
        ("import sys; sys.exit('no such model')", 1, "no such model"),
        ("1 / 0", 1, "ZeroDivisionError"),
        (
            "from pipeline import PipelineServer; PipelineServer().run_server()",
            1,
            "ended without running a server",
        ),
    ],
)
def test_a_script_without_a_server_is_refused(tmp_path, script, status, text):
    (tmp_path / "script.py").write_text(script)
    done = run(tmp_path, "script.py")
    assert (done.stdout, done.returncode) == ("", status)
    assert text in done.stderr


def test_a_script_that_is_not_there_is_named(capsys):
    assert graph(["absent.py"]) == 2
    assert "pipeline graph: can't open 'absent.py': no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "the following arguments are required: SCRIPT"),
        (["-m"], "the following arguments are required: SCRIPT"),
        (["--formt", "dot", "x.py"], "did you mean --format?"),
        (["x.py", "--format"], "--format: expected one argument"),
        (["x.py", "--format", "svg"], "invalid choice: 'svg'"),
    ],
)
def test_an_invalid_graph_command_is_refused(arguments, text, capsys):
    with pytest.raises(SystemExit, match="2"):
        graph(arguments)
    assert text in capsys.readouterr().err


# check ------------------------------------------------------------------------------------


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_good_file_is_ok(in_tmp, capsys):
    (in_tmp / "config.yml").write_text("rpc_port: 0\n")
    assert check(["config.yml"]) == 0
    assert capsys.readouterr().out == "config.yml: ok\n"


BAD = """\
http_port: many
wrker_num: 4
op:
    a:
        batch_size: 0
"""


def test_all_errors_are_reported_at_once(in_tmp, capsys):
    (in_tmp / "config.yml").write_text(BAD)
    assert check(["config.yml"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in out] == ["error", "error", "warning", "config.yml"]
    assert out[0].startswith("error: config.yml:1: http_port: expected int 1024..65535")
    assert out[1].startswith("error: config.yml:5: op.a.batch_size: expected int >= 1")
    assert out[2].startswith("warning: config.yml:2: wrker_num: unknown key, ignored; did you mean")
    assert out[3] == "config.yml: 2 errors, 1 warning"


ODD = """\
rpc_port: 0
worker_num: 4
op:
    a:
        batch_size: 8
        local_service_conf:
            model_config: models/absent.onnx
    b:
        client_config: here.prototxt
        local_service_conf:
            model_config: also_here
    c:
        server_endpoints: ["h:1"]
        client_config: not_here.prototxt
        local_service_conf:
            model_config: not_used
    "@DAGExecutor":
        concurrency: 2
"""


def test_an_unusual_value_is_a_warning_or_with_strict_an_error(in_tmp, capsys):
    folder = in_tmp / "inner"
    (folder / "also_here").mkdir(parents=True)
    (folder / "here.prototxt").write_text("")
    (folder / "config.yml").write_text(ODD)
    assert check(["inner/config.yml"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines() == [
        "warning: inner/config.yml: worker_num: 4 requests at once never fill a batch of Op 'a' "
        "with batch_size 8; raise worker_num or lower batch_size",
        "warning: inner/config.yml:7: op.a.local_service_conf.model_config: no such file or "
        "folder: models/absent.onnx",
        "warning: inner/config.yml:14: op.c.client_config: no such file or folder: "
        "not_here.prototxt",
        "inner/config.yml: 3 warnings",
    ]
    assert check(["--strict", "inner/config.yml"]) == 1
    assert capsys.readouterr().out == out


def test_one_bad_file_of_several_is_enough(in_tmp, capsys):
    (in_tmp / "good.yml").write_text("rpc_port: 0\n")
    (in_tmp / "bad.yml").write_text("rpc_port: [\n")
    assert check(["good.yml", "bad.yml", "absent.yml", "good.yml"]) == 1
    out = capsys.readouterr().out
    assert out.count("good.yml: ok") == 2
    assert "error: bad.yml:2:1: not valid YAML" in out
    assert "error: absent.yml: No such file or directory" in out


@pytest.mark.parametrize("arguments", [[], ["--strict"], ["--all", "config.yml"]])
def test_an_invalid_check_command_is_refused(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        check(arguments)
    assert "usage: pipeline check" in capsys.readouterr().err


def test_the_checked_in_configurations_are_ok(capsys):
    root = ROOT
    files = ["config.yml", "examples/imdb_ensemble/config.yml"]
    assert check(["--strict", *(str(root / file) for file in files)]) == 0
    assert capsys.readouterr().out.count(": ok\n") == 2
