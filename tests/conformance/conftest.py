"""Fixtures for tests that ask servers, and gateways before them, which a file has in common."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conformance_server import Holder
from served import no_leftovers


@pytest.fixture(autouse=True)
def no_resources_left() -> Iterator[None]:
    """As in conftest.py above, but for threads: a worker that is over its limit may stay stuck."""
    with no_leftovers():
        yield


@pytest.fixture(scope="module")
def holder() -> Holder:
    return Holder()
