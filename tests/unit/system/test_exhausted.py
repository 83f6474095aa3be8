"""A start that fails for lack of memory or threads says so."""

from __future__ import annotations

import pytest

from pipeline.errors import InitError
from pipeline.system.resources import exhaustion_named


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "no memory is left for this process. Raise its limit .ulimit -v"),
        (RuntimeError("can't start new thread"), "starts no more threads .*ulimit -v, ulimit -u"),
    ],
)
def test_the_missing_resource_is_named(error, said):
    with pytest.raises(InitError, match=said), exhaustion_named():
        raise error


def test_another_error_is_unchanged():
    with pytest.raises(RuntimeError, match="another one"), exhaustion_named():
        raise RuntimeError("another one")
