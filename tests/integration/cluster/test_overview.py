"""The overview of a fleet, with replicas that the test plays."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from pipeline.cluster.fleet import FleetView
from pipeline.cluster.overview import Overview
from pipeline.cluster.plan import DesiredFleet, FleetReplica, ReplicaPhase

METRICS = """# HELP asked_total Requests.
# TYPE asked_total counter
asked_total{model="m"} 3
"""


class _Metrics(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(METRICS.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def replica_port() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), _Metrics)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def views() -> list[FleetView | None]:
    return [None]


@pytest.fixture
def overview(views) -> Iterator[Overview]:
    made = Overview("127.0.0.1", 0, lambda: views[0])
    made.start()
    yield made
    made.close()


def view(port: int) -> FleetView:
    replicas = (
        FleetReplica(1, 1, ReplicaPhase.READY, address=f"127.0.0.1:1/{port}", node="a"),
        FleetReplica(2, 1, ReplicaPhase.READY, address=f"127.0.0.1:1/{port}", node="<b>"),
        FleetReplica(3, 1, ReplicaPhase.READY, address="127.0.0.1:1/1", node="gone"),
        FleetReplica(4, 1, ReplicaPhase.STARTING),
    )
    return FleetView("f", DesiredFleet(1, 4), False, False, "", replicas)


def get(overview: Overview, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{overview.port}{path}", timeout=10) as answer:
        return answer.read().decode()


def test_series_of_all_replicas_that_answer_have_their_numbers(overview, views, replica_port):
    views[0] = view(replica_port)
    lines = get(overview, "/metrics").splitlines()
    assert 'asked_total{model="m",replica="1"} 3.0' in lines
    assert 'asked_total{model="m",replica="2"} 3.0' in lines
    assert lines.count("# TYPE asked_total counter") == 1
    assert 'pipeline_fleet_replicas{fleet="f",phase="ready"} 3.0' in lines
    assert 'pipeline_fleet_replicas{fleet="f",phase="starting"} 1.0' in lines


def test_prometheus_finds_the_replicas(overview, views, replica_port):
    views[0] = view(replica_port)
    (first, *_) = json.loads(get(overview, "/targets"))
    assert first["targets"] == [f"127.0.0.1:{replica_port}"]
    assert first["labels"]["replica"] == "1"


def test_the_page_shows_all_and_trusts_no_name(overview, views, replica_port):
    views[0] = view(replica_port)
    page = get(overview, "/")
    assert page.count("<tr>") == 5
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert json.loads(get(overview, "/status.json"))["replicas"][3]["phase"] == "starting"


def test_before_the_first_view_the_overview_is_unavailable(overview):
    with pytest.raises(urllib.error.HTTPError, match="503"):
        get(overview, "/")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(overview, "/other")
