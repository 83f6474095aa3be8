"""Garbage collections that do not look at all that was ever imported, and forks without any."""

from __future__ import annotations

import gc
import os

_MANY = 50_000


def collect() -> None:
    """Collect all garbage; what is left is out of the collector's sight if it is much.

    A collection of all that the tests have imported takes up to 0.5 s, and tests ask for hundreds.
    What tests import later on is much again, and goes out of sight with the next call.
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
