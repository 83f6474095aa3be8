"""Garbage collections that skip the imported modules, and forks without collections."""

from __future__ import annotations

import gc
import os

_MANY = 50_000


def collect() -> None:
    """Collect all garbage; hide the objects that are left from the collector if they are many.

    A collection of everything imported takes up to 0.5 s, and tests ask for hundreds of them.
    The next call hides what tests import later.
    """
    gc.collect()
    if len(gc.get_objects(generation=2)) > _MANY:
        gc.freeze()


def fork() -> int:
    """Return what os.fork does; the child collects no garbage.

    What earlier tests have left may wait for threads that a child does not have, as servers and
    channels of gRPC do when they are collected: a child that does so hangs.
    """
    gc.disable()
    pid = os.fork()
    if pid:
        gc.enable()
    return pid
