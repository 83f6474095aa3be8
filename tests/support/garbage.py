"""Garbage collections that do not look at everything that was ever imported."""

from __future__ import annotations

import gc


def collect() -> None:
    """Collect all garbage; what is left is out of the collector's sight from now on.

    A collection of all that the tests have imported takes 0.1 s, and tests ask for hundreds. A
    server that ends brings everything back into sight (`gc_frozen`).
    """
    gc.collect()
    if not gc.get_freeze_count():
        gc.freeze()
