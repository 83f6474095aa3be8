"""The body of `GET /models.json`: the models of a repository, how they stand and what they do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pipeline.frontends.dashboard.status import counters_of
from pipeline.frontends.v2.control import IndexedModel
from pipeline.observe.snapshot import ModelCounters, Snapshot

_READY = "READY"


def models_of(index: Iterable[IndexedModel], snapshots: Sequence[Snapshot]) -> list[dict[str, Any]]:
    """Return each version of each model, in the order of the index.

    What is not ready has no figures.
    """
    found = {(snapshot.model, snapshot.version): snapshot for snapshot in snapshots}
    return [
        {
            "name": each.name,
            "version": each.version,
            "state": each.state,
            "reason": each.reason,
            "figures": _figures(found.get((each.name, each.version)))
            if each.state == _READY
            else None,
        }
        for each in index
    ]


def _figures(snapshot: Snapshot | None) -> dict[str, Any] | None:
    if snapshot is None:
        return None
    ops = snapshot.engine.ops
    own = next(
        (counters for counters in snapshot.models if counters.name == snapshot.model),
        ModelCounters(""),
    )
    is_whole = len(ops) > 1 or any(op.workers.kind == "model" for op in ops)
    workers = [op.workers for op in ops]
    return {
        "counters": counters_of(own),
        "queued": sum(op.queued + op.joining for op in ops),
        "running": snapshot.engine.inside,
        "workers": None
        if is_whole
        else {
            "kind": workers[0].kind,
            "wanted": workers[0].wanted,
            "up": workers[0].up,
            "busy": workers[0].busy,
        },
    }
