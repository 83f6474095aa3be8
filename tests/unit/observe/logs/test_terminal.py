"""The part of a server's log that its terminal shows."""

from __future__ import annotations

import io
import logging
import os
import sys
import weakref

import pytest
from doubles import logs_in

from pipeline.observe.logs.sinks import LogWriter
from pipeline.observe.logs.terminal import TOLD, StderrSink, is_shown, is_wanted
from pipeline.system.startup_log import STARTUP

PIPELINE = logging.getLogger("pipeline")
WHERE = "PipelineServingLogs/pipeline.log"


class Terminal:
    """A sink with a clock that is moved by hand, and what it has written to stderr since asked."""

    def __init__(self, capsys):
        self._capsys = capsys
        self.now = 1000.0
        self.sink = StderrSink(WHERE, lambda: self.now)

    def log(self, text, *args, level=logging.WARNING, line=1, **given):
        logger = logging.getLogger("pipeline.engine")
        record = logger.makeRecord(logger.name, level, __file__, line, text, args, None, **given)
        self.sink.write(record)

    def raises(self, error):
        try:
            raise error
        except Exception:
            self.log_error()

    def log_error(self):
        """Log the exception that is being handled."""
        self.sink.write(
            PIPELINE.makeRecord("x", logging.ERROR, "a.py", 7, "bad", (), sys.exc_info())
        )

    def lines(self):
        """Without level, time and place."""
        return [line.split("] ", 1)[1] for line in self._capsys.readouterr().err.splitlines()]

    def after(self, seconds):
        self.now += seconds
        self.sink.rest()
        return self.lines()


@pytest.fixture
def terminal(capsys):
    return Terminal(capsys)


def test_a_warning_is_a_line_with_level_time_and_place(terminal, capsys):
    terminal.log("worker %d is stuck", 3)
    line = capsys.readouterr().err
    assert line.startswith("WARNING 20")
    assert line.endswith(" [test_terminal.py:1] worker 3 is stuck\n")


def test_of_a_traceback_there_is_the_place_and_where_to_read_it(terminal):
    terminal.raises(ValueError("broken"))
    (line,) = terminal.lines()
    assert line.startswith("bad (test_terminal.py:")
    assert line.endswith(f"; traceback: {WHERE})")


def test_a_repeated_error_does_not_keep_the_data_of_its_request(terminal):
    class Data:
        pass

    def failing(data):
        raise ValueError("no")

    for _ in range(2):
        data = Data()
        kept = weakref.ref(data)
        try:
            failing(data)
        except ValueError:
            del data
            terminal.log_error()
        assert kept() is None
    assert len(terminal.lines()) == 1
    (line,) = terminal.after(11)
    assert line.startswith("1 more in 11 s, the last: bad (test_terminal.py:")


def test_a_long_message_is_shortened_with_a_reference_to_the_log(terminal):
    trace = 'Traceback ...\n  File "/home/me/web.py", line 12, in init_op\nOSError: no file'
    terminal.log(f"worker 0 failed: it is restarted\nOSError: no file\n{trace}")
    assert terminal.lines() == [
        "worker 0 failed: it is restarted: OSError: no file (web.py:12; traceback: " + WHERE + ")"
    ]


def test_a_repeated_message_is_shown_once_and_summed_up_later(terminal):
    for number in range(5):
        terminal.log("(data_id=%d) 'key%d' is missing", number, number)
    assert terminal.lines() == ["(data_id=0) 'key0' is missing"]
    assert terminal.sink.rest() == 10.0
    assert terminal.after(9.9) == []
    assert terminal.after(0.1) == ["4 more in 10 s, the last: (data_id=4) 'key4' is missing"]
    terminal.log("(data_id=%d) 'key%d' is missing", 5, 5)
    assert terminal.after(59.9) == []
    assert terminal.after(0.1) == ["1 more in 60 s, the last: (data_id=5) 'key5' is missing"]
    assert terminal.after(60.0) == []
    assert terminal.sink.rest() is None, "it is over, and forgotten"
    terminal.log("(data_id=%d) 'key%d' is missing", 6, 6)
    assert terminal.lines() == ["(data_id=6) 'key6' is missing"]


def test_the_count_is_not_lost_when_the_server_stops(terminal):
    for number in range(1234):
        terminal.log("%d", number)
    terminal.sink.close()
    assert terminal.lines() == ["0", "1,233 more in 0 s, the last: 1233"]


def test_different_messages_are_shown(terminal):
    terminal.log("worker is stuck")
    terminal.log("worker is killed")
    terminal.log("worker is killed", level=logging.ERROR)
    terminal.log("worker is killed", line=2)
    assert terminal.lines() == ["worker is stuck", *["worker is killed"] * 3]


def test_too_many_kinds_of_lines_are_summed_up_together(terminal):
    for number in range(1000):
        terminal.log("x" * number)
    assert len(terminal.lines()) == 33
    assert terminal.after(10.0) == [f"967 more in 10 s, the last: {'x' * 600}"]


def test_no_text_forges_or_colours_a_line(terminal, capsys):
    terminal.log("a\r\x1b[31m\0\x9b31m\u202e\u2028b\tc\nERROR forged")
    terminal.raises(ValueError("x\nERROR forged \x1b[31m"))
    text = capsys.readouterr().err
    assert text.count("\n") == 2
    assert set("\r\x1b\0\x9b\u202e\u2028").isdisjoint(text)
    assert "a\\r\\x1b[31m\\x00\\x9b31m\\u202e\\u2028b\tc: ERROR forged" in text


def test_warnings_and_loading_messages_are_shown_once():
    def record(level, name="pipeline.engine", extra=None):
        return PIPELINE.makeRecord(name, level, "a.py", 7, "text", (), None, extra=extra)

    assert is_shown(record(logging.WARNING))
    assert not is_shown(record(logging.INFO))
    assert is_shown(record(logging.INFO, STARTUP))
    assert not is_shown(record(logging.WARNING, extra=TOLD))


# Loading --------------------------------------------------------------------------------------


def loads(terminal, text, pid=1):
    record = PIPELINE.makeRecord(STARTUP, logging.INFO, "a.py", 7, text, (), None)
    record.process = pid
    terminal.sink.write(record)


def test_the_first_of_several_processes_shows_loading_and_the_last_shows_ready(terminal):
    loads(terminal, "Op 'a': loading since 10:00:00", pid=1)
    loads(terminal, "Op 'a': loading since 10:00:00", pid=2)
    loads(terminal, "Op 'b': loading since 10:00:00", pid=2)
    loads(terminal, "Op 'a': ready after 2.0 s", pid=2)
    loads(terminal, "Op 'b': not ready after 2.0 s", pid=2)
    loads(terminal, "Op 'a': ready after 3.0 s", pid=1)
    assert terminal.lines() == [
        "[pid 1] Op 'a': loading since 10:00:00",
        "[pid 2] Op 'b': loading since 10:00:00",
        "[pid 2] Op 'b': not ready after 2.0 s",
        "[pid 1] Op 'a': ready after 3.0 s",
    ]
    assert terminal.after(60.0) == [], "it is not summed up"


def test_a_terminal_has_a_live_line_that_makes_room_for_others(terminal, monkeypatch):
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    loads(terminal, "Op 'a\x1b': loading since 10:00:00", pid=os.getpid())
    assert terminal.sink.rest() == 1.0
    terminal.now += 1.0
    terminal.sink.rest()
    terminal.log("odd")
    loads(terminal, "Op 'a\x1b': ready after 2.5 s", pid=os.getpid())
    assert terminal.sink.rest() == 10.0, "only the warning may have to be summed up"
    lines = [piece.rsplit("] ", 1)[-1] for piece in screen.getvalue().split("\x1b[2K")]
    assert lines == [
        "Op 'a\\x1b': loading since 10:00:00\n",
        "Op 'a\\x1b': loading for 1 s\r",
        "Op 'a\\x1b': loading for 2 s\r",
        "Op 'a\\x1b': ready after 2.5 s\n",
    ]


@pytest.mark.parametrize(("stream", "term"), [("file", "xterm"), ("screen", "dumb")])
def test_without_a_terminal_there_is_no_live_line(terminal, monkeypatch, stream, term):
    output = Screen() if stream == "screen" else io.StringIO()
    monkeypatch.setattr(sys, "stderr", output)
    monkeypatch.setenv("TERM", term)
    loads(terminal, "Op 'a': loading since 10:00:00")
    assert terminal.sink.rest() is None
    assert "\x1b" not in output.getvalue()


# The stream -----------------------------------------------------------------------------------


class Screen(io.StringIO):
    def isatty(self):
        return True


def test_a_line_fits_into_a_pipe(terminal, capsys):
    terminal.log("\u202e" * 100_000)
    assert len(capsys.readouterr().err.encode()) <= 4096


def test_an_unread_pipe_does_not_block_the_writer(monkeypatch):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with open(reader, "rb"), open(writer, "w") as stream:
        while _takes(writer, b"x" * 4096):
            pass
        os.set_blocking(writer, True)
        monkeypatch.setattr(sys, "stderr", stream)
        log = LogWriter(StderrSink(WHERE))
        log.start()
        log.handler.handle(PIPELINE.makeRecord("x", logging.ERROR, "a.py", 7, "bad", (), None))
        log.close()
        assert not log._thread.is_alive()


def _takes(descriptor, data):
    try:
        return os.write(descriptor, data)
    except BlockingIOError:
        return 0


class Broken(io.StringIO):
    def write(self, text):
        raise RuntimeError("a stream of the user's")


@pytest.mark.parametrize("stream", [None, Broken()])
def test_a_broken_stderr_does_not_end_the_thread(monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    sink = StderrSink(WHERE)
    sink.write(PIPELINE.makeRecord("x", logging.ERROR, "a.py", 7, "bad", (), None))
    sink.close()


@pytest.mark.parametrize(
    ("when", "on_a_terminal", "elsewhere"),
    [("always", True, True), ("terminal", True, False), ("never", False, False)],
)
def test_the_configuration_decides_about_lines_on_stderr(
    monkeypatch, when, on_a_terminal, elsewhere
):
    for stream, expected in ((Screen(), on_a_terminal), (io.StringIO(), elsewhere)):
        monkeypatch.setattr(sys, "stderr", stream)
        assert is_wanted(when) is expected


def test_warnings_and_errors_also_go_to_stderr(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with logs_in(tmp_path / "PipelineServingLogs", stderr="always"):
        PIPELINE.info("detail")
        PIPELINE.warning("odd")
        try:
            raise ValueError("broken")
        except ValueError:
            PIPELINE.exception("failed")
    lines = [line.split("] ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert lines[0] == "odd"
    assert lines[1].startswith("failed (test_terminal.py:")
    assert lines[1].endswith(f"; traceback: {WHERE})")


def test_two_servers_of_a_process_show_a_line_once(tmp_path, capsys):
    with logs_in(tmp_path / "a", stderr="always"), logs_in(tmp_path / "b", stderr="always"):
        PIPELINE.warning("odd")
    assert capsys.readouterr().err.count("odd") == 1


def test_at_level_error_only_errors_are_shown(tmp_path, capsys):
    with logs_in(tmp_path, "ERROR", stderr="always"):
        PIPELINE.warning("odd")
        PIPELINE.error("bad")
    assert capsys.readouterr().err.endswith("] bad\n")
