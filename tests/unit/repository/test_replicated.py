"""Replicas of a server: all load what one loads, also while a replica dies or joins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import pytest
from doubles import settle, virtual

from pipeline.errors import InitError
from pipeline.frontends.v2.control import Overrides
from pipeline.frontends.v2.errors import V2Error
from pipeline.repository.control import ControlSettings
from pipeline.repository.replicated import ReplicatedControl
from pipeline.runtime.replica_query import QueryClient, QueryReply, QueryRequest, ReplicaQuery
from pipeline.runtime.service import ReplicaContext

Loading = Callable[[], Awaitable[Any]]


class Control(ReplicatedControl):
    """A replica whose loads the test lets succeed or fail; `loaded` has its models' names."""

    def __init__(self, folder: Any, replica: ReplicaContext, loading: Loading) -> None:
        super().__init__(ControlSettings((folder,), "explicit"), cast(Any, None), replica)
        self.loaded: list[str] = []
        self.loading = loading

    async def _bring(
        self, wanted: Mapping[str, Overrides], is_inner: bool = False
    ) -> dict[str, V2Error]:
        if wanted:
            await self.loading()
            self.loaded += wanted
        return {}

    async def _drop(self, names: Any) -> None:
        self.loaded = [name for name in self.loaded if name not in names]

    @property
    def is_ready(self) -> bool:
        return True


class Replica:
    """One replica, and the server's side of it."""

    def __init__(self, server: Server, number: int, loading: Loading) -> None:
        self.server, self.number, self.has_left = server, number, False
        self.snapshots: dict[str, bytes] = {}
        self.client = QueryClient(lambda question: server.queries.start(self, question))
        self.context = ReplicaContext(number, 3, lambda is_ready: None, self.client.ask)
        object.__setattr__(self.context, "leave", lambda: server.end(self))
        self.control = Control(server.folder, self.context, loading)
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self.control.start()
        self.server.members.append(self)
        await self.control.catch_up()

    def send_query(self, request: QueryRequest) -> None:
        self.tasks.append(asyncio.ensure_future(self._answer(request)))

    def send_reply(self, reply: QueryReply) -> None:
        self.client.on_reply(reply)

    async def _answer(self, request: QueryRequest) -> None:
        word, _, rest = request.text.partition(" ")
        answer = await self.context.answers[word](rest, request.number)
        self.server.queries.on_reply(self, QueryReply(request.number, [answer]))


class Server:
    def __init__(self, folder: Any) -> None:
        self.folder = folder
        self.members: list[Replica] = []
        self.queries = ReplicaQuery(lambda: list(self.members))

    async def add(self, number: int, loading: Loading | None = None) -> Replica:
        replica = Replica(self, number, loading or load_at_once)
        await replica.start()
        return replica

    def end(self, replica: Replica) -> None:
        """End a replica, with its work."""
        replica.has_left = True
        self.members.remove(replica)
        for task in replica.tasks:
            task.cancel()
        self.queries.on_exit(replica)


async def load_at_once() -> None:
    """Load at once."""


async def failing() -> None:
    raise OSError("no space left")


async def missing() -> None:
    raise InitError("there is no such model")


@virtual
async def test_a_missing_model_leaves_no_state(tmp_path):
    one = await Server(tmp_path).add(0, missing)
    with pytest.raises(V2Error, match="no such model"):
        await one.control.load("m", Overrides())
    assert not one.control._turns_of


@virtual
async def test_any_error_of_a_load_is_returned_to_the_client(tmp_path):
    server = Server(tmp_path)
    one = await server.add(0, failing)
    with pytest.raises(V2Error, match="model 'm': OSError: no space left"):
        await one.control.load("m", Overrides())
    assert not one.has_left


@virtual
async def test_a_replica_whose_load_alone_fails_leaves(tmp_path):
    server = Server(tmp_path)
    one, two = await server.add(0), await server.add(1, failing)
    await one.control.load("m", Overrides())
    assert (one.has_left, two.has_left) == (False, True)


@virtual
async def test_a_replica_that_joins_during_a_load_also_loads(tmp_path):
    server, gate = Server(tmp_path), asyncio.Event()
    one = await server.add(0, gate.wait)
    loads = asyncio.ensure_future(one.control.load("m", Overrides()))
    await settle()
    two = asyncio.ensure_future(server.add(1))
    await settle()
    assert not two.done()
    gate.set()
    await loads
    assert (await two).control.loaded == ["m"]
    assert not one.has_left


@virtual
async def test_a_joining_replica_applies_the_last_change_of_each_model(tmp_path):
    server = Server(tmp_path)
    one = await server.add(0)
    for name in ("m", "n", "m"):
        await one.control.load(name, Overrides())
    await one.control.unload("n")
    two = await server.add(1)
    assert two.control.loaded == ["m"]
    assert not one.has_left


@virtual
async def test_a_replica_that_cannot_do_as_the_others_does_not_start(tmp_path):
    server = Server(tmp_path)
    one = await server.add(0)
    await one.control.load("m", Overrides())
    with pytest.raises(InitError, match="model 'm', as other replicas"):
        await server.add(1, failing)


@virtual
async def test_a_replica_without_the_model_leaves_although_the_leader_died(tmp_path):
    server, gate = Server(tmp_path), asyncio.Event()
    asked, well, behind = [
        await server.add(number, loading)
        for number, loading in enumerate((gate.wait, gate.wait, failing))
    ]
    loads = asyncio.ensure_future(asked.control.load("m", Overrides()))
    await settle()
    server.end(asked)  # killed, with its caller's connection
    loads.cancel()
    gate.set()
    await settle()
    assert (well.control.loaded, behind.control.loaded, behind.has_left) == (["m"], [], False)
    again = await server.add(0)
    assert again.control.loaded == ["m"]
    assert (well.has_left, behind.has_left) == (False, True)


@virtual
async def test_a_joining_replica_does_not_wait_for_later_changes(tmp_path):
    server, gate = Server(tmp_path), asyncio.Event()
    one, two = await server.add(0, gate.wait), await server.add(1)
    first = asyncio.ensure_future(one.control.load("m", Overrides()))
    await settle()
    comes = asyncio.ensure_future(server.add(2))  # and waits for replica 0
    await settle()
    second = asyncio.ensure_future(two.control.load("n", Overrides()))
    await settle()
    gate.set()
    await asyncio.gather(first, second)
    three = await comes
    assert [sorted(item.control.loaded) for item in (one, two, three)] == [["m", "n"]] * 3
    assert not any(item.has_left for item in (one, two, three))
