"""Log records of other processes, from the child that makes them to the line in the file."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading

import msgspec
import pytest
from child_logs import loggers_as_before, sent_home
from doubles import logs_in
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.observe.logs.lines import FIELDS, JsonFormatter, LineFormatter
from pipeline.observe.logs.remote import SentRecord, keep_logs, replay

PIPELINE = logging.getLogger("pipeline")
ENGINE = logging.getLogger("pipeline.engine")
FOREIGN = 4_000_000_000  # above any pid


@pytest.fixture(autouse=True)
def _as_before():
    with loggers_as_before():
        yield


def a_record(**changes):
    plain = {
        "name": "pipeline.engine",
        "level": logging.WARNING,
        "path": "/far/child.py",
        "line": 17,
        "function": "work",
        "message": "hello",
        "trace": "",
        "stack": "",
        "created": 1_700_000_000.25,
        "pid": FOREIGN,
        "thread": "MainThread",
    }
    return SentRecord(**plain | changes)


class Keeper(logging.Handler):
    """Keeps the records that it is given."""

    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)


def replayed(sent):
    """The record that the parent's handlers get."""
    keeper = Keeper()
    PIPELINE.addHandler(keeper)
    try:
        replay(sent)
    finally:
        PIPELINE.removeHandler(keeper)
    (record,) = keeper.records
    return record


# The child -----------------------------------------------------------------------------------


def test_a_record_has_its_text_place_time_and_process():
    sent = sent_home()
    batch = [1]
    ENGINE.warning("batch %s", batch)
    batch.append(2)
    (record,) = sent
    assert (record.name, record.level, record.message) == ("pipeline.engine", 30, "batch [1]")
    assert record.path == __file__
    assert record.function == "test_a_record_has_its_text_place_time_and_process"
    assert (record.pid, record.thread) == (os.getpid(), threading.current_thread().name)
    assert (record.trace, record.stack) == ("", "")


def test_a_child_has_the_level_of_its_parent():
    sent = sent_home()
    ENGINE.debug("detail")
    ENGINE.info("line")
    assert [record.message for record in sent] == ["line"]


def test_exceptions_and_stacks_are_text():
    sent = sent_home()
    try:
        raise ValueError("broken")
    except ValueError:
        ENGINE.exception("failed", stack_info=True)
    (record,) = sent
    assert record.trace.startswith("Traceback (most recent call last):\n")
    assert record.trace.endswith("ValueError: broken")
    assert record.stack.startswith("Stack (most recent call last):\n")


def test_handlers_of_the_parent_get_no_records_of_the_child():
    inherited, below = Keeper(), Keeper()
    PIPELINE.addHandler(inherited)
    ENGINE.addHandler(below)
    ENGINE.propagate = False
    sent = sent_home()
    ENGINE.info("line")
    assert [record.message for record in sent] == ["line"]
    assert inherited.records == below.records == []


def test_the_root_logger_and_the_users_loggers_do_not_change(caplog):
    user, keeper = logging.getLogger("user.of.pipeline"), Keeper()
    user.addHandler(keeper)
    try:
        sent = sent_home()
        user.warning("mine")
        ENGINE.warning("ours")
    finally:
        user.removeHandler(keeper)
    assert [record.getMessage() for record in keeper.records] == ["mine"]
    assert caplog.messages == ["mine"]
    assert [record.message for record in sent] == ["ours"]


def test_keeping_logs_again_takes_the_place_of_the_first():
    sent = sent_home()
    second = sent_home(logging.WARNING)
    ENGINE.info("detail")
    ENGINE.warning("line")
    assert [record.message for record in second] == ["line"]
    assert sent == []


def test_an_argument_whose_text_raises_does_not_affect_the_caller(capsys):
    sent = sent_home()

    class Rude:
        def __str__(self):
            raise RuntimeError("no text")

        __repr__ = __str__

    ENGINE.info("%s", Rude())
    ENGINE.info("%d", "three")
    ENGINE.info("next")
    assert [record.message for record in sent] == ["next"]
    assert "no text" in capsys.readouterr().err


def test_records_at_the_end_of_a_child_go_to_stderr(capsys):
    def send(record):
        raise BrokenPipeError

    keep_logs(logging.INFO, send)
    ENGINE.error("my last words")
    line = capsys.readouterr().err
    assert line.startswith("ERROR ")
    assert line.endswith("] my last words\n")


def test_a_child_without_stderr_continues(monkeypatch):
    def send(record):
        raise BrokenPipeError

    keep_logs(logging.INFO, send)
    monkeypatch.setattr(sys, "stderr", None)
    ENGINE.error("into the void")


def test_a_record_logged_during_a_send_is_dropped():
    records = []

    def send(record):
        ENGINE.info("by a finaliser")
        records.append(record.message)

    keep_logs(logging.INFO, send)
    ENGINE.info("first")
    ENGINE.info("second")
    assert records == ["first", "second"]


@example("é \udc80")
@given(st.text(st.characters(exclude_categories=()), max_size=50))
def test_any_text_can_be_sent(text):
    with loggers_as_before():
        sent = sent_home()
        ENGINE.info("%s", text)
    wire = msgspec.msgpack.encode(sent)
    assert msgspec.msgpack.decode(wire, type=list[SentRecord]) == sent
    assert sent[0].message == text.encode("utf-8", "backslashreplace").decode()


# The parent ----------------------------------------------------------------------------------


def test_a_record_is_replayed_unchanged():
    record = replayed(a_record(stack="Stack"))
    assert (record.name, record.levelname) == ("pipeline.engine", "WARNING")
    assert (record.pathname, record.filename, record.lineno) == ("/far/child.py", "child.py", 17)
    assert (record.funcName, record.process, record.threadName) == ("work", FOREIGN, "MainThread")
    assert (record.created, record.msecs) == (1_700_000_000.25, 250.0)
    assert record.getMessage() == "hello"
    assert record.stack_info == "Stack"


def test_the_times_of_a_record_agree():
    here = PIPELINE.makeRecord("x", 30, "", 0, "", (), None)
    record = replayed(a_record(created=here.created))
    assert (record.created, record.msecs) == (here.created, here.msecs)
    assert record.relativeCreated == pytest.approx(here.relativeCreated)


def test_a_percent_sign_in_a_message_is_not_formatted():
    assert replayed(a_record(message="100 %d %s")).getMessage() == "100 %d %s"


def test_a_record_of_the_root_logger_goes_to_the_log_only(monkeypatch):
    """The child has given it to the user's own handlers, which also exist there."""
    monkeypatch.setattr(PIPELINE, "propagate", False)  # as while these lines are taken
    users = Keeper()
    for logger in (logging.getLogger(), logging.getLogger("users")):
        logger.addHandler(users)
    try:
        for name in ("root", "users"):
            assert replayed(a_record(name=name)).name == name
    finally:
        for logger in (logging.getLogger(), logging.getLogger("users")):
            logger.removeHandler(users)
    assert users.records == []


def test_a_logger_that_wants_less_drops_the_record():
    keeper = Keeper()
    PIPELINE.addHandler(keeper)
    ENGINE.setLevel(logging.ERROR)
    replay(a_record())
    replay(a_record(level=logging.ERROR))
    assert [record.levelname for record in keeper.records] == ["ERROR"]


def test_the_line_in_the_file_names_the_process_and_the_trace_follows(tmp_path):
    with logs_in(tmp_path):
        replay(a_record(trace="Traceback ...\nValueError: broken"))
        ENGINE.warning("own")
    for name in ("pipeline.log", "pipeline.log.wf"):
        lines = (tmp_path / name).read_text().splitlines()
        assert re.fullmatch(
            rf"WARNING 2023-11-1\d \d\d:\d\d:20,250 \[child\.py:17\] \[pid {FOREIGN}\] hello",
            lines[0],
        )
        assert lines[1:3] == ["  Traceback ...", "  ValueError: broken"]
        assert lines[3].endswith("] own")
        assert "pid" not in lines[3]


def test_a_record_that_is_sent_on_keeps_its_process():
    sent = sent_home()
    replay(a_record(trace="Traceback"))
    assert sent == [a_record(trace="Traceback")]


def test_extra_fields_are_added_to_json_and_do_not_replace_ours() -> None:
    record = logging.LogRecord("a", logging.INFO, "f.py", 1, "[gateway] {...}", None, None)
    setattr(record, FIELDS, {"message": "request", "caller": "alice", "level": "no", "pid": -1})
    document = json.loads(JsonFormatter().format(record))
    assert (document["message"], document["caller"]) == ("request", "alice")
    assert (document["level"], document["pid"]) == ("INFO", record.process)
    assert "[gateway] {...}" in LineFormatter().format(record)
