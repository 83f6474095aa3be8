"""Dashboard: `GET /` shows a running server, with its figures and a trace to download."""

from __future__ import annotations

import asyncio
import functools
import importlib
import time
import urllib.parse
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from pipeline.engine.graph import Graph
from pipeline.engine.models import ServedGraph
from pipeline.errors import NoServiceError, OverloadedError, PackageError
from pipeline.frontends.dashboard.layout import layout_of
from pipeline.frontends.dashboard.recent import read_recording
from pipeline.frontends.dashboard.status import Title, counters_of, status_of
from pipeline.frontends.http.hosts import Hosts
from pipeline.frontends.http.routes import (
    Endpoint,
    HttpError,
    Routes,
    WebReply,
    WebRequest,
    WebResponse,
    not_allowed,
)
from pipeline.frontends.http.static_files import files_in, safe_headers, unless_known
from pipeline.frontends.v2.control import IndexedModel, RepositoryControl
from pipeline.observe.analysis.chrome_trace import Event, events, trace_json
from pipeline.observe.snapshot import AskAll, ModelCounters, Snapshot

Record = Callable[[float], Awaitable[Sequence[bytes]]]

_DEFAULT_SECONDS, _MIN_SECONDS, _MAX_SECONDS = "3", 0.1, 30.0
_MAX_RECORDINGS = 2  # at a time; each may use about 300 MB while its trace is made
_CACHE_S = 0.4  # several open pages, which ask once a second, share a status
_STATIC = Path(__file__).with_name("static")
_SAFE = safe_headers()
ALWAYS_NEW = ((b"cache-control", b"no-store"), *_SAFE)


class LivePage(ABC):
    """Base of both pages: its files, and a status that is renewed at most every 0.4 s.

    Args:
        page: name of its file, at `/`.
        status_path: path of the status.
        whole: returns the snapshots of all replicas, or of all models.
        hosts: the names of the server: other sites' pages may not read it.
        clock: `time.monotonic`.
    """

    def __init__(
        self,
        page: str,
        status_path: str,
        whole: AskAll,
        hosts: Hosts | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._page = page
        self._whole = whole
        self._hosts = hosts or Hosts()
        self._clock = clock
        self._body = b""
        self._from_s = float("-inf")
        self._asking = asyncio.Lock()
        self._paths: dict[str, Endpoint] = {status_path: self._status}

    def endpoint(self, request: WebRequest) -> Endpoint | None:
        """Return the endpoint of a path; None for paths of others."""
        endpoint = self._paths.get(request.path)
        if endpoint is None and request.path in _page_files(self._page):
            endpoint = self._file
        if endpoint is None:
            return None
        if request.method not in ("GET", "HEAD"):
            raise not_allowed(request.method, b"GET, HEAD")
        return functools.partial(self._for_own_pages, endpoint)

    async def _for_own_pages(self, endpoint: Endpoint, request: WebRequest) -> WebReply:
        await self._hosts.check(request.headers)
        return await endpoint(request)

    async def _file(self, request: WebRequest) -> WebResponse:
        return unless_known(_page_files(self._page)[request.path], request)

    async def _status(self, request: WebRequest) -> WebResponse:
        async with self._asking:
            if self._clock() - self._from_s > _CACHE_S:
                self._body = msgspec.json.encode(await self._made(time.time_ns() // 10**6))
                self._from_s = self._clock()
        return WebResponse(body=self._body, headers=ALWAYS_NEW)

    @abstractmethod
    async def _made(self, time_ms: int) -> dict[str, Any]:
        """Return a new status."""


class Dashboard(LivePage):
    """Routes `/`, the files of the page, `/status.json` and `/trace.json?seconds=3`.

    Args:
        name: of the pipeline; None shows it as "pipeline".
        graph: to draw.
        record: records seconds of spans in all replicas, see `Recording.record`; None: there are no
            spans.
        names: of all pipelines of the server, if there are several.
    """

    def __init__(
        self,
        name: str | None,
        graph: Graph,
        whole: AskAll,
        record: Record | None = None,
        hosts: Hosts | None = None,
        clock: Callable[[], float] = time.monotonic,
        names: Sequence[str] = (),
    ) -> None:
        super().__init__("page.html", "/status.json", whole, hosts, clock)
        self._names = tuple(names)
        self._name = name or "pipeline"
        self._graph = graph
        self._op_names = [op.name for op in graph.ops]
        self._record = record
        self._recordings: set[asyncio.Future[tuple[bytes, bool]]] = set()
        self._paths["/trace.json"] = self._trace

    async def _made(self, time_ms: int) -> dict[str, Any]:
        return status_of(self._title, await self._whole(), time_ms)

    @functools.cached_property
    def _title(self) -> Title:
        can_record = self._record is not None
        return Title(self._name, version(), can_record, layout_of(self._graph), self._names)

    # Trace ------------------------------------------------------------------------------

    async def _trace(self, request: WebRequest) -> WebResponse:
        if self._record is None:
            off = NoServiceError("nothing is recorded here: set `statistics: True`")
            raise HttpError(404, off)
        seconds = _seconds(request.query)
        if request.method == "HEAD":
            return WebResponse(headers=ALWAYS_NEW)
        if len(self._recordings) >= _MAX_RECORDINGS:
            busy = OverloadedError(f"{_MAX_RECORDINGS} recordings are being made: try again later")
            raise HttpError(503, busy, (b"retry-after", b"%d" % (seconds + 1)))
        # It counts until its end, also if the client leaves: the other replicas continue it.
        recording = asyncio.ensure_future(self._recorded(self._record(seconds)))
        self._recordings.add(recording)
        recording.add_done_callback(self._recordings.discard)
        body, is_cut = await asyncio.shield(recording)
        name = b'attachment; filename="pipeline_trace.json"'
        cut = ((b"x-trace-cut", b"true"),) if is_cut else ()
        headers = ((b"content-disposition", name), *cut, *ALWAYS_NEW)
        return WebResponse(body=body, headers=headers)

    async def _recorded(self, recordings: Awaitable[Sequence[bytes]]) -> tuple[bytes, bool]:
        return await asyncio.to_thread(_to_trace, await recordings, self._op_names)


class Dashboards:
    """Routes of the pages of several pipelines: `?pipeline=embed` selects one; default: the first.

    Args:
        pages: by pipeline name.
    """

    def __init__(self, pages: Mapping[str, Dashboard]) -> None:
        self._pages = pages

    def endpoint(self, request: WebRequest) -> Endpoint | None:
        """Return the endpoint of a path; None for paths of others."""
        first = next(iter(self._pages))
        if self._pages[first].endpoint(request) is None:
            return None
        name = urllib.parse.parse_qs(request.query).get("pipeline", [first])[-1]
        if name not in self._pages:
            there = ", ".join(self._pages)
            raise HttpError(404, NoServiceError(f"there is no pipeline {name!r} here: {there}"))
        return self._pages[name].endpoint(request)


def dashboards(graphs: Sequence[ServedGraph], records: bool, hosts: Hosts) -> Routes:
    """Return the page of a server's pipelines; `records`: there are spans to record."""
    names = [str(graph.names[0]) for graph in graphs]
    shown = names if len(names) > 1 else ()
    pages = {
        name: Dashboard(
            *(name, graph.graph, graph.snapshots),
            record=graph.record if records else None,
            hosts=hosts,
            names=shown,
        )
        for name, graph in zip(names, graphs, strict=True)
    }
    return Dashboards(pages) if shown else pages[names[0]]


def _to_trace(recordings: Sequence[bytes], names: Sequence[str]) -> tuple[bytes, bool]:
    """Return the file for trace viewers, and whether rows were left out."""
    trace_events: list[Event] = []
    is_cut = False
    for packed in recordings:
        recorded = read_recording(packed)
        replica = recorded.replica if len(recordings) > 1 else None
        trace_events += events(recorded.spans, recorded.requests, names, replica)
        is_cut |= recorded.is_cut
    return trace_json(trace_events), is_cut


def _seconds(query: str) -> float:
    """Return `seconds` of the query."""
    text = urllib.parse.parse_qs(query, keep_blank_values=True).get("seconds", [_DEFAULT_SECONDS])[
        -1
    ]
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not _MIN_SECONDS <= seconds <= _MAX_SECONDS:
        allowed = f"from {_MIN_SECONDS:g} to {_MAX_SECONDS:g}"
        raise HttpError(400, PackageError(f"seconds={text[:40]!r}: send a number {allowed}"))
    return seconds


# Files ----------------------------------------------------------------------------------------


@functools.cache
def _page_files(page: str) -> dict[str, WebResponse]:
    """Return the files by path, and `page` at `/`. They are read once, at the first request."""
    files = {f"/{name}": file for name, file in files_in(_STATIC, _SAFE).items()}
    files["/"] = files[f"/{page}"]
    return {path: file for path, file in files.items() if not path.endswith(".html")}


def version() -> str:
    """Return the library's version."""
    version: str = importlib.import_module(__name__.partition(".")[0]).__version__
    return version


# The page of a server of a repository -----------------------------------------------------------


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

    A server that is not ready has no figures.
    """
    by_model = {(snapshot.model, snapshot.version): snapshot for snapshot in snapshots}
    return [
        {
            "name": entry.name,
            "version": entry.version,
            "state": entry.state,
            "reason": entry.reason,
            "figures": _figures(by_model.get((entry.name, entry.version)))
            if entry.state == _READY
            else None,
        }
        for entry in index
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
