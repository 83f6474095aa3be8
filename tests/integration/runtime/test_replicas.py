"""A server as several processes, started from this one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import msgspec
import numpy as np
import pytest
from doubles import client_of, http, post, server_for, wait_until

from pipeline import Op, PipelineServer, RequestOp, ResponseOp
from pipeline.errors import InitError
from pipeline.frontends.listen import bind, reserve
from pipeline.observe.snapshot import Snapshot
from pipeline.runtime import replicas

pytestmark = pytest.mark.usefixtures("open_files", "grpc_rests")

TWO = {"build_dag_each_worker": True, "worker_num": 2}


def path_of(name: str) -> Path:
    """A file of this test, by which it speaks with its copies."""
    return Path(os.environ["SERVING_LOG_PATH"]) / name


class ProcessId(Op):
    """Says which process answered, and with which data id. The file `init` is what it does at its
    start: raise, exit, or wait until the file is gone."""

    def init_op(self):
        init = path_of("init")
        does = init.read_text() if init.exists() else ""
        if does == "raise":
            raise FileNotFoundError("who.vocab")
        if does == "exit":
            os._exit(7)
        if does == "wait":
            path_of("waits").touch()
            while init.exists():
                time.sleep(0.002)

    def preprocess(self, input_dicts, data_id, log_id):
        return {"pid": str(os.getpid()), "data_id": str(data_id)}, False, None, ""


def process_id_op() -> Op:
    return ProcessId(name="who", input_ops=[RequestOp()])


def ask(server: PipelineServer) -> tuple[int, int]:
    """(pid, data id) of an answer, on a connection of its own."""
    status, answer = post(server, {"key": [], "value": []})
    assert (status, answer["err_no"]) == (200, 0), answer
    pid, data_id = answer["value"]
    return int(pid), int(data_id)


def pids_of(server: PipelineServer, count: int) -> set[int]:
    """The processes that answer: waits until there are `count`."""
    collected: set[int] = set()
    wait_until(lambda: collected.add(ask(server)[0]) or len(collected) == count)
    return collected


def log() -> str:
    return path_of("PipelineServingLogs/pipeline.log").read_text()


# Serving --------------------------------------------------------------------------------------


def test_all_replicas_answer_with_separate_data_ids():
    with server_for(process_id_op(), **{**TWO, "worker_num": 3}) as server:
        pids_of(server, 3)
        ids = defaultdict(list)
        for _ in range(60):
            pid, data_id = ask(server)
            ids[pid].append(data_id)
    assert os.getpid() not in ids
    starts = sorted(of_copy[0] % 3 for of_copy in ids.values())
    assert starts == list(range(3)), "a copy's number is what its ids leave when divided by 3"
    for of_copy in ids.values():
        assert of_copy == list(range(of_copy[0], of_copy[-1] + 1, 3)), "none is left out"


def test_the_first_data_id_is_the_copys_number():
    with server_for(process_id_op(), **TWO) as server:
        first: dict[int, int] = {}

        def both_answered() -> bool:
            pid, data_id = ask(server)
            first.setdefault(pid, data_id)
            return len(first) == 2

        wait_until(both_answered)
        assert set(first.values()) == {0, 1}


class Batch(Op):
    """Says how many requests were in its batch."""

    def preprocess(self, input_dicts, data_id, log_id):
        return {"x": np.zeros((1, 1))}, False, None, ""

    def process(self, feed_batch, typical_logid):
        return {"size": np.full(len(feed_batch[0]["x"]), len(feed_batch[0]["x"]))}, None, ""

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        return {"size": str(fetch_data["size"][0])}, None, ""


def test_batches_form_in_copies_too():
    op = Batch("batch", [RequestOp()], batch_size=4, auto_batching_timeout=1e8)
    with (
        ThreadPoolExecutor(7) as callers,
        server_for(op, stop_grace_period=0, **TWO) as server,
    ):
        calls = [callers.submit(post, server, {"key": [], "value": []}) for _ in range(7)]
        first = next(as_completed(calls))  # a copy that gets four of the seven has a batch
        assert first.result()[1]["value"] == ["4"]


def test_they_are_ready_when_start_returns():
    with server_for(process_id_op(), **TWO) as server:
        for _ in range(20):
            assert readiness(server) == 200


def test_servers_run_one_after_the_other_and_at_once():
    server = server_for(process_id_op(), **TWO)
    with server:
        pids = pids_of(server, 2)
    with server, server_for(process_id_op(), **TWO) as second:
        pids |= pids_of(server, 2) | pids_of(second, 2)
    assert len(pids) == 6


def test_a_server_can_stop_before_one_that_was_started_later(monkeypatch):
    monkeypatch.setattr(
        "pipeline.runtime.replicas._DISCONNECTED_TIMEOUT_S", 600.0
    )  # its copies end without being killed
    server = server_for(process_id_op(), stop_grace_period=600_000, **TWO)
    server.start()
    with server_for(process_id_op(), **TWO):
        server.stop()


def test_a_server_runs_in_an_event_loop_of_the_user():
    async def use() -> set[int]:
        async with server_for(process_id_op(), **TWO) as server:
            return await asyncio.to_thread(pids_of, server, 2)

    assert len(asyncio.run(use())) == 2


def test_a_single_replica_is_a_separate_process():
    with server_for(process_id_op(), build_dag_each_worker=True) as server:
        assert os.getpid() not in pids_of(server, 1)


@pytest.mark.parametrize("host", ["127.0.0.1", "::"])
def test_they_listen_where_a_single_server_does(host):
    with server_for(process_id_op(), host=host, **TWO) as server:
        assert len(pids_of(server, 2)) == 2
        socket.create_connection(("127.0.0.1", server.rpc_port), 10).close()


@pytest.mark.parametrize(
    ("ports", "has_http"),
    [({"rpc_port": 0, "http_port": None}, False), ({"rpc_port": None, "http_port": 0}, True)],
)
def test_a_door_may_be_left_out(ports, has_http):
    with server_for(process_id_op(), **ports, **TWO) as server:
        assert (server.http_port is not None) == has_http
        socket.create_connection(("127.0.0.1", server.rpc_port), 10).close()


def test_copies_may_be_fresh_interpreters():
    with server_for(process_id_op(), dag={"start_method": "spawn"}, **TWO) as server:
        assert len(pids_of(server, 2)) == 2


def test_warnings_of_the_configuration_are_logged_once():
    with server_for(process_id_op(), op={"whom": {}}, **TWO):
        pass
    assert log().count("op.whom") == 1
    assert log().count("is ready") == 1
    assert log().count("stopped") == 1


def test_the_engine_is_not_here():
    with (
        server_for(process_id_op(), **TWO) as server,
        pytest.raises(InitError, match="processes of their own"),
    ):
        _ = server.executor


# Failing to start -----------------------------------------------------------------------------


def test_an_op_that_fails_to_start_raises_its_traceback_and_leaves_nothing():
    path_of("init").write_text("raise")
    with pytest.raises(InitError, match=r"(?s)'who' failed to start: \w+: who\.vocab.*in init_op"):
        server_for(process_id_op(), **TWO).start()


def test_a_replica_that_exits_at_its_start_is_an_error_with_the_exit_code():
    expected = r"copy \d of the server \(pid \d+\) ended with exit code 7"
    path_of("init").write_text("exit")
    with pytest.raises(InitError, match=expected):
        server_for(process_id_op(), **TWO).start()


def test_workers_that_cannot_be_prepared_are_an_error_with_the_reason(monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no arena today")

    monkeypatch.setattr("pipeline.workers.process.kind.new_arena", refuse)  # the copies inherit it
    server = server_for(process_id_op(), op={"who": {"workers": "process"}}, **TWO)
    with pytest.raises(InitError, match=r"(?s)Traceback.*no arena today"):
        server.start()


def test_a_server_that_failed_may_be_started_again():
    path_of("init").write_text("raise")
    server = server_for(process_id_op(), **TWO)
    with pytest.raises(InitError):
        server.start()
    path_of("init").unlink()
    with server:
        pids_of(server, 2)


def test_grpc_in_use_in_this_process_is_an_error_with_advice(monkeypatch):
    monkeypatch.setattr(replicas, "_GRPC_END_TIMEOUT_S", 0.0)
    with server_for(process_id_op()) as single, client_of(single) as client:
        client.predict({})
        with pytest.raises(InitError, match=r"(?s)gRPC is in use.*start_method: spawn"):
            server_for(process_id_op(), **TWO).start()


# Ports ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["rpc_port", "http_port"])
def test_a_port_of_another_program_is_not_shared(key):
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as other:
        port = other.getsockname()[1]
        with pytest.raises(InitError, match=rf"{key}: cannot listen on .*:{port}: .* in use"):
            server_for(process_id_op(), **{key: port}, **TWO).start()


@pytest.mark.parametrize("key", ["rpc_port", "http_port"])
@pytest.mark.parametrize("config", [TWO, {}], ids=["copies", "single"])
def test_a_second_server_does_not_get_the_ports_of_replicas(key, config):
    with server_for(process_id_op(), **TWO) as server:
        port = getattr(server, key)
        with pytest.raises(InitError, match=rf"{key}: cannot listen on .*:{port}: .* in use"):
            server_for(process_id_op(), **{key: port}, **config).start()
        pids_of(server, 2)


def test_copies_do_not_get_the_port_of_a_single_server():
    with server_for(process_id_op(), rpc_port=None) as single:
        for key in ("rpc_port", "http_port"):
            with pytest.raises(InitError, match=f"{key}: cannot listen"):
                reserve("::", getattr(single, key), key)


@pytest.mark.parametrize("host", ["::", "127.0.0.1"])
def test_a_reserved_port_is_available_to_sharing_servers_only(host):
    with reserve(host, 0, "http_port") as held:
        port = held.getsockname()[1]
        for take in (reserve, bind):
            with pytest.raises(InitError, match="in use"):
                take(host, port, "http_port")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 10)
        with (
            bind(host, port, "http_port", is_shared=True),
            bind(host, port, "http_port", is_shared=True),
        ):
            socket.create_connection(("127.0.0.1", port), 10).close()
        with pytest.raises(InitError, match="in use"):
            bind(host, port, "http_port")
    bind(host, port, "http_port").close()


def test_a_port_can_be_reserved_while_old_connections_linger():
    with bind("127.0.0.1", 0, "http_port") as listener:
        port = listener.getsockname()[1]
        caller = socket.create_connection(("127.0.0.1", port))
        listener.accept()[0].close()  # the side that closes first keeps the port for a minute
        caller.close()
    reserve("127.0.0.1", port, "http_port").close()


# Ends -----------------------------------------------------------------------------------------


def readiness(server: PipelineServer) -> int | None:
    """The status of /health/ready; None where the system gave the connection to a copy that has
    just been killed."""
    with contextlib.suppress(ConnectionError):
        return http(server, "GET", "/health/ready")[0]
    return None


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (signal.SIGKILL, "was killed by SIGKILL"),
        (signal.SIGSTOP, "was stopped (SIGSTOP), did not continue, and was killed"),
    ],
)
def test_a_copy_that_ends_is_replaced(number, text):
    with server_for(process_id_op(), **TWO) as server:
        first = pids_of(server, 2)
        victim = min(first)
        os.kill(victim, number)
        wait_until(lambda: text in log())
        assert {readiness(server) for _ in range(10)} <= {200, None}
        (other,) = first - {victim}
        after = remaining_pids(server, victim)
        assert other in after, "the neighbour continues"
        assert len(after) == 2
    assert f"(pid {victim}) {text}" in log()
    assert "it is restarted" in log()


def remaining_pids(server: PipelineServer, gone: int) -> set[int]:
    """The two processes that answer when `gone` was replaced."""
    collected: set[int] = set()

    def two_answered() -> bool:
        with contextlib.suppress(ConnectionError):  # it was given to the one that is gone
            collected.add(ask(server)[0])
        collected.discard(gone)
        return len(collected) == 2

    wait_until(two_answered)
    return collected


def test_a_copy_gets_no_connections_before_it_can_answer():
    with server_for(process_id_op(), **TWO) as server:
        victim, other = pids_of(server, 2)
        path_of("init").write_text("wait")
        os.kill(victim, signal.SIGKILL)
        wait_until(path_of("waits").exists)
        assert {ask(server)[0] for _ in range(20)} == {other}
        assert readiness(server) == 200
        path_of("init").unlink()
        assert other in remaining_pids(server, victim)


@pytest.mark.parametrize("does", ["raise", "exit"])
def test_a_replica_that_never_restarts_makes_the_server_not_ready(does):
    with server_for(process_id_op(), **TWO) as server:
        victim, other = pids_of(server, 2)
        path_of("init").write_text(does)
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: readiness(server) == 503)
        assert ask(server)[0] == other, "it serves nevertheless"
        path_of("init").unlink()
        wait_until(lambda: readiness(server) == 200)
        assert other in remaining_pids(server, victim)
    expected = {"raise": "did not start", "exit": "ended with exit code 7"}[does]
    assert expected in log()
    assert "(3 times in a row)" in log()
    assert ("who.vocab" in log()) == (does == "raise")


def test_a_copy_that_is_continued_in_time_stays():
    with server_for(process_id_op(), **TWO) as server:
        first = pids_of(server, 2)
        os.kill(min(first), signal.SIGSTOP)
        os.kill(min(first), signal.SIGCONT)
        assert pids_of(server, 2) == first


def test_all_copies_may_end_at_once():
    with server_for(process_id_op(), **TWO) as server:
        first = pids_of(server, 2)
        for pid in first:
            os.kill(pid, signal.SIGKILL)
        after: set[int] = set()

        def both_are_new() -> bool:
            with contextlib.suppress(ConnectionError):
                after.add(ask(server)[0])
            return len(after - first) == 2

        wait_until(both_are_new)
        wait_until(lambda: readiness(server) == 200)


# The view of the whole server ---------------------------------------------------------------


def counted(server: PipelineServer, name: str) -> int:
    """Successes of a model, by the copy that happens to be asked."""
    (model,) = http(server, "GET", f"/v2/models/{name}/stats")[2]["model_stats"]
    return int(model["inference_stats"]["success"]["count"])


def reported_successes(server: PipelineServer) -> int:
    """Successes of the pipeline that the copies have told the server of."""
    snapshots = [
        msgspec.msgpack.decode(snapshot, type=Snapshot)
        for copy in server._service._running
        for snapshot in copy.snapshots.values()
    ]
    return sum(snapshot.models[0].success_count for snapshot in snapshots)


def test_statistics_sum_all_replicas_and_outlive_a_killed_one():
    with server_for(ProcessId("who", [RequestOp()]), **TWO) as server:
        answers = [pairs(server) for _ in range(40)]
        assert len({answer["pid"] for answer in answers}) == 2
        assert [counted(server, name) for name in ("svc", "who") for _ in range(8)] == [40] * 16
        wait_until(lambda: reported_successes(server) == 40)
        victim = int(answers[0]["pid"])
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: victim not in {copy.child.pid for copy in server._service._running})
        assert {counted(server, "svc") for _ in range(8)} == {40}
        wait_until(lambda: len(server._service._running) == 2)
        pairs(server)
        assert {counted(server, "svc") for _ in range(8)} == {41}


def test_copies_serve_all_pipelines_and_the_counters_of_each_outlive_one():
    server = PipelineServer("svc")
    server.set_response_op(ResponseOp(ProcessId("who", [RequestOp()])))
    server.add_pipeline("other", ResponseOp(ProcessId("them", [RequestOp()])))
    server.prepare_server(yml_dict={"rpc_port": 0, "http_port": 0, **TWO})
    with server:
        answers = [pairs(server, name) for name in ("svc", *["other"] * 3) * 10]
        assert len({answer["pid"] for answer in answers}) == 2
        assert len({answer["data_id"] for answer in answers}) == 40
        both = {"svc": 10, "who": 10, "other": 30, "them": 30}
        assert {name: counted(server, name) for name in both} == both
        wait_until(lambda: reported_successes(server) == 40)
        status = http(server, "GET", "/status.json?pipeline=other")[2]
        assert (status["copies"], status["pipeline"]["succeeded"]) == (2, 30)
        victim = int(answers[0]["pid"])
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: victim not in {copy.child.pid for copy in server._service._running})
        assert {name: counted(server, name) for name in both} == both


def test_a_trace_is_recorded_in_all_copies():
    with server_for(ProcessId("who", [RequestOp()]), **TWO) as server:
        with ThreadPoolExecutor(1) as pool:
            recorded = pool.submit(http, server, "GET", "/trace.json?seconds=1")
            pids: set[str] = set()
            while not recorded.done():
                pids.add(pairs(server)["pid"])
        status, _, events = recorded.result()
        assert (status, len(pids)) == (200, 2)
        assert {event["pid"] > 2 for event in events} == {True, False}, "two a copy"


def pairs(server: PipelineServer, name: str = "svc") -> dict[str, str]:
    """What `ProcessId` answers."""
    status, body = post(server, {"key": [], "value": []}, f"/{name}/prediction")
    assert (status, body["err_no"]) == (200, 0)
    return dict(zip(body["key"], body["value"], strict=True))
