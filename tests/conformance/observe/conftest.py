"""Fixtures for tests of servers that are looked into."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from counting_server import CountingServer


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., CountingServer]]:
    """Starts a server of a test's own: `serve(**config)`."""
    with contextlib.ExitStack() as stack:

        def start(**config: Any) -> CountingServer:
            served = CountingServer(tmp_path, **config)
            stack.callback(served.close)
            return served.wait_until_ready()

        yield start
