"""What real servers write down and show: tracer, profiles, traces, metrics; and that they end."""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from counting_server import OPS, SCRIPT, CountingServer
from doubles import chain, client_of, http, server_for, wait_until
from raw_http import Connection, request
from served import PATIENCE_S, environment, is_open
from server_counts import fetched, looked_at, metrics, total

from pipeline.engine.journal.journal import PIPELINE, Outcome
from pipeline.observe.paddle.profile import parse_profile, read_profile

EVERYTHING: dict[str, Any] = {
    "tracer": {"interval_s": 1},
    "use_profile": True,
    "profile_per_s": 0,
    "enable_prometheus": True,
    "prometheus_port": 0,
}


def ask_mixed(served: CountingServer, count: int = 60) -> int:
    """`count` requests at once, of which every tenth fails; returns how many did."""
    refused = {"slow.preprocess": "code 51"}
    calls = [served.send({"x": "1"} if n % 10 else refused) for n in range(count)]
    return sum(call.result(PATIENCE_S).err_no == 51 for call in calls)


def ends_well(served: CountingServer) -> None:
    served.process.send_signal(signal.SIGTERM)
    assert served.ends() == 0, served.text("stderr") + served.log
    assert served.family == set()


# Tracer and profile -------------------------------------------------------------------------------


def test_the_tracer_reports_each_request_once(serve):
    served = serve(dag={"tracer": {"interval_s": 1}})
    assert ask_mixed(served) == 6
    served.wait_for(lambda: "TRACER" in served.text("PipelineServingLogs/pipeline.tracer"))
    assert ask_mixed(served) == 6
    ends_well(served)
    text = served.text("PipelineServingLogs/pipeline.tracer")
    assert sum(map(int, re.findall(r"Query count\[(\d+)\]", text))) == 120
    errors = [ids.split(", ") for ids in re.findall(r"Error req\[(.+)\]", text)]
    assert sum(len(ids) for ids in errors) == 12
    assert set(re.findall(r"Op\((.*)\):", text)) == set(OPS)
    blocks = text.split("==================== TRACER ======================")[1:]
    assert all("Query count" in block or "Op(" in block for block in blocks), "none is idle"


def test_profile_lines_on_stderr_match_the_statistics(serve):
    served = serve(dag={"use_profile": True, "profile_per_s": 0})
    failed = ask_mixed(served)
    assert served.ask({"worked.preprocess": "exit 3"}).err_no
    seen = looked_at(served.rpc_port, served.http_port)
    ends_well(served)
    profile = read_profile(served.folder / "stderr")
    assert profile.damaged == 0
    outcomes = Counter(profile.requests["outcome"].tolist())
    assert outcomes == {Outcome.OK: 60 - failed, Outcome.PRODUCT: failed, Outcome.BACKEND: 1}
    for name, counted in seen.models.items():
        if name != "svc":
            turns = profile.spans[profile.spans["op"] == profile.names.index(name)]
            ended = Counter(Outcome(item).name for item in turns["outcome"].tolist())
            assert ended.pop("OK", 0) == counted.success, name
            assert ended == counted.failed, name


def test_analyse_reads_the_profile_of_a_real_server(serve):
    served = serve(dag={"use_profile": True})
    ask_mixed(served)
    ends_well(served)
    trace = served.folder / "trace.json"
    stderr = str(served.folder / "stderr")
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "analyse", stderr, "--json", "--trace", str(trace)],
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert (done.returncode, done.stderr) == (0, "")
    figures = json.loads(done.stdout)["figures"]
    assert (figures["requests"], figures["failed"], figures["refused"]) == (60, 0, 6)
    assert {op["name"]: op["workers"] for op in figures["ops"]} == {
        **dict.fromkeys(OPS, 1),
        "worked": figures_workers(figures),
    }
    assert json.loads(trace.read_text())


def figures_workers(figures: dict[str, Any]) -> int:
    """The workers seen of the Op that has two; one may have done it all."""
    (workers,) = (op["workers"] for op in figures["ops"] if op["name"] == "worked")
    assert workers in (1, 2)
    return int(workers)


# A caller's own profile ---------------------------------------------------------------------------


def check_profile(text: str, ops: tuple[str, ...] = OPS) -> None:
    """The lines of one request that went well, with all its turns."""
    profile = parse_profile(io.StringIO(text))
    assert profile.damaged == 0
    (asked,) = profile.requests
    assert (asked["target"], asked["outcome"]) == (PIPELINE, Outcome.OK)
    assert [profile.names[turn["op"]] for turn in profile.spans] == list(ops)
    for turn in profile.spans:
        assert turn["data_id"] == asked["data_id"]
        steps = ("ready", "start", "preprocess_end", "process_end", "end")
        stages = [turn[f"{step}_ns"] for step in steps]
        assert stages == sorted(stages)
        assert asked["start_ns"] <= stages[0] <= turn["result_received_ns"] <= asked["end_ns"]


@pytest.mark.parametrize("statistics", [True, False])
def test_a_client_gets_the_profile_of_its_own_request(serve, capsys, statistics):
    served = serve(statistics=statistics)
    with ThreadPoolExecutor(1) as other:
        others = other.submit(ask_mixed, served)
        answer = served.client.predict({"x": "1"}, profile=True)
        body = {"key": ["x", "pipeline.profile"], "value": ["1", "1"]}
        with Connection(served.http_port) as connection:
            connection.send(request(json.dumps(body).encode()))
            over_http = connection.answer().json
        others.result()
    (text,) = (v for k, v in zip(answer.key, answer.value, strict=True) if k == "pipeline.profile")
    check_profile(text)
    assert capsys.readouterr().out == text
    pairs = zip(over_http["key"], over_http["value"], strict=True)
    check_profile(next(v for k, v in pairs if k == "pipeline.profile" and "PROFILE" in v))


# Over HTTP, while it works ------------------------------------------------------------------------


def test_the_page_and_a_trace_agree_under_load(serve):
    served = serve()
    with ThreadPoolExecutor(2) as others:
        tracing = others.submit(fetched, served.http_port, "/trace.json?seconds=1")
        while not tracing.done():
            others.submit(ask_mixed, served).result()
            status = json.loads(fetched(served.http_port, "/status.json"))
            counted = status["pipeline"]
            ended = counted["succeeded"] + sum(counted["failed"].values())
            assert status["accepted"] == ended + status["inside"] + status["waiting"]
            assert [op["name"] for op in status["ops"]] == list(OPS)
    events = json.loads(tracing.result())
    events = events["traceEvents"] if isinstance(events, dict) else events
    arrows = Counter(event["ph"] for event in events if event["ph"] in "stf")
    assert arrows["s"] > 0
    assert arrows["s"] == arrows["f"]
    names = {
        event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == "process_name"
    }
    assert all(any(op in name for name in names) for op in OPS), names
    status = json.loads(fetched(served.http_port, "/status.json"))
    assert status["failed"][0]["error"]
    assert len(status["slowest"]) == 10


def test_counters_only_grow_on_their_own_port(serve):
    served = serve(dag={"enable_prometheus": True, "prometheus_port": 0})
    match = re.search(r"metrics on port (\d+)", served.text("stderr"))
    assert match
    port, before = int(match[1]), {}
    for _ in range(5):
        ask_mixed(served, 20)
        now = metrics(port)
        for key, value in now.items():
            if key[0].startswith(("nv_inference_request", "pd_")) or key[0].endswith("_bucket"):
                assert value >= before.get(key, 0), key
        before = now
    seen = looked_at(served.rpc_port, served.http_port).models
    assert total(before, "pd_query_request_success") == seen["svc"].success == 90
    assert total(before, "pd_query_request_failure") == seen["svc"].failed.total() == 10
    assert total(before, "pd_inference_count") == sum(seen[op].samples for op in OPS)
    assert {key for key in before if key[0].startswith("pd_")} == {
        (f"pd_{name}", frozenset())
        for name in (
            "query_request_success",
            "query_request_failure",
            "inference_count",
            "query_request_duration_us",
            "inference_duration_us",
        )
    }
    ends_well(served)
    assert not is_open(port)


def status_of(port: int, path: str) -> int:
    try:
        fetched(port, path)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    return 200


@pytest.mark.parametrize(
    ("config", "statuses"),
    [
        ({"statistics": False}, [501, 404, 200, 200, 200]),
        ({"status_page": False}, [200, 404, 404, 404, 200]),
    ],
)
def test_a_disabled_feature_is_reported_and_others_work(serve, config, statuses):
    served = serve(**config)
    assert ask_mixed(served) == 6
    paths = ("/v2/models/stats", "/trace.json?seconds=0.1", "/status.json", "/", "/metrics")
    assert [status_of(served.http_port, path) for path in paths] == statuses
    accepted = total(metrics(served.http_port), "pipeline_requests_accepted")
    assert accepted == 60
    ends_well(served)


# Ends ---------------------------------------------------------------------------------------------


def test_a_signal_ends_a_server_that_records_and_writes(serve):
    served = serve(dag=EVERYTHING)
    with (
        Connection(served.http_port) as recording,
        Connection(served.http_port) as another,
        served.held("tail.preprocess") as held,
    ):
        for connection in (recording, another):
            connection.send(request(method="GET", path="/trace.json?seconds=30"))
        with Connection(served.http_port) as third:
            served.wait_for(lambda: refused(third))
        served.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not is_open(served.http_port))
    assert [call.result(PATIENCE_S).err_no for call in held.values()] == [0]
    assert served.ends() == 0, served.text("stderr") + served.log
    assert served.family == set()
    assert "Traceback" not in served.log + served.text("stderr")
    assert "Query count[1]" in served.text("PipelineServingLogs/pipeline.tracer")
    assert len(read_profile(served.folder / "stderr").requests) == 1


def refused(connection: Connection) -> bool:
    """Whether a recording is refused, since two are being made."""
    connection.send(request(method="HEAD", path="/status.json"))
    assert connection.answer("HEAD").status == 200
    connection.send(request(method="GET", path="/trace.json?seconds=0.1"))
    return connection.answer().status == 503


LITTLE_PATIENCE = """
from unittest import mock
from pipeline.observe import background
from pipeline.observe.logs import sinks
for module in (background, sinks):  # as long a server that stops waits for what nobody reads
    mock.patch.object(module, "_JOIN_TIMEOUT_S", 0.5).start()
"""


def started(folder: Path, stderr: int | None) -> subprocess.Popen[bytes]:
    """The script, with a stderr of the test's own; None: it has no descriptor 2."""
    config = {"rpc_port": 0, "http_port": 0, "dag": {"use_profile": True, "profile_per_s": 0}}
    lines = [f"{key}: {json.dumps(value)}\n" for key, value in config.items()]
    (folder / "config.yml").write_text("".join(lines))
    (folder / "web_server.py").write_text(LITTLE_PATIENCE + SCRIPT)
    command = [sys.executable, str(folder / "web_server.py"), str(folder)]
    if stderr is None:
        command = ["sh", "-c", 'exec "$@" 2>&-', "sh", *command]
    return subprocess.Popen(
        command, stderr=stderr, env=environment(SERVING_LOG_PATH=str(folder)), cwd=folder
    )


def http_port_in_log(folder: Path) -> int:
    log = folder / "PipelineServingLogs" / "pipeline.log"

    def port_in_log() -> re.Match[str] | None:
        return re.search(r"HTTP on port (\d+)", log.read_text() if log.exists() else "")

    wait_until(lambda: port_in_log() is not None, PATIENCE_S)
    ready = port_in_log()
    assert ready
    return int(ready[1])


def serves(port: int, count: int = 300) -> bool:
    with Connection(port) as connection:
        for _ in range(count):
            connection.send(request(b'{"key": ["x"], "value": ["1"]}'))
            if connection.answer().json["err_no"]:
                return False
    return True


@pytest.mark.parametrize("kind", ["missing", "without a reader", "full"])
def test_no_stderr_keeps_a_server_from_serving_and_ending(tmp_path, kind):
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    process = started(tmp_path, None if kind == "missing" else writer)
    os.close(writer)
    if kind == "without a reader":
        os.close(reader)
    try:
        assert serves(http_port_in_log(tmp_path))
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        if kind != "without a reader":
            os.close(reader)


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


@pytest.mark.usefixtures("open_files")
def test_a_server_with_all_observers_leaves_no_thread_and_no_file(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    before = threads()
    for _ in range(2):
        with server_for(chain("a", "b"), dag=EVERYTHING) as server, client_of(server) as client:
            for _ in range(5):
                client.predict({"x": "1"})
            assert http(server, "GET", "/trace.json?seconds=0.1")[0] == 200
    assert {name for name in threads() - before if name.startswith("pipeline")} == set()
    assert sys.stderr.getvalue().count("PROFILE\t") == 2 * 5 * 3
