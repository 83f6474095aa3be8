"""What an import of Paddle does to a process is undone."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import threading
import warnings

import pytest

from pipeline.predictors.paddle.predictor import preserve_process_state


@pytest.fixture
def sigterms():
    collected = []
    before = signal.signal(signal.SIGTERM, lambda *_: collected.append(True))
    yield collected
    signal.signal(signal.SIGTERM, before)


def take_signals():
    """As C++ does it, past Python's own table."""
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal(int(signal.SIGTERM), signal.SIG_IGN.value)


def test_handlers_of_signals_are_put_back(sigterms):
    with preserve_process_state():
        take_signals()
    os.kill(os.getpid(), signal.SIGTERM)
    assert sigterms == [True]
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_signal_during_the_import_is_not_lost(sigterms):
    with preserve_process_state():
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        assert sigterms == []
    assert sigterms == [True]


def test_the_root_logger_is_put_back_also_after_a_failure():
    before = list(logging.root.handlers), logging.root.level
    with contextlib.suppress(ImportError), preserve_process_state():
        logging.root.addHandler(logging.NullHandler())
        logging.root.setLevel(logging.CRITICAL)
        raise ImportError
    assert (list(logging.root.handlers), logging.root.level) == before


def test_warnings_are_not_shown_and_are_errors_again_afterwards():
    with preserve_process_state():
        warnings.warn("No ccache found", stacklevel=1)
    with pytest.raises(UserWarning):
        warnings.warn("mine", stacklevel=1)
