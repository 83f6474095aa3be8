"""The drop-in, installed for one test and gone afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest

from pipeline.dropin import import_hook as finder


def _imported() -> set[str]:
    return {name for name in sys.modules if name.partition(".")[0] in finder.ROOTS}


@pytest.fixture
def clean_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Import hooks, imported packages of the predecessor and numpy's names are as before."""
    names = dict(vars(np))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    assert not _imported()
    yield
    for name in _imported():
        del sys.modules[name]
    for name in set(vars(np)) - set(names):
        if not isinstance(vars(np)[name], ModuleType):  # numpy loads some of its own when needed
            delattr(np, name)
    np.fromstring = names["fromstring"]


@pytest.fixture
def installed(clean_imports: None) -> None:
    finder.install()
