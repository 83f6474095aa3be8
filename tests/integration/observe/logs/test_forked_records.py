"""Log records of forked processes."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable

import msgspec
import pytest
from child_logs import loggers_as_before, sent_home
from doubles import logs_in
from garbage import fork

from pipeline.observe.logs.remote import SentRecord, replay

PIPELINE = logging.getLogger("pipeline")


ENGINE = logging.getLogger("pipeline.engine")


@pytest.fixture(autouse=True)
def _as_before():
    with loggers_as_before():
        yield


def in_child(work: Callable[[], str]) -> str:
    """What `work` returns in a forked process."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork: what is tested
        pid = fork()
    if not pid:
        _answer_and_end(work, writing)
    os.close(writing)
    try:
        with open(reading, encoding="utf-8") as pipe:
            answer = pipe.read()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return answer


def _answer_and_end(work, writing):
    try:
        answer = work()
    except BaseException:
        answer = traceback.format_exc()
    os.write(writing, answer.encode())
    os.close(writing)
    os._exit(0)


def test_a_process_forked_from_the_child_writes_to_stderr_instead():
    sent = sent_home()

    def work():
        sys.stderr = io.StringIO()
        ENGINE.info("detail")
        ENGINE.warning("from a grandchild")
        return repr([sys.stderr.getvalue(), sent])

    assert in_child(work) == repr(["from a grandchild\n", []])


def test_records_of_a_forked_process_are_written_by_the_parent(tmp_path):
    def work():
        sent = sent_home()
        ENGINE.info("in process %d", os.getpid())
        return msgspec.json.encode(sent).decode()

    with logs_in(tmp_path):
        for record in msgspec.json.decode(in_child(work), type=list[SentRecord]):
            replay(record)
    text = (tmp_path / "pipeline.log").read_text()
    match = re.fullmatch(
        r"INFO .* \[test_forked_records\.py:\d+\] \[pid (\d+)\] in process (\d+)\n", text
    )
    assert match.group(1) == match.group(2) != str(os.getpid())


def test_a_forked_process_has_no_session_of_its_parent(tmp_path):
    def work():
        left = [type(handler).__name__ for handler in PIPELINE.handlers]
        return repr((left, PIPELINE.level, PIPELINE.propagate))

    before = repr(([], PIPELINE.level, PIPELINE.propagate))
    with logs_in(tmp_path, "ERROR"):
        assert in_child(work) == before


def test_a_forked_process_may_write_its_own_logs_in_the_same_folder(tmp_path):
    def work():
        with logs_in(tmp_path):
            ENGINE.info("of the child")
        return (tmp_path / "pipeline.log").read_text()

    with logs_in(tmp_path):
        assert in_child(work).endswith("] of the child\n")


def test_a_fork_does_not_wait_for_the_lock_of_sessions(tmp_path, monkeypatch):
    from pipeline.observe.logs import setup as logs

    def work():
        session.close()
        with logs_in(tmp_path / "child"):
            ENGINE.info("line")
        return (tmp_path / "child" / "pipeline.log").read_text()

    with logs_in(tmp_path) as session, logs._OPEN._lock:
        answer = in_child(work)
    assert answer.endswith("] line\n")


def test_a_forked_process_holds_no_file_of_its_parent_open(tmp_path):
    def work():
        files = []
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # the list's own
                files.append(os.readlink(f"/proc/self/fd/{number}"))
        return "\n".join(file for file in files if "pipeline.log" in file)

    with logs_in(tmp_path):
        assert in_child(work) == ""


def test_a_fork_amidst_a_line_writes_it_once(tmp_path):
    """The writer's buffer is full of what it has not written yet when the fork comes."""
    from pipeline.observe.logs.sinks import FileSink

    sink = FileSink(tmp_path, 0, 0)
    sink.open()
    try:
        stream = sink._targets[0].stream
        stream.write("half a line")

        def work():
            sink.abandon()
            logging.shutdown()
            stream.flush()
            return (tmp_path / "pipeline.log").read_text()

        assert in_child(work) == ""
    finally:
        sink.close()
    assert (tmp_path / "pipeline.log").read_text() == "half a line"
