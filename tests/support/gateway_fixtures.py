"""The gateway's binary, for the tests that run it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.gateway.build import BuildError, build, find_go


@pytest.fixture(scope="session")
def gateway_binary() -> Iterator[Path]:
    """The binary of the present Go code, which servers of the tests also run."""
    try:
        find_go()
    except BuildError as error:
        if "CI" in os.environ:
            raise
        pytest.skip(str(error))
    binary = build()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIPELINE_GATEWAY_BINARY", str(binary))
        yield binary
