"""`python -m pipeline run`: scripts of the predecessor, unmodified, in a process of their own."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from served import no_leftovers, python

from pipeline.__main__ import main


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What `python -m pipeline run ...` does in `folder`."""
    return python(folder, "-m", "pipeline", "run", *arguments)


LOOKS_AROUND = """
import os, sys
import beside
print(__name__, sys.modules["__main__"].__dict__ is globals(), __spec__, __package__)
print(sys.argv)
print(os.path.relpath(__file__, os.getcwd()), os.path.relpath(sys.path[0], os.getcwd()))
sys.exit(7)
"""


def test_a_script_finds_the_world_as_plain_python_sets_it_up(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "beside.py").write_text("")
    (inner / "script.py").write_text(LOOKS_AROUND)
    done = run(tmp_path, "inner/script.py", "-x", "--", "--help")
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "__main__ True None None",
        "['inner/script.py', '-x', '--', '--help']",
        "inner/script.py inner",
    ]
    assert done.returncode == 7
    assert not list(inner.glob("__pycache__/script.*")), "as with plain Python"
    plain = python(tmp_path, "inner/script.py", "-x", "--", "--help")
    assert (plain.stdout, plain.returncode) == (done.stdout, 7)


def test_a_module_runs_as_by_python_m(tmp_path):
    package = tmp_path / "tools"
    package.mkdir()
    (package / "__init__.py").write_text("")
    text = (
        "import sys, os\nprint(__name__, __package__, __spec__.name, os.path.basename(sys.argv[0]))"
    )
    (package / "one.py").write_text(text)
    (package / "__main__.py").write_text(text)
    assert run(tmp_path, "-m", "tools.one").stdout == "__main__ tools tools.one one.py\n"
    assert run(tmp_path, "-m", "tools").stdout == "__main__ tools tools.__main__ __main__.py\n"
    done = run(tmp_path, "-m", "paddle_serving_server.serve", "stop", "--port", "9998")
    assert (done.returncode, "no command 'stop' here" in done.stderr) == (2, True)


def test_an_exception_is_shown_with_the_scripts_own_frames(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("def fails():\n    raise ValueError('wrong')\n\nfails()\n")
    done = run(tmp_path, "script.py")
    plain = python(tmp_path, "script.py")
    assert done.stderr == plain.stderr
    assert (done.returncode, plain.returncode) == (1, 1)


def test_a_syntax_error_is_shown_as_python_shows_it(tmp_path):
    (tmp_path / "script.py").write_text("x = = 1\n")
    done = run(tmp_path, "script.py")
    plain = python(tmp_path, "script.py")
    assert (done.stderr, done.returncode) == (plain.stderr, 1)


def test_a_file_named_like_the_library_next_to_the_script_causes_a_warning(tmp_path):
    script = tmp_path / "inner" / "script.py"
    script.parent.mkdir()
    script.write_text("import paddle_serving_server.web_service\n")
    (script.parent / "pipeline.py").write_text("")
    done = run(tmp_path, "inner/script.py")
    assert done.returncode == 0
    assert done.stderr.startswith("warning: `import pipeline` in the script is the library, not ")


def test_a_name_missing_in_the_library_but_present_in_its_namesake_is_explained(tmp_path):
    script = tmp_path / "inner" / "script.py"
    script.parent.mkdir()
    script.write_text(
        "import pipeline\nprint(hasattr(pipeline, '__wrapped__'))\nfrom pipeline import mine"
    )
    done = run(tmp_path, "inner/script.py")
    assert "ImportError: cannot import name 'mine' from 'pipeline'" in done.stderr
    assert "rename" not in done.stderr
    (script.parent / "pipeline.py").write_text("mine = 1")
    done = run(tmp_path, "inner/script.py")
    assert done.stdout == "False\n"
    last = done.stderr.splitlines()[-1]
    assert "ImportError: cannot import name 'mine' from 'pipeline', which is this library" in last
    assert last.endswith(f"and not {script.parent / 'pipeline.py'}: rename that one")


def test_a_command_with_its_own_name_is_not_hidden_by_a_namesake(tmp_path):
    (tmp_path / "pipeline.py").write_text("raise RuntimeError('this is not the library')")
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "script.py").write_text(
        "import beside\nfrom pipeline import Op\nprint(Op.__name__)"
    )
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    command = bin_folder / "pipeline-serving"  # as pip makes it
    command.write_text("import sys\nfrom pipeline.__main__ import main\nsys.exit(main())\n")
    done = python(tmp_path, str(command), "run", "script.py")
    assert (done.stdout, done.returncode) == ("Op\n", 0), done.stderr
    assert done.stderr.startswith("warning: `import pipeline` in the script is the library")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run", "absent.py"], "can't open 'absent.py': no such file"),
        (["run", "."], "can't open '.': is a folder"),
    ],
)
def test_a_script_that_is_not_there_is_named(arguments, text, capsys):
    assert main(arguments) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["run"], ["run", "-m"]])
def test_an_invalid_command_line_is_refused(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "a script is missing" in capsys.readouterr().err


def test_a_module_that_is_not_there_is_named(tmp_path):
    done = run(tmp_path, "-m", "absent.module")
    assert (done.returncode, "'absent'" in done.stderr) == (2, True)


# A service in the predecessor's manner: try/except around the old name of the server package,
# Ops in a module beside the script, options, tuples, and what NumPy had in those days.
OPS = """
import logging
from paddle_serving_server.web_service import Op
from paddle_serving_server.pipeline.error_catch import CustomException, CustomExceptionCode

class Answer:
    def __init__(self, text):
        self.text = text

class ShoutOp(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        (_, input_dict), = input_dicts.items()
        logging.getLogger("shouts").info("info of a module")
        logging.getLogger("shouts").debug("too much")
        if "text" not in input_dict:
            raise CustomException(CustomExceptionCode.INPUT_PARAMS_ERROR, "no text", True)
        return {"answer": Answer(input_dict["text"].upper())}, False, None, ""
"""
SERVICE = """
import argparse
import logging
import sys
import numpy as np
np.set_printoptions(threshold=sys.maxsize)
try:
    from paddle_serving_server_gpu.web_service import WebService, Op
except ImportError:
    from paddle_serving_server.web_service import WebService, Op
from paddle_serving_server.pipeline import PipelineClient
from paddle_serving_server.pipeline.channel import ChannelDataErrcode
from paddle_serving_server.pipeline.proto import pipeline_service_pb2
import paddle_serving_server.pipeline.channel as channel
import shout

_LOGGER = logging.getLogger()

parser = argparse.ArgumentParser()
parser.add_argument("--workers", default="thread")
parser.add_argument("--method", default="fork")
args = parser.parse_args()


class EndOp(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        (_, input_dict), = input_dicts.items()
        assert isinstance(input_dict["answer"], shout.Answer)
        assert channel.ChannelDataErrcode is ChannelDataErrcode
        assert pipeline_service_pb2.Request().logid == 0
        _LOGGER.info("%s of mine", "info")
        _LOGGER.warning("%s of mine", "warning")
        mark = np.fromstring(args.mark.encode(), np.uint8)
        scalars = str([np.float32(0.5), np.float64(0.25)])
        long_text = len(str(np.arange(5000)))
        text = input_dict["answer"].text + chr(mark[0]) + scalars + str(long_text)
        return {"text": text}, False, None, ""


class ShoutService(WebService):
    def get_pipeline_response(self, read_op):
        args.mark = "!"
        return EndOp(name="end", input_ops=[shout.ShoutOp(name="shout", input_ops=[read_op])])


shout_service = ShoutService(name="shout")
shout_service.prepare_pipeline_config(yml_dict={
    "rpc_port": 0,
    "log": {"stderr": "never"},
    "dag": {"is_thread_op": args.workers == "thread", "start_method": args.method},
})
with shout_service._server as server, PipelineClient() as client:
    client.connect(["127.0.0.1:%d" % server.rpc_port])
    print(client.predict({"text": "abc"})["text"], client.predict({"words": "abc"}).err_no)
"""


@pytest.mark.parametrize(
    "arguments",
    [[], ["--workers", "process"], ["--workers", "process", "--method", "spawn"]],
    ids=["threads", "forked processes", "spawned processes"],
)
def test_a_service_of_the_predecessor_runs_unmodified(tmp_path, arguments):
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "shout.py").write_text(OPS)
    (inner / "service.py").write_text(SERVICE)
    (inner / "pipeline.py").write_text("raise RuntimeError('this is not the library')")
    with no_leftovers():
        done = run(tmp_path, "inner/service.py", *arguments)
    assert done.stdout == "ABC![0.5, 0.25]25358 5000\n"
    warning, is_open = done.stderr.splitlines()
    assert warning.startswith("warning: `import pipeline` in the script is the library, not ")
    assert is_open.startswith("yml_dict: every caller that reaches this server may do anything")
    logged, grave = (
        re.findall(r"\] (?:\[pid \d+\] )?(.* of .*|too much)", (tmp_path / name).read_text())
        for name in ("PipelineServingLogs/pipeline.log", "PipelineServingLogs/pipeline.log.wf")
    )
    assert sorted(logged) == ["info of a module"] * 2 + ["info of mine", "warning of mine"]
    assert grave == ["warning of mine"]


BENCHMARK = """
from paddle_serving_client.utils import MultiThreadRunner, show_latency

def work(number, resource):
    return [[number, resource], [10.0 * number]]

merged = MultiThreadRunner().run(work, 2, "r")
print(merged)
show_latency(merged[1])
"""


def test_a_benchmark_script_runs_in_separate_processes(tmp_path):
    (tmp_path / "benchmark.py").write_text(BENCHMARK)
    done = run(tmp_path, "benchmark.py")
    assert done.stdout == "[[1, 'r', 2, 'r'], [10.0, 20.0]]\n"
    assert done.stderr == (
        "latency:\nmean: 15.0ms\nmedian: 15.0ms\n80_percent: 18.0ms\n90_percent: 19.0ms\n"
        "99_percent: 19.9ms\n"
    )


READER = """
import paddle.fluid.incubate.data_generator as dg

class IMDBDataset(dg.MultiSlotDataGenerator):
    def words(self, line):
        return line.split()
"""


@pytest.mark.parametrize("has_fluid", [False, True])
def test_the_readers_that_want_a_former_part_of_paddle_import(tmp_path, has_fluid):
    def write(name, text=""):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    write("paddle/__init__.py")
    if has_fluid:
        write("paddle/fluid/__init__.py")
        write("paddle/fluid/incubate/__init__.py")
        own = "class MultiSlotDataGenerator:\n    own = True\n"
        write("paddle/fluid/incubate/data_generator.py", own)
    write("paddle_serving_app/__init__.py")
    write("paddle_serving_app/reader/__init__.py")
    write("paddle_serving_app/reader/imdb_reader.py", READER)
    lines = [
        "import sys",
        "print('paddle.fluid' in sys.modules)",
        "from paddle_serving_app.reader.imdb_reader import IMDBDataset",
        "print(IMDBDataset().words('a b'), hasattr(IMDBDataset, 'own'))",
    ]
    write("script.py", "\n".join(lines))
    done = run(tmp_path, "script.py")
    assert (done.stdout, done.stderr) == (f"False\n['a', 'b'] {has_fluid}\n", "")
