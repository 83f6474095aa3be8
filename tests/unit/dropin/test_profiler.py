"""`TimeProfiler` of the drop-in: begins and ends, as lines that Analyst reads."""

from __future__ import annotations

import itertools

import pytest

from pipeline import Analyst
from pipeline.dropin.server.pipeline.profiler import TimeProfiler


@pytest.fixture
def profiler():
    ticks = itertools.count(1_000_000_000, 1_000_000)
    made = TimeProfiler(lambda: next(ticks))
    made.enable(True)
    return made


def test_a_finished_step_is_a_line_that_the_analyst_reads(profiler, tmp_path, capsys):
    for step in ("prep", "midp", "postp"):
        profiler.record(f"{step}#[bow|0]_0")
        profiler.record(f"{step}#[bow|0]_1")
    profiler.print_profile()
    (tmp_path / "profile.txt").write_text(capsys.readouterr().err)
    assert Analyst(tmp_path / "profile.txt").figures.ops[0].midp_ms == 1.0


def test_an_unfinished_step_is_written_in_the_next_line(profiler):
    profiler.record("call_1#DAG_0")
    assert "call" not in profiler.gen_profile_str()
    profiler.record("call_1#DAG_1")
    assert profiler.gen_profile_str().split("\t")[2] == (
        "call_1#DAG_0:1000000 call_1#DAG_1:1001000 \n"
    )
    assert "call" not in profiler.gen_profile_str()


def test_a_disabled_profiler_does_nothing(capsys):
    profiler = TimeProfiler()
    profiler.record("prep_0")
    profiler.print_profile()
    assert profiler.gen_profile_str() is None
    assert capsys.readouterr().err == ""
