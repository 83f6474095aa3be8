"""`python -m pipeline analyse`: what it prints, writes and refuses."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.__main__ import main
from pipeline.engine.journal.journal import REQUEST, SPAN

US = 1_000
OPS = ("words", "bow")
COSTS_US = (1_000, 8_000)


@pytest.fixture
def profile(tmp_path):
    """Requests that come every 2 ms to an Op of 1 ms and one of 8 ms."""
    import numpy as np

    from pipeline.observe.paddle.profile import profile_lines

    turns, requests = [], []
    free = [0, 0]
    for number in range(120):
        begun = ready = 10**9 + number * 2_000 * US
        for op, cost in enumerate(COSTS_US):
            start = max(ready, free[op])
            free[op] = end = start + cost * US
            times = (ready, start, start, end, end, end)
            turns.append((op, 0, number, number, 1, 0, *times))
            ready = end
        requests.append((number, -1, 1, 0, 0, begun, begun, begun, ready, ready, 0, 0, 0))
    path = tmp_path / "profile.txt"
    lines = profile_lines(np.array(turns, SPAN), np.array(requests, REQUEST), OPS)
    path.write_text("".join(lines))
    return path


def test_a_profile_is_printed_as_a_table_with_advice(profile, capsys):
    assert main(["analyse", str(profile)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{profile}: 120 requests in ")
    table = [line.split()[0] for line in out.splitlines() if line.startswith(("Op ", *OPS))]
    assert table == ["Op", "words", "bow"]
    assert "bottleneck: bow: its workers are full" in out


def test_a_rate_may_be_aimed_at(profile, capsys):
    assert main(["analyse", str(profile), "--qps", "3000", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["advice"]["target_per_s"] == 3000.0
    assert document["config"]["words"] == {"concurrency": 3}


def test_a_trace_is_written_in_addition_to_the_table(profile, tmp_path, capsys):
    assert main(["analyse", str(profile), "--trace", str(tmp_path / "trace.json")]) == 0
    assert json.loads((tmp_path / "trace.json").read_text())
    assert "bottleneck" in capsys.readouterr().out


def test_a_file_without_profile_lines_is_an_error_with_advice(tmp_path, capsys):
    (tmp_path / "log").write_text("hello\n")
    assert main(["analyse", str(tmp_path / "log")]) == 1
    assert "dag.use_profile" in capsys.readouterr().out


def test_a_file_that_cannot_be_read_is_named(tmp_path, capsys):
    assert main(["analyse", str(tmp_path / "absent")]) == 1
    assert capsys.readouterr().err.endswith("absent: No such file or directory\n")
    assert main(["analyse", str(tmp_path)]) == 1


def test_a_trace_that_cannot_be_written_is_named(profile, tmp_path, capsys):
    target = Path(tmp_path, "no folder", "trace")
    assert main(["analyse", str(profile), "--trace", str(target)]) == 1
    assert str(target) in capsys.readouterr().err


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "inf", "many"])
def test_an_invalid_rate_is_refused(profile, rate, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["analyse", str(profile), "--qps", rate])
    assert caught.value.code == 2
    assert "--qps" in capsys.readouterr().err


BOUNDARIES = [0, -1, 1, 4, 99, 10**9, 10**18, 10**18 + 5_000, 2**62, 2**63 - 1, -(2**63), 2**64]
NUMBERS = st.sampled_from(BOUNDARIES) | st.integers(10**18, 10**18 + 10**6)


def numbers(count):
    return st.lists(NUMBERS, min_size=count, max_size=count)


BATCHES = st.fixed_dictionaries(
    {
        "kind": st.just("batch"),
        "op": st.sampled_from(["a", "b", "", "\n|]"]),
        "worker": NUMBERS,
        "batch": NUMBERS,
        "times": numbers(5) | numbers(5).map(sorted),
        "requests": st.lists(numbers(4), max_size=3),
    },
    optional={"stands_for": NUMBERS},
)
REQUESTS = st.fixed_dictionaries(
    {
        "kind": st.just("request"),
        "op": st.sampled_from([None, "a", "z"]),
        "data_id": NUMBERS,
        "row": numbers(11) | numbers(11).map(sorted),
    },
    optional={"stands_for": NUMBERS},
)
LOADS = st.fixed_dictionaries(
    {"kind": st.just("load"), "begin": NUMBERS, "end": NUMBERS, "busy": NUMBERS}
)
OLD_EVENTS = st.builds(
    "{}#[{}|{}]_{}:{}".format,
    st.sampled_from(["prep", "midp", "postp"]),
    st.sampled_from("ab"),
    st.integers(0, 2),
    st.integers(0, 1),
    st.sampled_from([0, 1, 10**15, 10**15 + 7, 10**16 - 1]),
)
LINES = st.one_of(
    st.one_of(BATCHES, REQUESTS, LOADS).map(lambda line: f"x\t{json.dumps(line)}"),
    st.lists(OLD_EVENTS, max_size=8).map(" ".join),
    st.text(max_size=20),
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(LINES, max_size=8), rate=st.sampled_from(["1e-300", "100", "1e308"]))
def test_any_file_is_analysed_as_far_as_it_is_readable(lines, rate, tmp_path, capsys):
    path, trace = tmp_path / "log", tmp_path / "trace"
    path.write_text("".join(f"PROFILE\tpid:{7 + i % 2}\t{line}\n" for i, line in enumerate(lines)))
    for more in ([], ["--qps", rate], ["--json", "--trace", str(trace)]):
        assert main(["analyse", str(path), *more]) in (0, 1)
        out = capsys.readouterr().out
        if "--json" in more:
            json.loads(out, parse_constant=pytest.fail)
            json.loads(trace.read_text(), parse_constant=pytest.fail)
        else:
            assert not re.search(r"\bnan\b", out), out


def test_a_file_without_line_breaks_is_read_in_pieces(tmp_path, capsys):
    (tmp_path / "log").write_bytes(b"\0" * 20_000_000)
    tracemalloc.start()
    try:
        assert main(["analyse", str(tmp_path / "log")]) == 1
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_analyse_has_its_own_help(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["analyse", "--help"])
    assert caught.value.code == 0
    assert "--trace" in capsys.readouterr().out
