"""Questions that go to all copies of a server: who answers, who does not, and who is gone."""

from __future__ import annotations

import asyncio

import msgspec
from doubles import settle, virtual

from pipeline.engine.state import EngineState
from pipeline.observe.snapshot import NO_REPLICA, ModelCounters, Snapshot
from pipeline.runtime.replica_query import (
    SNAPSHOT,
    QueryClient,
    QueryReply,
    QueryRequest,
    ReplicaQuery,
)


def last_of(name: str, count: int = 1) -> bytes:
    """A Snapshot of a member that has answered so many requests."""
    state = EngineState(is_ready=True, inside=0, waiting=0, accepted=0, rejected=0)
    models = [ModelCounters("svc", success_count=count), ModelCounters(name)]
    return msgspec.msgpack.encode(Snapshot(1, state, models))


class Copy:
    """A member that is asked; the test answers for it."""

    def __init__(self, name: str) -> None:
        self.snapshots = {SNAPSHOT: last_of(name)}
        self.asked: list[QueryRequest] = []
        self.replies: list[QueryReply] = []

    def send_query(self, question: QueryRequest) -> None:
        self.asked.append(question)

    def send_reply(self, reply: QueryReply) -> None:
        self.replies.append(reply)


def queries_of(*copies: Copy) -> ReplicaQuery:
    return ReplicaQuery(lambda: copies)


def counted(snapshot: bytes) -> tuple[int, int]:
    """(replica, requests) of a Snapshot."""
    result = msgspec.msgpack.decode(snapshot, type=Snapshot)
    return result.replica, result.models[0].success_count


@virtual
async def test_a_query_is_sent_to_all_replicas_and_the_reply_to_its_sender():
    one, two = Copy("one"), Copy("two")
    queries = queries_of(one, two)
    queries.on_exit(Copy("gone"))
    queries.start(one, QueryRequest(7, SNAPSHOT, 1.0))
    assert [copy.asked[0].text for copy in (one, two)] == [SNAPSHOT, SNAPSHOT]
    queries.on_reply(two, QueryReply(two.asked[0].number, [b"2"]))
    assert one.replies == []
    queries.on_reply(one, QueryReply(one.asked[0].number, [b"1"]))
    (reply,) = one.replies
    assert (reply.number, sorted(reply.answers[:2])) == (7, [b"1", b"2"])
    assert list(map(counted, reply.answers[2:])) == [(NO_REPLICA, 1)]
    assert two.replies == []


@virtual
async def test_a_silent_replica_is_replaced_by_its_last_snapshot_and_its_late_answer_dropped():
    one, two = Copy("one"), Copy("two")
    queries = queries_of(one, two)
    queries.start(one, QueryRequest(0, SNAPSHOT, 1.0))
    queries.on_reply(one, QueryReply(one.asked[0].number, [b"1"]))
    assert one.snapshots == {SNAPSHOT: b"1"}, "what was shown is kept for when it is dead"
    await asyncio.sleep(1.5)
    (reply,) = one.replies
    assert reply.answers == [b"1", last_of("two")]
    queries.on_reply(two, QueryReply(two.asked[0].number, [b"late"]))
    assert len(one.replies) == 1


@virtual
async def test_an_ended_replica_is_not_waited_for():
    one, two = Copy("one"), Copy("two")
    queries = queries_of(one, two)
    queries.start(one, QueryRequest(0, "how", 1.0))
    queries.on_reply(one, QueryReply(one.asked[0].number, [b"1"]))
    queries.on_exit(two)
    assert [reply.answers for reply in one.replies] == [[b"1"]]


@virtual
async def test_an_answer_counts_once_and_an_empty_one_is_ignored():
    one, two = Copy("one"), Copy("two")
    queries = queries_of(one, two)
    queries.start(one, QueryRequest(0, "how", 1.0))
    for _ in range(2):
        queries.on_reply(one, QueryReply(one.asked[0].number, [b"1"]))
    queries.on_reply(two, QueryReply(two.asked[0].number, [b""]))
    assert [reply.answers for reply in one.replies] == [[b"1"]]


@virtual
async def test_a_replica_gets_the_reply_to_its_own_query_or_an_empty_one():
    sent: list[QueryRequest] = []
    asker = QueryClient(sent.append)
    first = asyncio.ensure_future(asker.ask("a", 1.0))
    second = asyncio.ensure_future(asker.ask("b", 1.0))
    await settle()
    asker.on_reply(QueryReply(sent[1].number, [b"b"]))
    assert await second == [b"b"]
    assert await first == []
    asker.on_reply(QueryReply(sent[0].number, [b"too late"]))


@virtual
async def test_an_ended_replica_is_not_counted_twice():
    one, two = Copy("one"), Copy("two")
    queries = queries_of(one, two)
    queries.start(two, QueryRequest(0, SNAPSHOT, 1.0))
    queries.on_reply(one, QueryReply(one.asked[0].number, [last_of("gone", 4)]))
    queries.on_exit(one)
    queries.on_reply(two, QueryReply(two.asked[0].number, [b"2"]))
    (reply,) = two.replies
    assert reply.answers[0] == b"2"
    assert list(map(counted, reply.answers[1:])) == [(NO_REPLICA, 4)]


@virtual
async def test_the_recording_of_an_ended_replica_is_included():
    one, two = Copy("one"), Copy("two")
    queries = queries_of(one, two)
    queries.start(two, QueryRequest(0, "record", 1.0))
    queries.on_reply(one, QueryReply(one.asked[0].number, [b"1"]))
    queries.on_exit(one)
    queries.on_reply(two, QueryReply(two.asked[0].number, [b"2"]))
    assert sorted(two.replies[0].answers) == [b"1", b"2"]


@virtual
async def test_counters_of_each_pipeline_outlive_a_replica():
    one, two = Copy("one"), Copy("two")
    queries = queries_of(two)
    for copy in (one, two):
        copy.snapshots = {"chat snapshot": last_of("a", 3), "embed snapshot": last_of("b", 5)}
    queries.on_exit(one)
    queries.start(two, QueryRequest(0, "embed snapshot", 1.0))
    await asyncio.sleep(1.5)
    (reply,) = two.replies
    assert list(map(counted, reply.answers)) == [(NO_REPLICA, 5), (1, 5)]
