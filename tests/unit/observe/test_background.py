"""The thread that writes what the event loop must not."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator

import pytest

from pipeline.observe.background import Background


@pytest.fixture
def background() -> Iterator[Background]:
    background = Background("test", limit=2)
    background.start()
    yield background
    background.close()


def test_jobs_are_done_in_order_before_it_is_closed(background: Background):
    done: list[int] = []
    background.submit(lambda: done.append(1))
    background.submit(lambda: done.append(2))
    background.close()
    background.close()
    assert done == [1, 2]


def test_a_job_that_fails_is_logged_and_the_next_one_is_done(
    background: Background, caplog: pytest.LogCaptureFixture
):
    done: list[int] = []
    background.submit(lambda: done.append(1 // 0))
    background.submit(lambda: done.append(2))
    background.close()
    assert done == [2]
    assert "test failed to write a piece" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_a_job_that_is_done_is_not_kept(background: Background):
    class Job:
        def __call__(self) -> None:
            """Do nothing."""

    job, gone = Job(), threading.Event()
    weakref.finalize(job, gone.set)
    background.submit(job)
    del job
    assert gone.wait(60)


def test_excess_jobs_are_dropped_and_counted(
    background: Background, caplog: pytest.LogCaptureFixture
):
    begun, go_on, done = threading.Event(), threading.Event(), list[int]()

    def block() -> None:
        begun.set()
        go_on.wait()

    background.submit(block)
    begun.wait()
    taken = [background.submit(lambda n=n: done.append(n)) for n in range(5)]
    assert taken == [True, True, False, False, False]
    last = threading.Event()
    background.submit(last.set)  # refused as well
    go_on.set()
    while not background.submit(last.set):
        last.wait(0.01)
    background.close()
    assert done == [0, 1]
    (record,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "test could not keep up" in record.getMessage()


def test_no_job_is_accepted_before_the_start_and_after_the_end():
    background = Background("test")
    assert not background.submit(lambda: None)
    background.close()
    background.start()
    background.close()
    assert not background.submit(lambda: None)
