"""Workers of a plug-in have what the engine asks for, though their class is foreign."""

from __future__ import annotations

from typing import Any

from pipeline.engine.worker_api import WorkersBase
from pipeline.runtime.loaded_graph import _completed


class Own:
    ahead = 3


def test_missing_members_of_workers_come_from_the_base():
    made: Any = Own()
    workers = _completed(made)
    assert workers is made
    assert workers.ahead == 3
    base = WorkersBase()
    missing = [name for name in dir(base) if not hasattr(workers, name)]
    assert [name for name in missing if not name.startswith("_")] == []
    assert (workers.visit_type, workers.convoy_size(1)) == (base.visit_type, 0)
