"""Overview of a fleet over HTTP: a page, its state, the metrics of all replicas together."""

from __future__ import annotations

import html
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from pipeline.cluster.fleet import FleetView
from pipeline.cluster.node_server import DIRECT
from pipeline.cluster.plan import FleetReplica
from pipeline.observe.metrics import Given

_FETCH_TIMEOUT_S = 2.0
_MAX_BYTES = 32 * 2**20
_MAX_FETCHES = 16

Fetched = tuple[FleetReplica, str | None]


class Overview:
    """A small HTTP server, for people and Prometheus: `/`, `/status.json`, `/metrics`, `/targets`.

    Args:
        view: returns how the fleet stands; called in any thread. None: not known yet.
    """

    def __init__(self, host: str, port: int, view: Callable[[], FleetView | None]) -> None:
        self._view = view
        overview = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                overview.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="overview")

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        view, path = self._view(), request.path.partition("?")[0]
        pages: dict[str, tuple[str, Callable[[FleetView], bytes]]] = {
            "/": ("text/html; charset=utf-8", page),
            "/status.json": ("application/json", msgspec.json.encode),
            "/targets": ("application/json", targets),
            "/metrics": ("text/plain; version=0.0.4; charset=utf-8", metrics),
        }
        if path not in pages:
            request.send_error(404)
        elif view is None:
            request.send_error(503, "the fleet was not asked yet")
        else:
            kind, make = pages[path]
            body = make(view)
            request.send_response(200)
            request.send_header("Content-Type", kind)
            request.send_header("Content-Length", str(len(body)))
            request.end_headers()
            request.wfile.write(body)


def targets(view: FleetView) -> bytes:
    """Return what Prometheus' http_sd_configs reads: one target a replica."""
    groups = [
        {
            "targets": [_http_address(address)],
            "labels": {"fleet": view.name, "replica": str(address.number), "node": address.node},
        }
        for address in _reachable(view)
    ]
    return json.dumps(groups).encode()


def metrics(view: FleetView) -> bytes:
    """Return the metrics of all replicas, each series with the label `replica`.

    A replica that does not answer in time is left out; `pipeline_fleet_replicas` has the number of
    all.
    """
    families: dict[str, Metric] = {"pipeline_fleet_replicas": _counts(view)}
    for replica, text in _fetch_all(_reachable(view), "/metrics"):
        if text is None:
            continue
        for family in text_string_to_metric_families(text):
            known = families.setdefault(
                family.name, Metric(family.name, family.documentation, family.type)
            )
            for sample in family.samples:
                labels = {**sample.labels, "replica": str(replica.number)}
                known.add_sample(sample.name, labels, sample.value)
    return generate_latest(Given(families.values()))


def page(view: FleetView) -> bytes:
    """Return a page with a row for each replica."""
    rows = []
    for shown in sorted(view.replicas, key=lambda replica: replica.number):
        place = html.escape(shown.address)
        if shown.is_listed and shown.address:
            place = f'<a href="http://{html.escape(_http_address(shown))}/">{place}</a>'
        cells = (shown.number, shown.release, shown.phase.value, html.escape(shown.node))
        row = "".join(f"<td>{cell}</td>" for cell in cells)
        rows.append(
            f"<tr>{row}<td>{place}</td><td><pre>{html.escape(shown.detail)}</pre></td></tr>"
        )
    return _PAGE.format(
        name=html.escape(view.name), state=html.escape(summary(view)), rows="\n".join(rows)
    ).encode()


def summary(view: FleetView) -> str:
    """Return one line on how a fleet stands."""
    ready = sum(replica.is_listed for replica in view.replicas)
    text = f"release {view.wanted.release}: {ready} of {view.wanted.replicas} replicas serve"
    reason = view.reason.rpartition("\n")[2]
    if view.is_stuck:
        text += f"; it fails, the one before stays: {reason}"
    elif not view.is_reached:
        text += f"; changing{f' (last failure: {reason})' if reason else ''}"
    return text


def _counts(view: FleetView) -> Metric:
    family = Metric("pipeline_fleet_replicas", "Replicas of the fleet, by phase.", "gauge")
    for phase in sorted({replica.phase.value for replica in view.replicas}):
        count = sum(replica.phase.value == phase for replica in view.replicas)
        family.add_sample(family.name, {"fleet": view.name, "phase": phase}, count)
    return family


def _reachable(view: FleetView) -> list[FleetReplica]:
    return [replica for replica in view.replicas if replica.is_listed and replica.address]


def _http_address(replica: FleetReplica) -> str:
    """Return `host:http_port` of an address `host:rpc_port/http_port`."""
    where, _, http_port = replica.address.partition("/")
    return f"{where.rpartition(':')[0]}:{http_port}"


def _fetch_all(replicas: list[FleetReplica], path: str) -> list[Fetched]:
    if not replicas:
        return []
    with ThreadPoolExecutor(min(_MAX_FETCHES, len(replicas))) as pool:
        texts = pool.map(lambda replica: _fetch(f"http://{_http_address(replica)}{path}"), replicas)
        return list(zip(replicas, texts, strict=True))


def _fetch(url: str) -> str | None:
    try:
        with DIRECT.open(url, timeout=_FETCH_TIMEOUT_S) as answer:
            return str(answer.read(_MAX_BYTES).decode())
    except (OSError, UnicodeDecodeError):
        return None


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{name}</title>
<meta http-equiv="refresh" content="2">
<style>
body {{ font: 15px system-ui, sans-serif; margin: 2rem; }}
table {{ border-collapse: collapse; }}
td, th {{ padding: .3rem .8rem; border-bottom: 1px solid #ddd; text-align: left; }}
pre {{ margin: 0; white-space: pre-wrap; }}
</style></head><body><h1>{name}</h1><p>{state}</p>
<table><tr><th>replica</th><th>release</th><th>phase</th><th>node</th><th>address</th><th></th></tr>
{rows}
</table></body></html>
"""
