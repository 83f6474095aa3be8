"""Analyst: our profiles and the predecessor's, as traces, tables and advice."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from fake_service import FakeOp, play, request, requests_of, turn, turns_of

from pipeline import Analyst
from pipeline.engine.journal.journal import Outcome, Rows
from pipeline.errors import ConfigError
from pipeline.observe.analysis.advice import advise
from pipeline.observe.analysis.report import report_json, report_text
from pipeline.observe.paddle.profile import profile_lines

# What paddle-serving-server 0.9 writes: times of batches, then of a request.
OLD_LINES = """\
I1121 10:00:00.000000 some other line
PROFILE\tpid:7\tprep#[bow|0]_0:1000000 prep#[bow|0]_1:1001000 midp#[bow|0]_0:1001000 \
midp#[bow|0]_1:1009000 postp#[bow|0]_0:1009000 postp#[bow|0]_1:1010000 \n
PROFILE\tpid:7\tprep#[cnn|1]_0:1000000 prep#[cnn|1]_1:1002000 midp#[cnn|1]_0:1002000 \
midp#[cnn|1]_1:1006000 postp#[cnn|1]_0:1006000 postp#[cnn|1]_1:1008000 \n
PROFILE\tpid:7\tprepack_0#@DAGExecutor_0:999000 prepack_0#@DAGExecutor_1:999500 \
call_0#DAG_0:999500 call_0#DAG_1:1010500 postpack_0#@DAGExecutor_0:1010500 \
postpack_0#@DAGExecutor_1:1011500 \n
"""


def written(folder: Path, turns: Rows, requests: Rows, names: list[str]) -> Path:
    path = folder / "profile.txt"
    path.write_text("server started\n" + "".join(profile_lines(turns, requests, names)))
    return path


def processes(analyst: Analyst) -> list[str]:
    names = [event for event in analyst.get_trace() if event.get("name") == "process_name"]
    return [event["args"]["name"] for event in names]


@pytest.fixture
def old(tmp_path):
    (tmp_path / "old.txt").write_text(OLD_LINES)
    return Analyst(tmp_path / "old.txt")


@pytest.fixture
def played(tmp_path):
    turns, requests = play([FakeOp(1, 0), FakeOp(0.5, 7, 0.5)], clients=8, count=200)
    return written(tmp_path, turns, requests, ["words", "bow"])


def test_a_trace_is_saved_as_a_list_of_events(played, tmp_path):
    analyst = Analyst(str(played))
    analyst.save_trace(str(tmp_path / "trace"))
    document = json.loads((tmp_path / "trace").read_text())
    assert document == analyst.get_trace()
    assert processes(analyst) == ["requests", "Op words", "Op bow"]
    assert min(event["ts"] for event in document if "ts" in event) == 0.0


def test_times_equal_the_simulated_ones(played):
    call_ms, prepack_ms, postpack_ms, ops = Analyst(played).get_profile()
    assert (prepack_ms, postpack_ms) == (0.0, 0.0)
    assert call_ms == pytest.approx(8 * 8.0, rel=0.05)
    assert ops.times("bow") == {"prep": 0.5, "midp": 7.5, "postp": 0.0}
    assert ops.times() == {
        "words": {"prep": 1.0, "midp": 0.0, "postp": 0.0},
        "bow": ops.times("bow"),
    }
    assert ops.qps("bow") == {"prep": 2000.0, "midp": pytest.approx(1000 / 7.5), "postp": math.inf}
    with pytest.raises(KeyError):
        ops.times("cnn")


def test_the_predecessors_profile_is_read(old, capsys):
    call_ms, prepack_ms, postpack_ms, ops = old.get_profile()
    assert (call_ms, prepack_ms, postpack_ms) == (11.0, 0.5, 1.0)
    assert ops.times() == {
        "bow": {"prep": 1.0, "midp": 8.0, "postp": 1.0},
        "cnn": {"prep": 2.0, "midp": 4.0, "postp": 2.0},
    }
    old.print_profile()
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "graph engine call: 11.0",
        "rpc prepack: 0.5",
        "rpc postpack: 1.0",
        "OP: {",
    ]
    assert json.loads("".join(lines[3:]).removeprefix("OP: ")) == ops.times()
    rows = {event["name"] for event in old.get_trace() if event["ph"] == "B"}
    assert rows >= {"batch", "process", "request 0", "graph"}


def test_concurrency_keeps_the_slowest_card_busy(old, tmp_path):
    """cnn has two cards for its 4 ms, bow one for its 8: one request each 8 ms."""
    cards = tmp_path / "cards.yml"
    cards.write_text('bow:\n  midp: 0\ncnn:\n  midp: "1,2"\n')
    assert old.get_op_analyst().concurrency_analysis(str(cards)) == {"bow": 1.25, "cnn": 1.0}
    cards.write_text("bow: {midp: [0, 1, 2, 3]}\n")
    assert old.get_op_analyst().concurrency_analysis(cards) == {"bow": 5.0, "cnn": 4.0}


def test_concurrency_counts_requests_not_batches(tmp_path):
    turns = turns_of(turn(0, 1, batch=1), turn(0, 2, batch=1), turn(1, 1), turn(1, 2, batch=2))
    ops = Analyst(written(tmp_path, turns, requests_of(), ["bow", "cnn"])).get_op_analyst()
    (tmp_path / "cards.yml").write_text("cnn: {midp: 0}")
    assert ops.concurrency_analysis(tmp_path / "cards.yml") == {"bow": 1.5, "cnn": 3.0}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "expected Ops with the cards"),
        ("- 1", "expected Ops with the cards"),
        ("wob: {midp: 0}", "cards.yml:1: wob: the profile has bow, cnn"),
        ("bow: 3", "cards.yml:1: bow: expected steps with cards"),
        ("bow:\n  mid: 0", "cards.yml:2: bow.mid: a step is prep, midp or postp"),
        ("bow: {midp: x}", "bow.midp: expected a card or several"),
        ("bow: {midp: true}", "expected a card or several"),
        ("bow: {midp: []}", "expected a card or several"),
        ("bow: {midp: -1}", "expected a card or several"),
        ('bow: {midp: "0,1"}\ncnn: {midp: 1}', "cnn.midp: card 1 has bow.midp already"),
    ],
)
def test_a_wrong_file_of_cards_is_refused_with_its_line(old, tmp_path, text, match):
    (tmp_path / "cards.yml").write_text(text)
    with pytest.raises(ConfigError, match=match):
        old.get_op_analyst().concurrency_analysis(tmp_path / "cards.yml")


def test_cards_with_steps_of_zero_time_are_refused(played, tmp_path):
    (tmp_path / "cards.yml").write_text("bow: {postp: 0}")
    with pytest.raises(ConfigError, match="a step that takes time"):
        Analyst(played).get_op_analyst().concurrency_analysis(tmp_path / "cards.yml")


def test_copies_of_a_server_are_added_up_and_drawn_apart(tmp_path):
    """Both have a worker 0, a batch 1 and a request 7."""
    lines = "".join(profile_lines(turns_of(turn()), requests_of(request()), ["bow"]))
    other = lines.replace("pid:", "pid:9")
    (tmp_path / "profile.txt").write_text(lines + other)
    analyst = Analyst(tmp_path / "profile.txt")
    (op,) = analyst.figures.ops
    assert (op.workers, op.batches, op.requests, analyst.figures.requests) == (2, 2, 2, 2)
    assert processes(analyst) == [
        "copy 0: requests",
        "copy 0: Op bow",
        "copy 1: requests",
        "copy 1: Op bow",
    ]


def test_a_profile_is_read_on_first_use(tmp_path):
    analyst = Analyst(tmp_path / "absent.txt")
    with pytest.raises(FileNotFoundError):
        analyst.get_trace()


def test_a_report_names_the_bottleneck_and_the_settings(played):
    analyst = Analyst(played)
    text = report_text("profile.txt", analyst.figures, advise(analyst.figures), damaged=2)
    assert text.startswith("profile.txt: 200 requests in 1.6")
    assert "2 PROFILE lines could not be read" in text
    assert "critical path of 100%: words > bow: 9.000 ms of work" in text
    assert "bottleneck: bow: its workers are full" in text
    assert "op:\n    bow:\n        # " in text
    assert "        concurrency: 2\n        batch_size: 4\n" in text
    assert max(map(len, text.splitlines())) < 130


def test_a_report_is_json_for_programs(played):
    analyst = Analyst(played)
    document = json.loads(report_json(analyst.figures, advise(analyst.figures)))
    assert document["config"] == {"bow": {"concurrency": 2, "batch_size": 4}}
    assert document["advice"]["bottleneck"] == "bow"
    assert document["figures"]["requests"] == 200
    bow = document["figures"]["ops"][1]
    assert (bow["name"], bow["request_cost_ms"], bow["capacity_per_s"]) == ("bow", 8.0, 125.0)
    assert bow["line"] is None


def test_names_that_yaml_would_convert_are_quoted(tmp_path):
    turns, requests = play([FakeOp(8, 0)], clients=8, count=200)
    analyst = Analyst(written(tmp_path, turns, requests, ["a: b"]))
    assert '    "a: b":\n' in report_text("p", analyst.figures, advise(analyst.figures))


def test_cancelled_requests_are_counted_apart_from_failed_ones(tmp_path):
    ended = (Outcome.OK, Outcome.BACKEND, Outcome.CANCELED, Outcome.PRODUCT, Outcome.PRODUCT)
    requests = requests_of(*(request(number, outcome=int(how)) for number, how in enumerate(ended)))
    analyst = Analyst(written(tmp_path, turns_of(turn()), requests, ["bow"]))
    text = report_text("p", analyst.figures, advise(analyst.figures))
    assert "1 failed, 1 given up by their callers, 2 refused as invalid" in text.splitlines()[0]
