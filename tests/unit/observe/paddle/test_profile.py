"""PROFILE lines, from rows to text and back, and the predecessor's own."""

from __future__ import annotations

import asyncio
import io
import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from doubles import Engine, answers, chain, run_virtual
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine.journal.journal import (
    NO_WORKER,
    PIPELINE,
    REQUEST,
    SPAN,
    Outcome,
    Rows,
    pack_request,
    pack_span,
    packed_request_of,
)
from pipeline.observe.analysis.sampling import LOAD, Strides
from pipeline.observe.paddle.profile import (
    Profile,
    load_lines,
    parse_profile,
    profile_lines,
    profile_text,
    read_profile,
)
from pipeline.op import PROFILE_KEY

NO_TURNS = np.array([], SPAN)
NO_REQUESTS = np.array([], REQUEST)
US = 1_000


def turn(op: int = 0, batch: int = 1, data_id: int = 7, outcome: int = 0, **other: int) -> Any:
    fields = {
        "op": op, "worker": 2, "batch": batch, "data_id": data_id, "rows": 1, "outcome": outcome,
        "ready_ns": 500, "start_ns": 1_000, "preprocess_end_ns": 2_000, "process_end_ns": 30_999,
        "end_ns": 31_500, "result_received_ns": 32_000,
    }  # fmt: skip
    return tuple((fields | other).values())


def never_ran(op: int = 0, data_id: int = 7, at: int = 900) -> Any:
    return (op, NO_WORKER, -1, data_id, 1, Outcome.REJECTED, 500, at, at, at, at, at)


def request(data_id: int = 7, target: int = PIPELINE, **other: int) -> Any:
    fields = {
        "data_id": data_id, "target": target, "rows": 3, "outcome": 0, "code": 0,
        "start_ns": 100, "admitted_ns": 1_000, "dispatched_ns": 2_000, "completed_ns": 40_000,
        "end_ns": 41_000, "input_ns": 1_000, "infer_ns": 28_999, "output_ns": 501,
    }  # fmt: skip
    return tuple((fields | other).values())


def turns_of(*rows: Any) -> Rows:
    return np.array(list(rows), SPAN)


def requests_of(*rows: Any) -> Rows:
    return np.array(list(rows), REQUEST)


def same(found: Rows, expected: Rows) -> bool:
    return found.dtype == expected.dtype and found.tolist() == expected.tolist()


# --- the predecessor's reader, as its tools do it -------------------------------------------------


def old_events(text: str) -> list[tuple[str, str, str, str, int]]:
    """(pid, name, thread, phase, us) as the predecessor's Analyst takes a file apart."""
    collected = []
    for line in text.splitlines():
        fields = line.strip().split("\t")
        if fields[0] != "PROFILE" or len(fields) < 3:
            continue
        for event in fields[2].split(" "):
            name, stamp = event.split(":")
            base, phase = name.rsplit("_", 1)
            step, thread = base.split("#")
            collected.append((fields[1].split(":")[1], step, thread, phase, int(stamp)))
    return collected


def test_the_predecessors_reader_finds_the_stages_of_a_batch_once():
    text = "".join(profile_lines(turns_of(turn(), turn(data_id=8)), NO_REQUESTS, ["bow"]))
    pid = str(os.getpid())
    assert old_events(text) == [
        (pid, "prep", "[bow|2]", "0", 1),
        (pid, "prep", "[bow|2]", "1", 2),
        (pid, "midp", "[bow|2]", "0", 2),
        (pid, "midp", "[bow|2]", "1", 30),
        (pid, "postp", "[bow|2]", "0", 30),
        (pid, "postp", "[bow|2]", "1", 31),
    ]


def test_the_predecessors_reader_finds_the_steps_of_a_request():
    text = "".join(profile_lines(NO_TURNS, requests_of(request()), []))
    assert [event[1:] for event in old_events(text)] == [
        ("prepack_7", "@DAGExecutor", "0", 1),
        ("prepack_7", "@DAGExecutor", "1", 2),
        ("call_7", "DAG", "0", 2),
        ("call_7", "DAG", "1", 40),
        ("postpack_7", "@DAGExecutor", "0", 40),
        ("postpack_7", "@DAGExecutor", "1", 41),
    ]


names_of_any_kind = st.lists(st.text(max_size=6), min_size=1, max_size=3, unique=True)
numbers = st.integers(-(2**63), 2**63 - 1)
times = st.integers(0, 2**62)
data_ids = st.integers(-1, 10**18)
outcomes = st.sampled_from(Outcome)


@st.composite
def rows_and_names(draw: st.DrawFn) -> tuple[Rows, Rows, list[str]]:
    names = draw(names_of_any_kind)
    op = st.integers(0, len(names) - 1)
    small = st.integers(-1, 2)  # rows that look like those of one batch, and are not
    of_time = [times | st.integers(-1, 2)] * 6
    turn_fields = st.tuples(op, small, small, data_ids, numbers, outcomes, *of_time)
    request_fields = st.tuples(
        data_ids, op | st.just(PIPELINE), numbers, outcomes, numbers, *[times] * 5, *[numbers] * 3
    )
    turns = draw(st.lists(turn_fields, max_size=6))
    return turns_of(*turns), requests_of(*draw(st.lists(request_fields, max_size=4))), names


def strides_of(turns: int, requests: int) -> st.SearchStrategy[Strides]:
    some = st.integers(1, 2**40)
    lists = st.tuples(*(st.lists(some, min_size=n, max_size=n) for n in (turns, requests)))
    return lists.map(lambda result: Strides(*(np.array(item, np.int64) for item in result)))


def renamed(rows: Rows, field: str, names: Any) -> list[Any]:
    """The rows with the name instead of its index."""
    place = (rows.dtype.names or ()).index(field)
    return [
        (*row[:place], None if row[place] == PIPELINE else names[row[place]], *row[place + 1 :])
        for row in rows.tolist()
    ]


@given(rows_and_names(), st.data())
def test_written_rows_are_parsed_unchanged(made: tuple[Rows, Rows, list[str]], data: st.DataObject):
    turns, requests, names = made
    strides = data.draw(st.none() | strides_of(len(turns), len(requests)))
    text = "".join(profile_lines(turns, requests, names, strides=strides))
    profile = parse_profile(text.split("\n"))
    assert renamed(profile.spans, "op", profile.names) == renamed(turns, "op", names)
    assert renamed(profile.requests, "target", profile.names) == renamed(requests, "target", names)
    assert set(profile.span_pids.tolist()) <= {os.getpid()}
    assert (len(profile.span_pids), len(profile.request_pids)) == (len(turns), len(requests))
    assert not profile.damaged
    if strides is None:
        strides = Strides(np.ones(len(turns)), np.ones(len(requests)))
    assert profile.sample.spans.sum() == pytest.approx(strides.spans.sum())
    assert profile.sample.requests.tolist() == strides.requests.tolist()


@given(rows_and_names())
def test_the_predecessors_reader_accepts_all_written_lines(
    made: tuple[Rows, Rows, list[str]],
):
    text = "".join(profile_lines(*made))
    begun: dict[tuple[str, ...], int] = {}
    for *name, phase, stamp in old_events(text):  # raises where it would fail
        key = tuple(map(str, name))
        if phase == "0":
            assert key not in begun
            begun[key] = stamp
        else:
            assert begun.pop(key) <= stamp
    assert not begun


def test_known_times_are_converted_to_the_epoch():
    turns = turns_of(turn(result_received_ns=0))
    requests = requests_of(request(dispatched_ns=0, completed_ns=-1))
    parsed = parse_profile(profile_lines(turns, requests, ["bow"], offset_ns=10**18))
    assert same(parsed.spans, turns_of(
        turn(ready_ns=10**18 + 500, start_ns=10**18 + 1_000, preprocess_end_ns=10**18 + 2_000,
             process_end_ns=10**18 + 30_999, end_ns=10**18 + 31_500, result_received_ns=0)
    ))  # fmt: skip
    assert parsed.requests[0][["start_ns", "dispatched_ns", "completed_ns", "end_ns"]].tolist() == (
        10**18 + 100, 0, -1, 10**18 + 41_000,
    )  # fmt: skip
    assert turns.tolist() == [turn(result_received_ns=0)], "the sinks share the rows"


def test_a_turn_that_never_ran_is_hidden_from_the_predecessor():
    turns = turns_of(never_ran(data_id=1), never_ran(data_id=2), never_ran(data_id=3, at=901))
    text = "".join(profile_lines(turns, NO_REQUESTS, ["bow"]))
    assert text.count("\n") == 2
    assert old_events(text) == []
    assert same(parse_profile(text.split("\n")).spans, turns)


def test_requests_of_a_batch_share_the_weight_of_its_line():
    turns = turns_of(turn(data_id=1), turn(data_id=2), turn(data_id=3), turn(batch=2, data_id=4))
    strides = Strides(np.array([0, 16, 0, 8]), np.array([8]))
    text = "".join(profile_lines(turns, requests_of(request(4)), ["bow"], strides=strides))
    sample = parse_profile(text.split("\n")).sample
    assert sample.spans.tolist() == [16 / 3] * 3 + [8.0]
    assert sample.requests.tolist() == [8.0]
    assert len(old_events(text)) == 3 * 6, "the predecessor's reader sees nothing of it"


def test_lines_of_weight_one_have_no_weight():
    strides = Strides(np.array([1, 1]), np.array([1]))
    turns, requests = turns_of(turn(), turn(data_id=8)), requests_of(request())
    lines = [*profile_lines(turns, requests, ["bow"], strides=strides)]
    assert lines == [*profile_lines(turns, requests, ["bow"])]
    assert not any("stands_for" in line for line in lines)


def test_loads_are_not_visible_to_the_predecessor():
    loads = np.array([(10, 1_010, 400)], LOAD)
    text = "".join(load_lines(loads, offset_ns=10**18))
    assert old_events(text) == []
    profile = parse_profile(text.split("\n"))
    assert profile.sample.loads.tolist() == [(10**18 + 10, 10**18 + 1_010, 400)]
    assert (len(profile.spans), len(profile.requests), profile.damaged) == (0, 0, 0)


def test_a_request_that_never_got_in_has_no_events_and_is_read():
    requests = requests_of(
        request(dispatched_ns=0, outcome=Outcome.REJECTED, code=6000, completed_ns=0)
    )
    text = "".join(profile_lines(NO_TURNS, requests, []))
    assert old_events(text) == []
    assert same(parse_profile(text.split("\n")).requests, requests)


# --- what a client is answered --------------------------------------------------------------------


def test_the_profile_of_one_request_has_its_turns_and_itself():
    before = time.time_ns()
    start = time.monotonic_ns()
    own = request(
        start_ns=start, admitted_ns=start, dispatched_ns=start, completed_ns=start, end_ns=0
    )
    text = profile_text(
        pack_request(*own),
        [pack_span(*turn(op=1, start_ns=start)), pack_span(*turn(op=0))],
        ["bow", "cnn"],
    )
    profile = parse_profile(text.split("\n"))
    assert text.endswith("\n")
    assert profile.names == ("cnn", "bow")
    assert profile.spans["data_id"].tolist() == [7, 7]
    assert before - 10**9 <= profile.requests["start_ns"][0] <= time.time_ns() + 10**9
    assert profile.requests["end_ns"].tolist() == [0]


def test_the_profile_of_a_request_without_turns_is_its_own_line():
    profile = parse_profile(profile_text(pack_request(*request()), [], []).split("\n"))
    assert (len(profile.spans), len(profile.requests)) == (0, 1)


# --- the predecessor's lines ----------------------------------------------------------------------

OLD_OP = (
    "PROFILE\tpid:3187\tprep#[uci|1]_0:1795000000000100 prep#[uci|1]_1:1795000000000200 "
    "midp#[uci|1]_0:1795000000000203 midp#[uci|1]_1:1795000000000700 "
    "postp#[uci|1]_0:1795000000000704 postp#[uci|1]_1:1795000000000750 \n"
)
OLD_EXECUTOR = (
    "\nPROFILE\tpid:3180\tprepack_5#@DAGExecutor_0:1795000000000010 "
    "prepack_5#@DAGExecutor_1:1795000000000050 call_5#{dag}_0:1795000000000055 "
    "call_5#{dag}_1:1795000000000800 postpack_5#@DAGExecutor_0:1795000000000802 "
    "postpack_5#@DAGExecutor_1:1795000000000820 \n"
)


def old_profile(text: str) -> Profile:
    return parse_profile(io.StringIO(text))


def test_an_op_line_of_the_predecessor_is_a_turn():
    result = old_profile(OLD_OP)
    second = 1_795_000_000_000_000 * US
    assert result.spans.tolist() == [
        (0, 1, 0, -1, -1, Outcome.OK, -1, second + 100 * US, second + 203 * US, second + 700 * US,
         second + 750 * US, -1)
    ]  # fmt: skip
    assert (result.names, result.span_pids.tolist(), result.damaged) == (("uci",), [3187], 0)


@pytest.mark.parametrize("dag", ["DAG", "DAG-5"])
def test_an_executor_line_of_the_predecessor_is_a_request(dag: str):
    result = old_profile(OLD_EXECUTOR.format(dag=dag))
    second = 1_795_000_000_000_000 * US
    assert result.requests.tolist() == [
        (5, PIPELINE, -1, Outcome.OK, 0, second + 10 * US, second + 10 * US, second + 55 * US,
         second + 800 * US, second + 820 * US, -1, -1, -1)
    ]  # fmt: skip
    assert result.request_pids.tolist() == [3180]


def test_a_request_of_the_predecessor_may_have_several_lines():
    whole = OLD_EXECUTOR.format(dag="DAG")
    head, *events = re.split(r"(?=prepack_|call_|postpack_)", whole.strip())
    lines = [f"{head}{event}" for event in events]
    assert same(parse_profile(lines).requests, old_profile(whole).requests)


def test_failed_batches_of_the_predecessor_precede_the_successful_one():
    line = OLD_OP.replace(
        "\tprep", "\tprep#[uci|1]_0:10 prep#[uci|1]_1:20 prep#[uci|1]_0:30 "
        "prep#[uci|1]_1:40 midp#[uci|1]_0:41 midp#[uci|1]_1:50 prep", 1,
    )  # fmt: skip
    turns = old_profile(line).spans
    assert turns["outcome"].tolist() == [Outcome.BACKEND, Outcome.BACKEND, Outcome.OK]
    assert turns["batch"].tolist() == [0, 1, 2]
    assert turns[["start_ns", "preprocess_end_ns", "process_end_ns", "end_ns"]].tolist()[:2] == [
        (10 * US, 20 * US, -1, 20 * US),
        (30 * US, 41 * US, 50 * US, 50 * US),
    ]


def test_names_of_the_predecessor_are_parsed_unchanged():
    line = OLD_OP.replace("uci", "my_op %20: a|b #1")
    assert old_profile(line).names == ("my_op %20: a|b #1",)


# --- files ----------------------------------------------------------------------------------------


def test_other_lines_are_skipped_and_both_kinds_are_read(tmp_path: Path):
    ours = "".join(profile_lines(turns_of(turn()), requests_of(request()), ["bow"]))
    text = f"INFO started\n{OLD_OP}progress: 50%{ours}\tPROFILING\n\xff"
    file = tmp_path / "profile.txt"
    file.write_bytes(text.encode("latin-1") + b"\xfe\n")
    profile = read_profile(file)
    assert (profile.names, len(profile.spans), len(profile.requests)) == (("uci", "bow"), 2, 1)
    assert profile.damaged == 0


def test_a_file_that_is_not_there_is_an_os_error(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"none\.txt"):
        read_profile(tmp_path / "none.txt")


def test_lines_with_windows_breaks_are_read():
    (line,) = profile_lines(turns_of(turn()), NO_REQUESTS, ["bow"])
    assert len(parse_profile([line.replace("\n", "\r\n")]).spans) == 1


@pytest.mark.parametrize(
    "line",
    [
        "PROFILE\tpid:",
        "PROFILE\tpid:12",
        "PROFILE\tpid:12\tunet_pre_0:17 unet_pre_1:18",
        'PROFILE\tpid:12\t\t{"kind":"batch"',
        'PROFILE\tpid:12\t\t{"kind":"batch"}',
        'PROFILE\tpid:12\t\t{"kind":"request","op":null,"data_id":1,"row":[1,2]}',
        'PROFILE\tpid:12\t\t{"kind":"request","op":null,"data_id":1,"row":['
        + "1e999," * 10
        + "1]}",
        'PROFILE\tpid:12\t\t{"kind":"other"}',
        'PROFILE\tpid:12\t\t{"kind":"load","begin":1,"end":2}',
        'PROFILE\tpid:12\t\t{"kind":"batch","op":"a","worker":0,"batch":0,"times":[1,2,3,4,5],'
        '"requests":[[1,1,0,1]],"stands_for":0}',
        "PROFILE\tpid:12\t\t" + "[" * 100_000,
        "PROFILE\tpid:12\t\t" + '{"kind":"request","op":null,"data_id":' + "9" * 5_000 + "}",
        "PROFILE\tpid:" + "9" * 5_000 + "\t\t{}",
    ],
)
def test_a_damaged_line_is_counted(line: str):
    profile = parse_profile([line])
    assert (len(profile.spans), len(profile.requests), profile.damaged) == (0, 0, 1)


def test_a_line_cut_by_another_is_counted_and_the_other_is_read():
    (line,) = profile_lines(turns_of(turn()), NO_REQUESTS, ["bow"])
    profile = parse_profile([line[:40] + line])
    assert (len(profile.spans), profile.damaged) == (1, 1)


@given(st.text(alphabet=st.sampled_from('PROFILE\tpid:1#[]|_0{}",prmdoscalk n-9')))
def test_no_text_stops_the_reader(text: str):
    parse_profile([f"PROFILE\tpid:1\t{text}", text])


def test_times_beyond_the_range_of_a_row_are_clipped():
    line = "PROFILE\tpid:1\tprep#[a|0]_0:9999999999999999 prep#[a|0]_1:9999999999999999"
    assert old_profile(line).spans["start_ns"][0] > 4e18


# --- with an engine -------------------------------------------------------------------------------


def test_a_client_that_requests_it_gets_the_profile_of_its_request():
    async def calls() -> None:
        async with Engine(chain("a", "b")) as engine:
            engine.watch(
                profile=lambda request: profile_text(
                    packed_request_of(request, PIPELINE), request.spans or [], ["a", "b"]
                )
            )
            others = [engine.ask() for _ in range(3)]
            answer = await engine.ask(**{PROFILE_KEY: "1"})
            await asyncio.gather(*others)
        texts = [text for key, text in answers(answer).items() if key == PROFILE_KEY]
        (result,) = [parse_profile(text.split("\n")) for text in texts]
        (data_id,) = result.requests["data_id"].tolist()
        assert result.spans["data_id"].tolist() == [data_id] * 2
        assert [result.names[op] for op in result.spans["op"]] == ["a", "b"]
        assert result.spans["outcome"].tolist() == [Outcome.OK] * 2

    run_virtual(calls())
