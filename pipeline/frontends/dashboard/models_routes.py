"""ModelsDashboard: `GET /` of a server of a repository shows its models, and has them loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from pipeline.frontends.dashboard.routes import LivePage, version
from pipeline.frontends.dashboard.status import counters_of
from pipeline.frontends.http.hosts import Hosts
from pipeline.frontends.v2.control import IndexedModel, RepositoryControl
from pipeline.observe.snapshot import AskAll, ModelCounters, Snapshot

_READY = "READY"


class ModelsDashboard(LivePage):
    """Routes `/`, the files of the page and `/models.json`.

    The page loads and unloads models by the paths of the v2 protocol. `control` has the models.
    """

    def __init__(self, control: RepositoryControl, whole: AskAll, hosts: Hosts) -> None:
        super().__init__("models.html", "/models.json", whole, hosts)
        self._control = control

    async def _made(self, time_ms: int) -> dict[str, Any]:
        control = self._control
        index, snapshots = await asyncio.gather(control.index(), self._whole())
        return {
            "name": control.server_name,
            "version": version(),
            "time_ms": time_ms,
            "is_ready": control.is_ready,
            "loads": control.is_explicit,
            "models": models_of(index, snapshots),
        }


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
    mine = (counters for counters in snapshot.models if counters.name == snapshot.model)
    is_whole = len(ops) > 1 or any(op.workers.kind == "model" for op in ops)
    shown = ("kind", "wanted", "up", "busy")
    return {
        "counters": counters_of(next(mine, ModelCounters(""))),
        "queued": sum(op.queued + op.joining for op in ops),
        "running": snapshot.engine.inside,
        "workers": None if is_whole else {name: getattr(ops[0].workers, name) for name in shown},
    }
