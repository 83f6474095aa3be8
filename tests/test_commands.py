"""`python -m pipeline analyse`: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.observe.span import REQUEST, TURN

US = 1_000
OPS = ("words", "bow")
COSTS_US = (1_000, 8_000)


@pytest.fixture
def profile(tmp_path):
    """Requests that come every 2 ms to an Op of 1 ms and one of 8 ms."""
    import numpy as np

    from pipeline.observe.profile import profile_lines

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
    lines = profile_lines(np.array(turns, TURN), np.array(requests, REQUEST), OPS)
    path.write_text("".join(lines))
    return path


def test_a_profile_is_told_in_a_table_with_advice(profile, capsys):
    assert main(["analyse", str(profile)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{profile}: 120 requests in ")
    table = [line.split()[0] for line in out.splitlines() if line.startswith(("Op ", *OPS))]
    assert table == ["Op", "words", "bow"]
    assert "bottleneck: bow: its workers are full" in out


def test_a_rate_may_be_aimed_at(profile, capsys):
    assert main(["analyse", str(profile), "--qps", "3000", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["advice"]["target_per_s"] == 3000.0
    assert found["config"]["words"] == {"concurrency": 3}


def test_a_trace_is_written_beside_the_table(profile, tmp_path, capsys):
    assert main(["analyse", str(profile), "--trace", str(tmp_path / "trace.json")]) == 0
    assert json.loads((tmp_path / "trace.json").read_text())
    assert "bottleneck" in capsys.readouterr().out


def test_a_file_without_profile_lines_says_how_to_get_some(tmp_path, capsys):
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
def test_a_rate_that_is_none_is_refused(profile, rate, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["analyse", str(profile), "--qps", rate])
    assert caught.value.code == 2
    assert "--qps" in capsys.readouterr().err


def test_analyse_has_a_help_of_its_own(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["analyse", "--help"])
    assert caught.value.code == 0
    assert "--trace" in capsys.readouterr().out
