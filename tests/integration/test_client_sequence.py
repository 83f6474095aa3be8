"""Sequences of the clients against a real server: START, END and the order come by themselves."""

from __future__ import annotations

import asyncio
import threading

import grpc
import numpy as np
import pytest
from doubles import server_for, wait_until

from pipeline import AsyncPipelineClient, Op, PipelineClient, RequestOp
from pipeline.errors import ClosedError, NotImplementedByOpError

SEQUENCE = {"strategy": "oldest", "max_candidates": 8, "max_idle_ms": 60_000}
MAY_GO = threading.Event()
MAY_GO.set()


class Trail(Op):
    """Answers with the sequence's values so far, and with the inputs of the model."""

    def init_op(self):
        self.words = {}

    def preprocess(self, input_dicts, *, context):
        (fields,) = input_dicts.values()
        step = context.sequence
        MAY_GO.wait(30)
        if step.start:
            self.words[step.id] = []
        if str(fields["word"]) == "bad":
            raise ValueError("a bad word")
        self.words[step.id].append(str(fields["word"]))
        text = f"{'START' if step.start else ''}{'END' if step.end else ''}"
        return {"trail": " ".join(self.words[step.id]), "said": text, "fed": ",".join(fields)}


@pytest.fixture(scope="module")
def server():
    op = Trail("trail", RequestOp(), sequence=SEQUENCE)
    with server_for(op) as made:
        yield made


def live(server):
    return server.executor.state().ops[0].sequences.live


@pytest.fixture(params=["grpc", "http", "two"])
def client(request, server):
    door = f"127.0.0.1:{server.rpc_port}"
    if request.param == "http":
        door = f"http://127.0.0.1:{server.http_port}/svc"
    with PipelineClient() as client:
        client.connect([door] * (2 if request.param == "two" else 1))
        yield client


def words_and_flag(answer):
    answer.raise_for_error()
    return answer["trail"], answer["said"]


def test_a_block_is_a_sequence(server, client):
    with client.sequence() as sequence:
        assert words_and_flag(sequence.predict({"word": "a"})) == ("a", "START")
        assert words_and_flag(sequence.predict({"word": "b"}, ["trail", "said"])) == ("a b", "")
        assert live(server) == 1
    wait_until(lambda: live(server) == 0)
    with pytest.raises(ClosedError, match="has ended"):
        sequence.predict({"word": "c"})


def test_the_op_is_notified_of_an_end_in_a_request(server, client):
    with client.sequence("named") as sequence:
        sequence.predict({"word": "a"})
        assert words_and_flag(sequence.predict({"word": "b"}, end=True)) == ("a b", "END")
        wait_until(lambda: live(server) == 0)
        with pytest.raises(ClosedError, match="has ended"):
            sequence.predict({"word": "c"})


@pytest.mark.parametrize("as_tensors", [False, True])
def test_ops_are_fed_data_alone(client, as_tensors):
    many = np.zeros(40_000)  # read beside the event loop
    with client.sequence(7) as sequence:
        feed = {"word": "a", "x": many}
        fed = sequence.predict(feed, pack_tensor_format=as_tensors)
        assert fed["fed"] == "word,x"


def test_an_exception_ends_the_sequence(server, client):
    with client.sequence() as sequence:
        sequence.predict({"word": "a"})
        sequence.__exit__(KeyError, KeyError(), None)
        wait_until(lambda: live(server) == 0)
    wait_until(lambda: live(server) == 0)


def test_a_first_request_that_failed_may_be_sent_again(client):
    with client.sequence() as sequence:
        assert sequence.predict({"word": "bad"}).err_no
        assert words_and_flag(sequence.predict({"word": "a"})) == ("a", "START")
        assert sequence.predict({"word": "bad"}).err_no
        assert words_and_flag(sequence.predict({"word": "b"})) == ("a b", "")


def test_wrong_ids_and_keys_are_refused(client):
    for id in (True, 1.5, b"a", 0, ""):
        with pytest.raises(TypeError, match="the id of a sequence"):
            client.sequence(id)
    with client.sequence() as sequence, pytest.raises(TypeError, match="the sequence sets it"):
        sequence.predict({"word": "a", "sequence_end": "1"})


def test_a_sequence_without_requests_sends_nothing():
    with PipelineClient() as client:
        client.connect("127.0.0.1:1")
        with client.sequence():
            pass
        with pytest.raises(grpc.RpcError), client.sequence() as sequence:
            sequence.predict({"word": "a"})


def test_before_connect_there_is_no_sequence():
    with pytest.raises(ClosedError, match="call connect"):
        PipelineClient().sequence()


# Pipelined ------------------------------------------------------------------------------------


@pytest.fixture
def over_grpc(server):
    with PipelineClient() as client:
        client.connect(f"127.0.0.1:{server.rpc_port}")
        yield client


def test_requests_that_are_not_awaited_keep_their_order(server, over_grpc):
    large = np.zeros(40_000)
    with over_grpc.sequence() as sequence:
        feeds = [{"word": str(n), **({"x": large} if n % 3 == 0 else {})} for n in range(20)]
        answers = [sequence.predict(feed, asyn=True, pack_tensor_format=True) for feed in feeds]
        last = sequence.predict({"word": "last"})
        trails = [answer.result(30)["trail"] for answer in answers]
    assert trails == [" ".join(map(str, range(n + 1))) for n in range(20)]
    assert words_and_flag(last)[0].endswith("19 last")
    wait_until(lambda: live(server) == 0)


def test_a_request_cancelled_before_it_is_sent_is_never_sent(over_grpc):
    MAY_GO.clear()
    with over_grpc.sequence() as sequence:
        first, second, third = [sequence.predict({"word": word}, asyn=True) for word in "abc"]
        assert second.cancel()
        assert second.done()
        MAY_GO.set()
        with pytest.raises(grpc.FutureCancelledError):
            second.result()
        assert [words_and_flag(call.result(30))[0] for call in (first, third)] == ["a", "a c"]


def test_a_short_timeout_of_a_result_raises(over_grpc):
    MAY_GO.clear()
    with over_grpc.sequence() as sequence:
        call = sequence.predict({"word": "a"}, asyn=True)
        with pytest.raises(grpc.FutureTimeoutError):
            call.result(0)
        MAY_GO.set()
        assert words_and_flag(call.result(30))[0] == "a"


def test_an_exception_cancels_running_requests(server, over_grpc):
    MAY_GO.clear()
    calls = []
    with pytest.raises(KeyError):
        _leave_with_an_error(over_grpc, calls)
    MAY_GO.set()
    for call in calls:
        with pytest.raises(grpc.FutureCancelledError):
            call.result(30)
    wait_until(lambda: live(server) == 0)


def _leave_with_an_error(client, calls):
    with client.sequence() as sequence:
        calls += [sequence.predict({"word": word}, asyn=True) for word in "abc"]
        raise KeyError


def test_asyn_over_http_is_refused(server):
    with PipelineClient() as client:
        client.connect(f"http://127.0.0.1:{server.http_port}/svc")
        with client.sequence() as sequence:
            call = sequence.predict({"word": "a"}, asyn=True)
            with pytest.raises(NotImplementedByOpError, match="asyn=True is for gRPC"):
                call.result()


# With asyncio ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["grpc", "http", "two"])
def test_tasks_of_one_sequence_keep_their_order(server, kind):
    door = f"127.0.0.1:{server.rpc_port}"
    if kind == "http":
        door = f"http://127.0.0.1:{server.http_port}/svc"
    asyncio.run(_in_tasks([door] * (2 if kind == "two" else 1)))
    wait_until(lambda: live(server) == 0)


async def _in_tasks(doors):
    async with AsyncPipelineClient() as client:
        client.connect(doors)
        async with client.sequence() as sequence:
            answers = await asyncio.gather(
                *(sequence.predict({"word": str(n)}) for n in range(5)),
                sequence.predict({"word": "5"}, end=True),
            )
        assert [words_and_flag(answer)[0] for answer in answers][-1] == "0 1 2 3 4 5"
        assert [words_and_flag(answer)[1] for answer in answers] == ["START", "", "", "", "", "END"]
        with pytest.raises(ClosedError):
            await sequence.predict({"word": "6"})
        sequence = client.sequence()
        await sequence.predict({"word": "a"})
        await sequence.__aexit__(KeyError, KeyError(), None)
