"""Clones of a zygote that import something: what they say, and who is known as one."""

from __future__ import annotations

import errno
import os

import pytest

from pipeline.workers.zygote import main, runtimes


class Ended(Exception):
    """Instead of the end of a process."""


@pytest.mark.parametrize("step", ["_threads", "_open_files"])
def test_a_clone_that_has_no_file_left_ends(monkeypatch, step):
    def fail():
        raise OSError(errno.EMFILE, "no file is left")

    def end(code):
        raise Ended(code)

    monkeypatch.setattr(runtimes, step, fail)
    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(Ended, match="1"):
        runtimes.fork_with(["nobody:here"], fork=lambda: 0)  # as in the child


def test_a_gpu_that_is_open_before_the_fork_is_reported(monkeypatch):
    monkeypatch.setattr(runtimes, "_open_files", lambda: ["/dev/nvidia0"])
    assert runtimes._imported([]) == "a card is open"


@pytest.fixture
def zygote():
    """A zygote that runs in this process."""
    made = object.__new__(main._Zygote)
    made._children, made._clones = {}, set()
    return made


@pytest.mark.parametrize(("reason", "known"), [("", {7}), ("it starts threads (1)", set())])
def test_an_ended_clone_is_removed(zygote, monkeypatch, reason, known):
    monkeypatch.setattr(main, "fork_with", lambda places, fork: (7, reason))
    assert zygote._fork_clone(None, ("nobody:here",)) == reason
    assert zygote._clones == known
    monkeypatch.setattr(os, "waitpid", lambda pid, options: (7, 0))
    assert zygote._reap(os.WNOHANG)
    assert zygote._clones == set()
