"""Counters of a server in several processes: one sum, which does not go back when one dies."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
from counting_server import OPS, CountingServer
from raw_http import Connection, request
from served import PATIENCE_S, free_port
from server_counts import Samples, check_form, fetched, metrics, model, over_grpc, over_http, total

from pipeline.observe.paddle.profile import read_profile

ALL = ("svc", *OPS)


@contextlib.contextmanager
def two_copies(folder: Path, **config: Any) -> Iterator[CountingServer]:
    served = CountingServer(folder, build_dag_each_worker=True, worker_num=2, **config)
    try:
        yield served.wait_until_ready()
    finally:
        served.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[CountingServer]:
    with two_copies(tmp_path) as served:
        yield served


def ask_often(served: CountingServer, count: int) -> None:
    """`count` requests, each on a connection of its own: the copies share them."""
    for number in range(count):
        with served.post({"x": str(number)}) as connection:
            assert connection.answer().json["err_no"] == 0


def copies_in(samples: Samples) -> set[str]:
    return {dict(labels)["copy"] for name, labels in samples if name == "pipeline_ready"}


def check_each_copy(samples: Samples) -> None:
    """Each copy answers for its own requests."""
    for copy in copies_in(samples):
        accepted = total(samples, "pipeline_requests_accepted", copy=copy)
        answered = total(samples, "nv_inference_request_success", copy=copy, model="svc")
        answered += total(samples, "nv_inference_request_failure", copy=copy, model="svc")
        assert accepted == answered + total(samples, "pipeline_requests", copy=copy)


def successes(found: list[Mapping[str, Any]]) -> dict[str, int]:
    for item in found:
        check_form(item)
    return {entry["name"]: entry["inference_stats"]["success"]["count"] for entry in found}


def test_replicas_are_summed_for_each_query(served):
    with served.moves() as moved:
        ask_often(served, 40)
        for _ in range(5):
            assert served.ask({"worked.preprocess": "code 51"}).err_no
    assert moved["svc"] == model(40, *[1] * 40, PRODUCT=5)
    assert moved["worked"] == model(40, *[1] * 40, PRODUCT=5)
    samples = metrics(served.http_port)
    assert copies_in(samples) == {"0", "1"}
    check_each_copy(samples)
    shares = [
        total(samples, "nv_inference_request_success", copy=copy, model="svc") for copy in "01"
    ]
    assert sum(shares) == 40
    assert all(shares), "connections are shared out"


def test_counts_of_a_killed_replica_remain(served):
    ask_often(served, 20)
    with served.held("slow.preprocess") as held:
        ((victim, call),) = held.items()
        shown = successes(over_http(served.http_port))
        assert shown == {**dict.fromkeys(ALL, 20), **dict.fromkeys(OPS[:3], 21)}
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(grpc.RpcError):
            call.result(PATIENCE_S)
        served.wait_for(lambda: f"(pid {victim}) was killed by SIGKILL" in served.log)
    served.wait_for(lambda: copies_in(tried(served)) == {"0", "1"})
    served.wait_for(served.is_ready)
    result = over_http(served.http_port)
    assert successes(result) == shown
    assert over_grpc(served.rpc_port) == result
    check_each_copy(metrics(served.http_port))
    ask_often(served, 10)
    more = successes(over_http(served.http_port))
    assert more == {name: count + 10 for name, count in shown.items()}


def tried(served: CountingServer) -> Samples:
    """`/metrics`; empty if the connection was given to a copy that is gone."""
    with contextlib.suppress(OSError):
        return metrics(served.http_port)
    return {}


def test_replicas_with_all_observers_report_all_requests_and_end(tmp_path):
    port = free_port()
    dag = {
        "tracer": {"interval_s": 1},
        "use_profile": True,
        "profile_per_s": 0,
        "enable_prometheus": True,
        "prometheus_port": port,
    }
    with two_copies(tmp_path, dag=dag) as served, Connection(served.http_port) as recording:
        recording.send(request(method="GET", path="/trace.json?seconds=30"))
        ask_often(served, 30)
        json.loads(fetched(served.http_port, "/trace.json?seconds=0.1"))
        assert total(metrics(port), "pd_query_request_success") == 30
        served.process.send_signal(signal.SIGTERM)
        assert served.ends() == 0, served.text("stderr") + served.log
        assert served.family == set()
    profile = read_profile(tmp_path / "stderr")
    assert (len(profile.requests), profile.damaged) == (30, 0)
    assert len(set(profile.request_pids.tolist())) == 2
    traced = "".join(
        served.text(f"PipelineServingLogs/pipeline.tracer.copy{number}") for number in range(2)
    )
    assert sum(map(int, re.findall(r"Query count\[(\d+)\]", traced))) == 30
    assert "Traceback" not in served.log + served.text("stderr")
