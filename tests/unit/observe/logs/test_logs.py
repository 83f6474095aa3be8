"""The server's log files, and the lines about requests."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import threading
from datetime import datetime, timedelta

import pytest
from doubles import Clock, logs_in, side_by_side

from pipeline.errors import InitError, ProductError, UserCodeError
from pipeline.observe.logs import remote
from pipeline.observe.logs.setup import RequestLog
from pipeline.observe.logs.sinks import FileSink, LogWriter

PIPELINE = logging.getLogger("pipeline")
LINE = re.compile(
    r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) \d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} "
    r"\[test_logs\.py:\d+\] (.*)"
)


class ListHandler(logging.Handler):
    """Keeps (level, text) of what it is given."""

    def __init__(self):
        super().__init__()
        self.lines = []
        self.records = []

    def emit(self, record):
        self.records.append(record)
        self.lines.append((record.levelname, record.getMessage()))


@pytest.fixture(autouse=True)
def _logging_restored():
    """No test may leave a thread, a handler or a level behind."""

    def state():
        return list(PIPELINE.handlers), PIPELINE.level, PIPELINE.propagate

    threads, before = set(threading.enumerate()), state()
    yield
    assert state() == before
    assert set(threading.enumerate()) <= threads, "those of gRPC may end meanwhile"


def texts(path):
    """The messages of a log file; a line of another format fails the test."""
    return [LINE.fullmatch(line).group(2) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("takes", [False, True])
def test_lines_of_the_root_logger_are_logged_for_scripts_of_the_predecessor(
    tmp_path, monkeypatch, takes
):
    monkeypatch.setattr(remote.RootLines, "is_wanted", False)
    ours, others = logging.getLogger(), logging.getLogger("somebody.else")
    before = list(ours.handlers), ours.level
    if takes:
        remote.log_as_the_predecessor()
    with logs_in(tmp_path), logs_in(tmp_path / "another", "DEBUG"):
        ours.info("mine %d", 1)
        others.warning("else")
        ours.debug("too much")
        PIPELINE.info("ours")
    assert (list(ours.handlers), ours.level) == before
    PIPELINE.info("nobody takes it")
    expected = ["mine 1", "else", "ours"] if takes else ["ours"]
    assert texts(tmp_path / "pipeline.log") == expected
    assert ("too much" in (tmp_path / "another" / "pipeline.log").read_text()) == takes


def test_lines_of_the_root_logger_are_handed_on_without_a_lock():
    handler = remote._ToPipeline()
    record = logging.LogRecord("user", logging.DEBUG, __file__, 1, "hello", None, None)
    with handler.lock:  # which Python itself takes, from 3.13 on without asking whether it is there
        thread = threading.Thread(target=handler.handle, args=(record,))
        thread.start()
        thread.join()


def test_the_files_lie_in_the_predecessor_s_folder_under_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("SERVING_LOG_PATH", raising=False)
    monkeypatch.chdir(tmp_path)
    with logs_in():
        result = sorted(path.name for path in (tmp_path / "PipelineServingLogs").iterdir())
    assert result == ["pipeline.log", "pipeline.log.wf"]


def test_serving_log_path_is_the_parent_of_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SERVING_LOG_PATH", str(tmp_path / "a" / "b"))
    with logs_in():
        assert (tmp_path / "a/b/PipelineServingLogs/pipeline.log").exists()


def test_lines_have_the_predecessor_s_format(tmp_path):
    with logs_in(tmp_path):
        logging.getLogger("pipeline.engine.graph").info("started %s Ops", 3)
    line = (tmp_path / "pipeline.log").read_text().rstrip("\n")
    assert LINE.fullmatch(line).group(1, 2) == ("INFO", "started 3 Ops")


@pytest.mark.parametrize(
    ("level", "log", "wf"),
    [
        ("DEBUG", ["d", "i", "w", "e"], ["w", "e"]),
        ("INFO", ["i", "w", "e"], ["w", "e"]),
        ("ERROR", ["e"], ["e"]),
    ],
)
def test_each_file_takes_its_levels(tmp_path, level, log, wf):
    with logs_in(tmp_path, level):
        PIPELINE.debug("d")
        PIPELINE.info("i")
        PIPELINE.warning("w")
        PIPELINE.error("e")
    assert texts(tmp_path / "pipeline.log") == log
    assert texts(tmp_path / "pipeline.log.wf") == wf


def test_files_are_rotated_at_their_size_and_old_ones_removed(tmp_path):
    with logs_in(tmp_path, max_bytes=200, backup_count=4):
        for number in range(100):
            PIPELINE.warning("line %d", number)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        *("pipeline.log", "pipeline.log.1", "pipeline.log.2", "pipeline.log.3", "pipeline.log.4"),
        *("pipeline.log.wf", "pipeline.log.wf.1", "pipeline.log.wf.2"),
    ]
    assert all(path.stat().st_size <= 200 for path in tmp_path.iterdir())
    assert texts(tmp_path / "pipeline.log")[-1] == "line 99"


@pytest.mark.parametrize(("max_bytes", "backup_count"), [(0, 4), (200, 0)])
def test_files_grow_when_rotation_is_off(tmp_path, max_bytes, backup_count):
    with logs_in(tmp_path, max_bytes=max_bytes, backup_count=backup_count):
        for number in range(100):
            PIPELINE.warning("line %d", number)
    assert len(list(tmp_path.iterdir())) == 2
    assert len(texts(tmp_path / "pipeline.log")) == 100


def test_the_root_logger_and_the_user_s_loggers_are_left_alone(tmp_path):
    root, user, mine = logging.getLogger(), logging.getLogger("user.code"), ListHandler()
    before = list(root.handlers), root.level, user.disabled, user.level, user.propagate
    PIPELINE.addHandler(mine)
    try:
        with logs_in(tmp_path):
            during = list(root.handlers), root.level, user.disabled, user.level, user.propagate
            user.error("not ours")
            PIPELINE.info("ours")
    finally:
        PIPELINE.removeHandler(mine)
    assert during == before
    assert texts(tmp_path / "pipeline.log") == ["ours"]
    assert mine.lines == [("INFO", "ours")]


def test_a_lower_level_of_our_logger_applies_to_the_users_handler(tmp_path):
    mine = ListHandler()
    PIPELINE.addHandler(mine)
    PIPELINE.setLevel(logging.DEBUG)
    try:
        with logs_in(tmp_path, "INFO"):
            PIPELINE.debug("detail")
        assert PIPELINE.level == logging.DEBUG
    finally:
        PIPELINE.setLevel(logging.NOTSET)
        PIPELINE.removeHandler(mine)
    assert mine.lines == [("DEBUG", "detail")]
    assert texts(tmp_path / "pipeline.log") == []


def test_lines_do_not_reach_the_root_logger_while_a_session_is_open(tmp_path, caplog):
    with logs_in(tmp_path):
        assert not PIPELINE.propagate
        PIPELINE.warning("during")
    PIPELINE.warning("after")
    assert caplog.messages == ["after"]


def test_close_writes_waiting_lines_and_may_be_repeated(tmp_path):
    session = logs_in(tmp_path)
    for number in range(500):
        PIPELINE.info("line %d", number)
    session.close()
    session.close()
    assert texts(tmp_path / "pipeline.log") == [f"line {number}" for number in range(500)]


def test_a_line_has_the_values_of_its_arguments_at_the_call(tmp_path):
    batch = [1]
    with logs_in(tmp_path):
        PIPELINE.info("batch %s", batch)
        batch.append(2)
    assert texts(tmp_path / "pipeline.log") == ["batch [1]"]


def test_a_traceback_is_written(tmp_path):
    with logs_in(tmp_path):
        try:
            raise ValueError("broken")
        except ValueError:
            PIPELINE.exception("failed")
    for name in ("pipeline.log", "pipeline.log.wf"):
        text = (tmp_path / name).read_text()
        assert "failed\n  Traceback" in text
        assert text.endswith("\n  ValueError: broken\n")


def test_no_text_of_a_traceback_begins_a_record_or_colours_it(tmp_path):
    with logs_in(tmp_path):
        try:
            raise ValueError("broken\nERROR 2026-01-01 forged \x1b[31m\0\r\x85\u2028\u202e")
        except ValueError:
            PIPELINE.exception("failed\nERROR also forged")
    head, *rest = (tmp_path / "pipeline.log").read_text().split("\n")
    assert head.endswith("] failed")
    assert rest.pop() == ""
    assert all(line.startswith("  ") for line in rest)
    assert rest[0] == "  ERROR also forged"
    assert rest[-1] == "  ERROR 2026-01-01 forged \\x1b[31m\\x00\\r\\x85\\u2028\\u202e"


def test_lines_may_be_json_objects(tmp_path):
    with logs_in(tmp_path, format="json"):
        PIPELINE.info("größe %s\n\x1b\u202e\udc80", 3)
        try:
            raise ValueError("broken")
        except ValueError:
            PIPELINE.exception("failed")
    text = (tmp_path / "pipeline.log").read_text()
    assert "größe" in text
    assert set("\x1b\u202e").isdisjoint(text)
    plain, failed = map(json.loads, text.splitlines())
    assert datetime.fromisoformat(plain.pop("time")).utcoffset() == timedelta(0)
    assert plain.pop("place").startswith("test_logs.py:")
    assert plain == {
        "level": "INFO",
        "logger": "pipeline",
        "pid": os.getpid(),
        "thread": "MainThread",
        "message": "größe 3\n\x1b\u202e\udc80",
    }
    assert failed["traceback"].endswith("\nValueError: broken")


def test_the_log_may_go_to_stdout_only(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with logs_in(to="stdout", format="json", stderr="always"), logs_in(to="stdout"):
        PIPELINE.info("detail")
        PIPELINE.error("bad")
    out, err = capsys.readouterr()
    assert [json.loads(line)["message"] for line in out.splitlines()] == ["detail", "bad"]
    assert err == ""
    assert list(tmp_path.iterdir()) == []


def test_a_stdout_without_a_reader_is_complained_about_once(capsys, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stream, logs_in(to="stdout"):
        monkeypatch.setattr(sys, "stdout", stream)
        for _ in range(3):
            PIPELINE.error("bad")
    line = "pipeline: cannot write logs to stdout: Broken pipe: lines are lost\n"
    assert capsys.readouterr().err == line


class TestAFullDisk:
    """/dev/full stands for it."""

    @pytest.fixture
    def sink(self, tmp_path):
        for name in ("pipeline.log", "pipeline.log.wf"):
            (tmp_path / name).symlink_to("/dev/full")
        sink = FileSink(tmp_path, 64_000_000, 9)
        sink.open()
        yield sink
        sink.close()

    @staticmethod
    def write(sink, count):
        for number in range(count):
            text = f"line {number}"
            sink.write(PIPELINE.makeRecord("x", logging.ERROR, __file__, 1, text, (), None))

    def test_is_complained_about_once_a_minute(self, sink, tmp_path, capsys):
        clock = Clock()
        sink._complaint._clock = clock
        line = f"pipeline: cannot write logs to {tmp_path}: No space left on device: lines are lost"
        self.write(sink, 100)
        clock.now += 59.9
        self.write(sink, 100)
        assert capsys.readouterr().err == f"{line}\n"
        clock.now += 0.1
        self.write(sink, 100)
        assert capsys.readouterr().err == f"{line}\n"

    def test_close_reports_nothing_more_and_closes_all_files(self, sink, capsys):
        self.write(sink, 1)
        streams = [target.stream for target in sink._targets]
        sink.close()
        assert all(stream.closed for stream in streams)
        assert capsys.readouterr().err.count("No space") == 1

    def test_lost_records_are_counted_when_there_is_room(self, sink, tmp_path, capsys):
        self.write(sink, 3)
        for target in sink._targets:
            with contextlib.suppress(OSError):
                target.stream.close()
            (tmp_path / os.path.basename(target.baseFilename)).unlink()
            target.stream = target._open()
        self.write(sink, 2)
        capsys.readouterr()
        for name in ("pipeline.log", "pipeline.log.wf"):
            lines = (tmp_path / name).read_text().splitlines()
            assert [line.split("] ", 1)[1] for line in lines] == [
                "line 0",
                "3 log records could not be written here",
                "line 1",
            ]


def test_arguments_that_do_not_fit_the_text_do_not_reach_the_caller(tmp_path, capsys):
    with logs_in(tmp_path):
        PIPELINE.info("%d", "three")
        PIPELINE.info("next")
    assert texts(tmp_path / "pipeline.log") == ["next"]
    assert "Logging error" in capsys.readouterr().err


def test_invalid_unicode_is_written_escaped(tmp_path):
    with logs_in(tmp_path):
        PIPELINE.info("é \udc80")
    assert texts(tmp_path / "pipeline.log") == ["é \\udc80"]


def test_two_servers_with_one_folder_write_each_line_once(tmp_path):
    alias = tmp_path.parent / f"{tmp_path.name}-alias"
    alias.symlink_to(tmp_path)
    first, second = logs_in(tmp_path), logs_in(alias)
    PIPELINE.info("both")
    first.close()
    first.close()
    PIPELINE.info("second")
    assert not PIPELINE.propagate
    second.close()
    assert texts(tmp_path / "pipeline.log") == ["both", "second"]


def test_two_servers_with_two_folders_each_get_the_lines(tmp_path):
    with logs_in(tmp_path / "a"):
        with logs_in(tmp_path / "b", "WARNING"):
            PIPELINE.info("detail")
            PIPELINE.warning("both")
        PIPELINE.warning("first")
    assert texts(tmp_path / "a/pipeline.log") == ["detail", "both", "first"]
    assert texts(tmp_path / "b/pipeline.log") == ["both"]


def test_the_lower_of_two_levels_for_a_folder_applies_while_it_is_open(tmp_path):
    with logs_in(tmp_path, "WARNING"):
        PIPELINE.debug("before")
        with logs_in(tmp_path, "DEBUG"):
            PIPELINE.debug("during")
        PIPELINE.debug("after")
    assert texts(tmp_path / "pipeline.log") == ["during"]


def test_a_folder_that_cannot_be_made_is_refused_with_path_and_reason(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InitError) as caught:
        logs_in(tmp_path / "file" / "logs")
    assert str(tmp_path / "file" / "logs") in str(caught.value)
    assert "Not a directory" in str(caught.value)
    assert "SERVING_LOG_PATH" in str(caught.value)


def test_when_the_second_file_cannot_be_opened_the_first_is_closed_again(tmp_path):
    (tmp_path / "pipeline.log.wf").mkdir()
    with pytest.raises(InitError, match="directory"):
        logs_in(tmp_path)  # an open file left behind fails the test as a warning


def test_many_threads_lose_no_line(tmp_path):
    def log(number):
        for line in range(100):
            PIPELINE.info("%d %d", number, line)

    with logs_in(tmp_path):
        side_by_side(log, 4)
    result = sorted(texts(tmp_path / "pipeline.log"))
    assert result == sorted(f"{number} {line}" for number in range(4) for line in range(100))


class TestOverload:
    """A writer that has not begun yet stands for a disk that hangs."""

    LIMIT = 4

    @pytest.fixture
    def writer(self, tmp_path):
        return LogWriter(FileSink(tmp_path, 0, 0), self.LIMIT)

    @staticmethod
    def log(writer, level, count):
        for number in range(count):
            text = f"{logging.getLevelName(level)} {number}"
            writer.handler.handle(PIPELINE.makeRecord("x", level, __file__, 1, text, (), None))

    def drain(self, writer, tmp_path):
        writer.start()
        writer.close()
        return [
            line.split("] ", 1)[1] for line in (tmp_path / "pipeline.log").read_text().splitlines()
        ]

    def test_below_the_limit_no_record_is_dropped(self, writer, tmp_path):
        self.log(writer, logging.INFO, self.LIMIT)
        assert self.drain(writer, tmp_path) == [f"INFO {number}" for number in range(self.LIMIT)]

    def test_over_the_limit_details_are_dropped_and_their_number_is_logged(self, writer, tmp_path):
        self.log(writer, logging.INFO, self.LIMIT + 7)
        self.log(writer, logging.DEBUG, 2)
        lines = self.drain(writer, tmp_path)
        dropped = [line for line in lines if "log records were dropped" in line]
        assert len(dropped) == 1
        assert dropped[0].startswith("9 ")
        assert lines.index(dropped[0]) >= self.LIMIT // 2  # once half of the room is free
        kept = [line for line in lines if line not in dropped]
        assert kept == [f"INFO {number}" for number in range(self.LIMIT)]
        assert "9 log records" in (tmp_path / "pipeline.log.wf").read_text()

    def test_warnings_are_written_up_to_twice_the_limit(self, writer, tmp_path):
        self.log(writer, logging.INFO, self.LIMIT)
        self.log(writer, logging.ERROR, self.LIMIT + 3)
        lines = self.drain(writer, tmp_path)
        assert [line for line in lines if line.startswith("ERROR")] == [
            f"ERROR {number}" for number in range(self.LIMIT)
        ]
        assert any(line.startswith("3 log records were dropped") for line in lines)

    def test_a_writer_that_never_started_can_be_closed(self, writer):
        writer.close()


@pytest.fixture
def log():
    """A logger of its own that keeps its lines."""
    logger, handler = logging.Logger("requests"), ListHandler()
    logger.addHandler(handler)
    logger.lines, logger.records = handler.lines, handler.records
    return logger


def test_a_success_is_logged_in_the_predecessor_s_words_at_debug(log):
    log.setLevel(logging.DEBUG)
    RequestLog(log).succeeded(0, 7)
    assert log.lines == [("DEBUG", "(data_id=0 log_id=7) Succ predict")]


def test_every_nth_success_is_logged_at_info(log):
    log.setLevel(logging.INFO)
    requests = RequestLog(log, sample=3)
    for data_id in range(7):
        requests.succeeded(data_id, 0)
    assert log.lines == [
        ("INFO", f"(data_id={data_id} log_id=0) Succ predict") for data_id in (0, 3, 6)
    ]


def test_with_debug_other_successes_are_logged_at_debug(log):
    log.setLevel(logging.DEBUG)
    requests = RequestLog(log, sample=2)
    for data_id in range(3):
        requests.succeeded(data_id, 0)
    assert [level for level, _ in log.lines] == ["INFO", "DEBUG", "INFO"]


@pytest.mark.parametrize(("level", "sample"), [("INFO", 0), ("WARNING", 1)])
def test_successes_below_the_level_are_not_logged(log, level, sample):
    log.setLevel(level)
    requests = RequestLog(log, sample)
    for data_id in range(5):
        requests.succeeded(data_id, 0)
    assert log.records == []


def test_a_failure_is_logged_with_the_predecessors_text(log):
    requests = RequestLog(log)
    requests.failed(3, 7, InitError("no model"))
    requests.failed(4, 0, "dag closed.")
    requests.failed(5, 0, TimeoutError())
    assert log.lines == [
        ("ERROR", "(data_id=3 log_id=7) Failed to predict: no model"),
        ("ERROR", "(data_id=4 log_id=0) Failed to predict: dag closed."),
        ("ERROR", "(data_id=5 log_id=0) Failed to predict: TimeoutError"),
    ]
    assert all(record.exc_info is None for record in log.records)


def test_a_client_error_is_logged_below_error_and_counted_separately(log):
    requests = RequestLog(log, failures_per_s=1, clock=Clock())
    requests.failed(0, 0, ProductError(51, "no face"), logging.INFO)
    requests.failed(1, 0, ProductError(51, "no face"), logging.INFO)
    requests.failed(2, 0, InitError("no model"))
    requests.flush()
    assert log.lines == [
        ("INFO", "(data_id=0 log_id=0) Failed to predict: no face"),
        ("ERROR", "(data_id=2 log_id=0) Failed to predict: no model"),
        ("INFO", "1 more requests failed within a second: not logged singly"),
    ]


def test_a_failure_of_user_code_was_shown_where_it_was_raised(log):
    requests = RequestLog(log)
    requests.failed(0, 0, UserCodeError("det.preprocess: broken"))
    requests.failed(1, 0, InitError("no model"))
    assert [getattr(record, "is_told", False) for record in log.records] == [True, False]
    assert all(record.exc_info is None for record in log.records)


def test_an_error_text_cannot_start_a_line_or_fill_the_log(log):
    RequestLog(log).failed(0, 0, "a\nINFO 2026-01-01 forged\r" + "x" * 10_000)
    ((_, line),) = log.lines
    assert "a\\nINFO 2026-01-01 forged\\rxxx" in line
    assert "\n" not in line
    assert "\r" not in line
    assert len(line) < 2200


def test_failures_beyond_the_limit_of_a_second_are_counted_in_the_next(log):
    clock = Clock()
    requests = RequestLog(log, failures_per_s=2, clock=clock)
    for data_id in range(5):
        requests.failed(data_id, 0, "x")
    clock.now += 0.99
    requests.failed(5, 0, "x")
    clock.now += 0.01
    requests.failed(6, 0, "x")
    assert [text for _, text in log.lines] == [
        "(data_id=0 log_id=0) Failed to predict: x",
        "(data_id=1 log_id=0) Failed to predict: x",
        "4 more requests failed within a second: not logged singly",
        "(data_id=6 log_id=0) Failed to predict: x",
    ]


def test_the_count_of_the_last_second_is_logged_on_flush_once(log):
    requests = RequestLog(log, failures_per_s=1, clock=Clock())
    requests.failed(0, 0, "x")
    requests.failed(1, 0, "x")
    requests.flush()
    requests.flush()
    assert [text for _, text in log.lines] == [
        "(data_id=0 log_id=0) Failed to predict: x",
        "1 more requests failed within a second: not logged singly",
    ]


def test_a_line_names_the_place_that_reports_the_request(log):
    requests = RequestLog(log, sample=1)
    requests.succeeded(0, 0)
    requests.failed(1, 0, "x")
    assert {record.filename for record in log.records} == {"test_logs.py"}
