"""The drop-in, installed for one test and gone afterwards, and its client."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from pipeline.config import sections
from pipeline.dropin import import_hook as finder
from pipeline.dropin.client import HttpClient
from pipeline.observe.logs import remote


def _imported() -> set[str]:
    return {name for name in sys.modules if name.partition(".")[0] in finder.ROOTS}


@pytest.fixture
def clean_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Import hooks, imported packages of the predecessor, numpy's names, the host that servers
    listen on and the lines that they log are as before."""
    names = dict(vars(np))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sections, "_hosts", [sections.LOOPBACK])
    monkeypatch.setattr(remote.RootLines, "is_wanted", False)
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


CONF = """
feed_var { name: "words.tmp_0" alias_name: "words" is_lod_tensor: true feed_type: 0 shape: -1 }
fetch_var { name: "fc_2" alias_name: "prediction" fetch_type: 1 shape: 2 }
"""


@pytest.fixture
def client_conf(tmp_path: Path) -> Path:
    """The description of a model that clients read."""
    path = tmp_path / "serving_client_conf.prototxt"
    path.write_text(CONF)
    return path


@pytest.fixture
def http_client(client_conf: Path) -> Iterator[HttpClient]:
    """A client that has read it."""
    client = HttpClient()
    client.load_client_config(str(client_conf))
    yield client
    client.release()
