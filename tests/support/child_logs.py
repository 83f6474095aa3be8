"""This process in the place of a child, whose log records go to its parent."""

from __future__ import annotations

import contextlib
import logging

from pipeline.observe.logs.remote import keep_logs

PIPELINE = logging.getLogger("pipeline")
ENGINE = logging.getLogger("pipeline.engine")


@contextlib.contextmanager
def loggers_as_before():
    loggers = [PIPELINE, ENGINE]
    before = [(one.handlers, one.level, one.propagate) for one in loggers]
    for one in loggers:
        one.handlers = list(one.handlers)
    try:
        yield
    finally:
        for one, (handlers, level, propagate) in zip(loggers, before, strict=True):
            one.handlers, one.propagate = handlers, propagate
            one.setLevel(level)


def sent_home(level=logging.INFO):
    """This process plays the child from now on: the list has what it sends home."""
    records = []
    keep_logs(level, records.append)
    return records
