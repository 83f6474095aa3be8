"""ModelsDashboard: `GET /` of a server of a repository shows its models, and has them loaded."""

from __future__ import annotations

import asyncio
import functools
import importlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from pipeline.frontends.dashboard.routes import ALWAYS_NEW, file_at, page_files
from pipeline.frontends.dashboard.status import counters_of
from pipeline.frontends.http.hosts import Hosts
from pipeline.frontends.http.routes import Endpoint, WebRequest, WebResponse, WebStream, not_allowed
from pipeline.frontends.v2.control import IndexedModel, RepositoryControl
from pipeline.observe.snapshot import AskAll, ModelCounters, Snapshot

_CACHE_S = 0.4  # pages that are open at the same time share a status: they ask once a second
_PAGE = "models.html"
_READY = "READY"


class ModelsDashboard:
    """Routes `/`, the files of the page and `/models.json`.

    The page loads and unloads models by the paths of the v2 protocol.

    Args:
        control: has the models.
        whole: asks all models for their snapshots.
        hosts: the names that the server goes by: pages elsewhere must not look on.
        clock: `time.monotonic`.
    """

    def __init__(
        self,
        control: RepositoryControl,
        whole: AskAll,
        hosts: Hosts | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._control = control
        self._whole = whole
        self._hosts = hosts or Hosts()
        self._clock = clock
        self._body = b""
        self._from_s = float("-inf")
        self._asking = asyncio.Lock()

    def endpoint(self, request: WebRequest) -> Endpoint | None:
        """Return the endpoint of a path; None for paths of others."""
        if request.path == "/models.json":
            found: Endpoint = self._models
        elif request.path in page_files(_PAGE):
            found = functools.partial(file_at, _PAGE)
        else:
            return None
        if request.method not in ("GET", "HEAD"):
            raise not_allowed(request.method, b"GET, HEAD")
        return functools.partial(self._for_own_pages, found)

    async def _for_own_pages(self, found: Endpoint, request: WebRequest) -> WebResponse | WebStream:
        await self._hosts.check(request.headers)
        return await found(request)

    async def _models(self, request: WebRequest) -> WebResponse:
        async with self._asking:
            if self._clock() - self._from_s > _CACHE_S:
                control = self._control
                index, snapshots = await asyncio.gather(control.index(), self._whole())
                status = {
                    "name": control.server_name,
                    "version": importlib.import_module(__name__.partition(".")[0]).__version__,
                    "time_ms": time.time_ns() // 10**6,
                    "is_ready": control.is_ready,
                    "loads": control.is_explicit,
                    "models": models_of(index, snapshots),
                }
                self._body = msgspec.json.encode(status)
                self._from_s = self._clock()
        return WebResponse(body=self._body, headers=ALWAYS_NEW)


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
