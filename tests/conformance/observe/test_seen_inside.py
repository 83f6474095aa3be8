"""Counters of real servers: exact, whatever callers, workers and signals do."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from counting_server import OPS, CountingServer
from served import PATIENCE_S, unique
from server_counts import (
    Moved,
    Samples,
    check_form,
    metrics,
    model,
    over_http,
    total,
)

from pipeline.errors import ErrorCode


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CountingServer]:
    served = CountingServer(tmp_path_factory.mktemp("seen"))
    try:
        yield served.wait_until_ready()
    finally:
        served.close()


@pytest.fixture
def served(server: CountingServer) -> Iterator[CountingServer]:
    """The shared server; ready again after every test."""
    yield server
    server.wait_for(server.is_ready)


ONE = model(1, 1)
NONE = model()


def one_request_at(*until: str) -> dict[str, Any]:
    """That one request went well through these Ops, and was at no others."""
    return {name: ONE if name in until else NONE for name in OPS}


def ops_of(moved: Moved) -> dict[str, Any]:
    return {name: moved[name] for name in OPS}


# Answers ----------------------------------------------------------------------------------------


def test_a_request_counts_once_at_every_op_and_at_the_pipeline(served):
    with served.moves() as moved:
        for _ in range(3):
            served.get({"x": "1"})
    three = model(3, 1, 1, 1)
    assert moved.seen.models == {"svc": three, **dict.fromkeys(OPS, three)}
    assert (moved.seen.accepted, moved.seen.rejected) == (3, 0)


def send_batch(served: CountingServer, op: str, *asked: dict[str, str]) -> list[Any]:
    """The answers of requests that reach `op` together, behind one that is held there."""
    with served.held(f"{op}.preprocess") as held:
        calls = [served.send({"x": "1", **pairs}) for pairs in asked]
        served.wait_until_at(op, 1 + len(asked))
    return [call.result(PATIENCE_S) for call in (*held.values(), *calls)][1:]


def test_a_batch_is_one_execution_of_its_size(served):
    with served.moves() as moved:
        send_batch(served, "batched", {}, {}, {}, {})
    assert moved["batched"] == model(5, 1, 4)
    assert moved["svc"] == model(5, 1, 1, 1, 1, 1)


@pytest.mark.parametrize("stage", ["preprocess", "process", "postprocess"])
def test_a_failure_in_a_batch_is_counted_separately(served, stage):
    spoilt = {f"batched.{stage}": "code 77"}
    with served.moves() as moved:
        answers = send_batch(served, "batched", {}, spoilt, {}, spoilt)
    assert sorted(answer.err_no == 0 for answer in answers) == [False, False, True, True]
    reason = "BACKEND" if stage == "process" else "PRODUCT"
    # What fails has a pair more, and so a call of `process` of its own.
    assert moved["batched"] == model(3, 1, 2, **{reason: 2})
    assert moved["worked"].success == 3
    assert moved["svc"] == model(3, 1, 1, 1, **{reason: 2})


def test_a_batch_without_successes_is_not_an_execution(served):
    spoilt = {"batched.preprocess": "code 77"}
    with served.moves() as moved:
        send_batch(served, "batched", spoilt, spoilt, spoilt, spoilt)
    assert moved["batched"] == model(1, 1, PRODUCT=4)


@pytest.mark.parametrize("op", ["front", "tail"])
@pytest.mark.parametrize("stage", ["preprocess", "process", "postprocess"])
@pytest.mark.parametrize("how", ["code 51", "raise oh"])
def test_an_error_of_user_code_is_one_failure_at_its_op_and_at_the_pipeline(served, op, stage, how):
    # A code that `process` returns says that it failed, not that the request was wrong.
    reason = "PRODUCT" if how == "code 51" and stage != "process" else "BACKEND"
    with served.moves() as moved:
        assert served.ask({f"{op}.{stage}": how}).err_no
    before = OPS[: OPS.index(op)]
    assert ops_of(moved) == one_request_at(*before) | {op: model(**{reason: 1})}
    assert moved["svc"] == model(**{reason: 1})


# Workers that are lost, or hang -------------------------------------------------------------------


def test_a_batch_repeated_after_a_kill_counts_once(served):
    with served.moves() as moved:
        with served.held("worked.preprocess") as held:
            ((pid, call),) = held.items()
            os.kill(pid, signal.SIGKILL)
        assert call.result(PATIENCE_S).err_no == 0
    assert ops_of(moved) == one_request_at(*OPS)
    assert moved["svc"] == ONE
    assert moved.seen.restarts == {**dict.fromkeys(OPS, 0), "worked": 1}


def test_a_request_that_kills_every_worker_that_takes_it_fails_once(served):
    with served.moves() as moved:
        assert served.ask({"worked.preprocess": "exit 3"}).err_no
    assert ops_of(moved) == one_request_at("front", "batched") | {"worked": model(OTHER=1)}
    assert moved["svc"] == model(BACKEND=1)


def test_of_a_batch_whose_worker_dies_only_the_culprit_fails(served):
    with served.moves() as moved:
        with served.held("worked.preprocess") as one, served.held("worked.preprocess") as other:
            calls = [served.send(pairs) for pairs in ({"worked.process": "exit 3"}, {"x": "1"})]
            served.wait_until_at("worked", 4)
        calls += [*one.values(), *other.values()]
        codes = [call.result(PATIENCE_S).err_no for call in calls]
        assert [code == 0 for code in codes] == [False, True, True, True]
    assert moved["worked"].success == 3
    assert moved["worked"].failed == {"OTHER": 1}
    assert moved["svc"] == model(3, 1, 1, 1, BACKEND=1)


def test_a_process_that_hangs_is_killed_and_its_request_fails_once(served):
    with served.moves() as moved, served.held("tail.process") as held:
        (call,) = held.values()
        assert "exceeded retry count" in call.result(PATIENCE_S).err_msg
    assert ops_of(moved) == one_request_at(*OPS[:-1]) | {"tail": model(BACKEND=1)}
    assert moved["svc"] == model(BACKEND=1)


def test_a_thread_that_hangs_is_replaced_and_its_request_fails_once(served):
    with served.moves() as moved:
        with served.held("slow.process") as held:
            (call,) = held.values()
            assert "exceeded retry count" in call.result(PATIENCE_S).err_msg
            served.get({"x": "1"})  # by the one that took its place
        served.get({"x": "1"})
    assert moved["slow"] == model(2, 1, 1, BACKEND=1)
    assert moved["tail"] == model(2, 1, 1)
    assert moved["svc"] == model(2, 1, 1, BACKEND=1)


def test_attempts_at_an_op_are_one_pass(served):
    name = next(unique)
    with served.moves() as moved:
        served.get({"worked.process": f"once {name} exit 3"})
    assert ops_of(moved) == one_request_at(*OPS)
    assert moved["svc"] == ONE


# Callers that leave -------------------------------------------------------------------------------


def test_a_cancelled_request_is_dropped_where_it_waits_and_finished_where_it_runs(served):
    with served.moves() as moved, served.held("slow.preprocess") as held:
        (running,) = held.values()
        waiting = served.send({"x": "1"})
        served.wait_until_at("slow", 2)
        for left, call in ((1, waiting), (0, running)):
            call._call.cancel()
            served.wait_until_inside(left)
    # On a busy machine the second may pass after which a worker is given up that nobody awaits.
    assert moved["slow"] in (model(1, 1, CANCELED=1), model(CANCELED=2))
    assert moved["tail"] == NONE
    assert moved["svc"] == model(CANCELED=2)


def test_an_http_caller_that_hangs_up_has_cancelled(served):
    with served.moves() as moved:
        with served.held("slow.preprocess") as held:
            connection = served.post({"x": "1"})
            served.wait_until_at("slow", 2)
            connection.close()
            served.wait_until_inside(1)
        assert [call.result(PATIENCE_S).err_no for call in held.values()] == [0]
    assert moved["slow"] == model(1, 1, CANCELED=1)
    assert moved["svc"] == model(1, 1, CANCELED=1)


def test_a_request_that_waits_at_its_deadline_is_rejected(served):
    with served.moves() as moved:
        with (
            served.held("front.preprocess") as held,
            served.post({"x": "1"}, "Grpc-Timeout: 50m") as connection,
        ):
            assert "deadline" in connection.answer().json["err_msg"]
        assert [call.result(PATIENCE_S).err_no for call in held.values()] == [0]
    assert moved["front"] == model(1, 1, REJECTED=1)
    assert moved["svc"] == model(1, 1, REJECTED=1)


# A full server, and requests that start again ----------------------------------------------------


def test_a_request_refused_by_a_full_server_is_counted_as_rejected_only(serve):
    served = serve(worker_num=1, queue_size=1)
    with served.moves() as moved:
        with served.held("tail.preprocess") as held:
            waiting = served.send({"x": "1"})
            served.wait_until_inside(2)
            with pytest.raises(grpc.RpcError) as refusal:
                served.ask({"x": "1"})
            with served.post({"x": "1"}) as connection:
                assert connection.answer().status == 503
        calls = [*held.values(), waiting]
        assert [call.result(PATIENCE_S).err_no for call in calls] == [0, 0]
    assert refusal.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (moved.seen.accepted, moved.seen.rejected) == (2, 2)
    assert moved.seen.models == dict.fromkeys(("svc", *OPS), model(2, 1, 1))


def test_a_restarted_request_passes_its_ops_again_and_is_one_request(serve):
    served = serve(dag={"retry": 2})
    names = [next(unique) for _ in range(2)]
    with served.moves() as moved:
        served.get({"tail.process": f"once {names[0]} hold {names[0]}"})
        for stage in ("slow.process", "tail.process"):
            assert served.ask({stage: f"hold {names[1]}"}).err_no
    served.release(names[1])
    assert moved["front"] == model(6, *[1] * 6)
    assert moved["slow"] == model(4, *[1] * 4, BACKEND=2)
    assert moved["tail"] == model(1, 1, BACKEND=3)
    assert moved["svc"] == model(1, 1, BACKEND=2)


# Random traffic -----------------------------------------------------------------------------------

REQUESTS, CALLERS = 400, 8


def check_flow(samples: Samples) -> int:
    """Check the place of each request while no caller leaves; return how many were answered."""

    def ended(name: str) -> tuple[int, int]:
        success = total(samples, "nv_inference_request_success", model=name)
        return success, total(samples, "nv_inference_request_failure", model=name)

    accepted = total(samples, "pipeline_requests_accepted")
    assert accepted == sum(ended("svc")) + total(samples, "pipeline_requests")
    coming = accepted - total(samples, "pipeline_requests", state="waiting")
    for op in OPS:
        assert coming == sum(ended(op)) + total(samples, "pipeline_op_requests", model=op), op
        coming, _ = ended(op)
    return sum(ended("svc"))


def mixed(number: int) -> tuple[dict[str, str], bool]:
    """Return (pairs, whether the answer is a success) of a request; crashes are rare."""
    dice = random.Random(number)
    op, stage = dice.choice(OPS), dice.choice(("preprocess", "process", "postprocess"))
    verb = dice.choices(("", "code 51", "raise oh", "crash"), (70, 15, 12, 3))[0]
    if verb == "crash":
        return {f"worked.{stage}": f"once crash{number} exit 3"}, True
    return ({f"{op}.{stage}": verb}, False) if verb else ({"x": str(number)}, True)


def send_mixed(served: CountingServer, number: int) -> bool:
    """Whether the answer was as expected."""
    pairs, is_good = mixed(number)
    if number % 2:
        return (served.ask(pairs).err_no == 0) == is_good
    with served.post(pairs) as connection:
        return (connection.answer().json["err_no"] == 0) == is_good


def test_each_request_is_counted_in_one_state_at_any_time(serve):
    served = serve()
    expected = Counter(mixed(number)[1] for number in range(REQUESTS))
    with served.moves() as moved, ThreadPoolExecutor(CALLERS) as callers:
        sent = [callers.submit(send_mixed, served, number) for number in range(REQUESTS)]
        while check_flow(metrics(served.http_port)) < REQUESTS:
            for found in over_http(served.http_port):
                check_form(found)
        assert all(item.result() for item in sent)
    assert moved["svc"].success == moved["tail"].success == expected[True]
    assert moved["svc"].failed.total() == expected[False]
    assert set(moved["svc"].failed) == {"BACKEND", "PRODUCT"}
    assert max(moved["batched"].batches) <= 4


def leave(served: CountingServer, number: int) -> None:
    """Ask, and leave at some time before the answer."""
    pairs = {"x": str(number)}
    if number % 3 == 0:
        served.send(pairs)._call.cancel()
    elif number % 3 == 1:
        served.post(pairs).close()
    else:
        with served.post(pairs, f"Grpc-Timeout: {number % 20}m") as connection:
            # OVERLOADED: where the server is so busy that it would be late, and says so at once.
            known = (0, ErrorCode.TIMEOUT, ErrorCode.OVERLOADED)
            assert connection.answer().json["err_no"] in known


def test_callers_that_leave_at_any_time_are_counted_once(served):
    with served.moves() as moved, ThreadPoolExecutor(CALLERS) as callers:
        left = [callers.submit(leave, served, number) for number in range(REQUESTS)]
        for item in left:
            item.result()
    assert moved["svc"].success + moved["svc"].failed.total() == moved.seen.accepted <= REQUESTS
    assert set(moved["svc"].failed) <= {"CANCELED", "REJECTED"}
    coming = moved.seen.accepted
    for name in OPS:
        assert set(moved[name].failed) <= {"CANCELED", "REJECTED"}
        assert moved[name].success + moved[name].failed.total() <= coming
        coming = moved[name].success
    assert moved["svc"].success <= coming
