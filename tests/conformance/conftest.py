"""Fixtures for tests that ask servers, and gateways before them, which a file has in common."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conformance_server import Holder
from served import nothing_more


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """As in conftest.py above, but for threads: a worker that is over its limit may stay stuck."""
    with nothing_more():
        yield


@pytest.fixture(scope="module")
def holder() -> Holder:
    return Holder()
