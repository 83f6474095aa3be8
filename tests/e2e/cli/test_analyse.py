"""What a real server says on stderr, by `dag.use_profile`, is what the analyst reads."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from doubles import answers
from served import ServedWithClient, no_leftovers

from pipeline import Analyst

SCRIPT = """
import sys

from pipeline import Op, PipelineServer, RequestOp, ResponseOp


class Upper(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        (_, input_dict), = input_dicts.items()
        return {"text": input_dict["text"].upper()}, False, None, ""


read = RequestOp()
first, second = Upper(name="first", input_ops=[read]), Upper(name="second", input_ops=[read])


class Join(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        return {"text": "".join(found["text"] for found in input_dicts.values())}, False, None, ""


server = PipelineServer("joined")
server.set_response_op(ResponseOp(input_ops=[Join(name="join", input_ops=[first, second])]))
server.prepare_server(yml_file=sys.argv[1] + "/config.yml")
server.run_server()
"""


def profiled(folder: Path, config: dict[str, Any], requests: int) -> Analyst:
    """What a server wrote that was asked that often."""
    with no_leftovers():
        served = ServedWithClient(folder, SCRIPT, config)
        try:
            served.wait_until_ready()
            for number in range(requests):
                assert answers(served.ask({"text": f"a{number}"}))["text"] == f"A{number}" * 2
            served.process.send_signal(signal.SIGTERM)
            assert served.ends() == 0
        finally:
            served.close()
    return Analyst(folder / "stderr")


def test_a_profile_of_a_real_server_has_all_requests_and_workers(tmp_path):
    config = {"dag": {"use_profile": True}, "op": {"second": {"workers": "process"}}}
    analyst = profiled(tmp_path, config, 20)
    figures = analyst.figures
    assert (figures.requests, figures.failed, analyst.profile.damaged) == (20, 0, 0)
    assert {op.name: (op.requests, op.workers) for op in figures.ops} == dict.fromkeys(
        ("first", "second", "join"), (20, 1)
    )
    assert figures.path is not None
    assert figures.path.ops[-1] == "join"
    assert len(figures.path.ops) == 2
    arrows = [event for event in analyst.get_trace() if event["ph"] in "stf"]
    assert len(arrows) == 20 * (1 + 3 + 1)


def test_a_sample_of_a_real_server_represents_all_requests(tmp_path):
    analyst = profiled(tmp_path, {"dag": {"use_profile": True, "profile_per_s": 2}}, 40)
    figures = analyst.figures
    assert figures.told < 40
    assert figures.told < figures.requests <= 40 + 32
    assert {op.name for op in figures.ops} == {"first", "second", "join"}
    assert analyst.profile.damaged == 0
