"""Load tests of our own services beside bare baselines, in one run (`make bench`)."""

from __future__ import annotations


class NotMeasuredError(Exception):
    """A service did not start, died or answered wrong, or a load generator failed."""
