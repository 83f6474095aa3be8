"""Garbage collections that do not look at all that was ever imported, and forks without any."""

from __future__ import annotations

import gc
import os

_WITNESS: list[object] = []  # as old as all that is frozen


def collect() -> None:
    """Collect all garbage; what is left is out of the collector's sight from now on.

    A collection of all that the tests have imported takes 0.1 s, and tests ask for hundreds. A
    server that ends brings everything back into sight (`gc_frozen`).
    """
    gc.collect()
    # To count what is frozen would take 0.1 s as well.
    if any(each is _WITNESS for each in gc.get_objects(generation=2)):
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
