"""Progress on a terminal: what the line says, and that it is nowhere else."""

from __future__ import annotations

import io

import pytest

from pipeline.cli.progress import ProgressLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("took_s", "seconds", "line"),
    [
        (0.0, 10.0, "asking [........................] 0 s"),
        (5.0, 10.0, "asking [############............] 5 s"),
        (20.0, 10.0, "asking [########################] 20 s"),
        (7.4, None, "asking (7 s)"),
    ],
)
def test_the_line_fills_with_time(took_s, seconds, line):
    times = iter([0.0, took_s])
    assert ProgressLine(None, "asking", seconds, clock=lambda: next(times)).line() == line


def test_without_a_terminal_no_progress_is_written():
    stream = io.StringIO()
    with ProgressLine(stream, "asking", delay_s=0.0):
        pass
    assert stream.getvalue() == ""


def test_a_terminal_is_clean_afterwards():
    terminal = Terminal()
    drawn = ProgressLine(terminal, "asking", delay_s=0.0)
    with drawn:
        while not terminal.getvalue():  # the first line is drawn at once
            pass
    assert terminal.getvalue().startswith("\r\x1b[Kasking (")
    assert terminal.getvalue().endswith("\r\x1b[K")
    drawn.close()


def test_a_closed_stream_is_not_a_terminal():
    terminal = Terminal()
    terminal.close()
    with ProgressLine(terminal, "asking"):
        pass
