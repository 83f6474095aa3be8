"""A fleet on a virtual clock, with nodes that the test plays."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from doubles import virtual

from pipeline.cluster.bundle import ScriptBundle
from pipeline.cluster.fleet import Fleet, FleetRelease, ReplicaGoneError
from pipeline.cluster.node_server import ReplicaReport
from pipeline.cluster.plan import MAX_FAILURES, ReplicaPhase
from pipeline.cluster.ray_fleet import PutReleases
from pipeline.errors import InitError

RELEASE = FleetRelease(ScriptBundle("web_server.py"))


class PlayedNodes:
    """Nodes whose replicas are what `looks` says, ready where it says nothing."""

    def __init__(self) -> None:
        self.looks: dict[str, ReplicaReport | Exception | None] = {}
        self.releases: dict[str, FleetRelease] = {}
        self.stopped: list[str] = []
        self.killed: list[str] = []
        self.refuses = False

    def start(self, name: str, release: FleetRelease) -> str:
        if self.refuses:
            raise ValueError("no node has so many cards")
        self.releases[name] = release
        return name

    async def look(self, handle: str) -> tuple[ReplicaReport, str]:
        number = handle.rpartition("-")[2]
        look = self.looks.get(handle, ReplicaReport(ReplicaPhase.READY, f"10.0.0.{number}:1/2"))
        if look is None:
            await asyncio.Event().wait()
        if isinstance(look, Exception):
            raise look
        assert isinstance(look, ReplicaReport)
        return look, f"node {number}"

    async def stop(self, handle: str, grace_s: float) -> None:
        self.stopped.append(handle)

    def kill(self, handle: str) -> None:
        self.killed.append(handle)


class Fixture:
    """A fleet that works, until the block ends."""

    def __init__(self) -> None:
        self.nodes = PlayedNodes()
        self.fleet = Fleet("f", self.nodes, asyncio.get_running_loop().time)
        self._run = asyncio.create_task(self.fleet.run())

    async def __aenter__(self) -> Fixture:
        self.fleet.want(RELEASE, 2)
        await asyncio.sleep(3)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._run.cancel()
        with suppress(asyncio.CancelledError):
            await self._run

    def phases(self) -> list[tuple[int, ReplicaPhase]]:
        return [(replica.number, replica.phase) for replica in self.fleet.view().replicas]


@virtual
async def test_replicas_are_listed_when_they_are_ready():
    async with Fixture() as it:
        view = it.fleet.view()
        assert view.addresses == ["10.0.0.1:1/2", "10.0.0.2:1/2"]
        assert view.is_reached
        assert {replica.node for replica in view.replicas} == {"node 1", "node 2"}


@virtual
async def test_an_update_stops_the_old_replicas_and_kills_the_remaining_ones():
    async with Fixture() as it:
        it.fleet.want(RELEASE, None)
        await asyncio.sleep(30)
        assert it.phases() == [(3, ReplicaPhase.READY), (4, ReplicaPhase.READY)]
        assert sorted(it.nodes.stopped) == sorted(it.nodes.killed) == ["f-1", "f-2"]


@virtual
async def test_a_replica_of_a_lost_node_is_replaced():
    async with Fixture() as it:
        it.nodes.looks["f-1"] = ReplicaGoneError("the node died")
        await asyncio.sleep(5)
        assert it.phases() == [(2, ReplicaPhase.READY), (3, ReplicaPhase.READY)]


@virtual
async def test_a_replica_without_answers_is_replaced():
    async with Fixture() as it:
        it.nodes.looks["f-2"] = None
        await asyncio.sleep(60)
        assert it.phases() == [(1, ReplicaPhase.READY), (3, ReplicaPhase.READY)]


@virtual
async def test_a_replica_that_waits_for_a_node_is_not_replaced():
    async with Fixture() as it:
        it.nodes.looks["f-3"] = None
        it.fleet.want(None, 3)
        await asyncio.sleep(600)
        assert it.phases()[-1] == (3, ReplicaPhase.STARTING)
        assert it.fleet.view().replicas[-1].detail == "waits for a node with room"


@virtual
async def test_a_failing_release_is_stuck_with_the_reason():
    async with Fixture() as it:
        for number in range(3, 20):
            it.nodes.looks[f"f-{number}"] = ReplicaReport(ReplicaPhase.FAILED, "", "no model")
        it.fleet.want(RELEASE, None)
        await asyncio.sleep(60)
        view = it.fleet.view()
        assert (view.is_stuck, view.reason) == (True, "no model")
        assert it.phases() == [(1, ReplicaPhase.READY), (2, ReplicaPhase.READY)]
        assert len(it.nodes.releases) == 2 + MAX_FAILURES


@virtual
async def test_a_rollback_restores_the_release_and_the_next_one_has_a_new_number():
    async with Fixture() as it:
        assert it.fleet.roll_back() == 0
        for number in range(3, 6):
            it.nodes.looks[f"f-{number}"] = ReplicaReport(ReplicaPhase.FAILED, "", "no model")
        it.fleet.want(RELEASE, None)
        await asyncio.sleep(60)
        assert it.fleet.roll_back() == 1
        await asyncio.sleep(5)
        assert it.fleet.view().is_reached
        it.fleet.want(RELEASE, 1)
        await asyncio.sleep(30)
        assert [replica.release for replica in it.fleet.view().replicas] == [3]


@virtual
async def test_a_replica_that_is_temporarily_not_ready_stays_listed():
    async with Fixture() as it:
        it.nodes.looks["f-1"] = ReplicaReport(
            ReplicaPhase.UNREADY, "10.0.0.1:1/2", "an Op lacks workers"
        )
        await asyncio.sleep(20)
        assert it.phases() == [(1, ReplicaPhase.UNREADY), (2, ReplicaPhase.READY)]
        assert len(it.fleet.view().addresses) == 2


@virtual
async def test_a_replica_that_nodes_cannot_start_is_a_failure():
    async with Fixture() as it:
        it.nodes.refuses = True
        it.fleet.want(RELEASE, None)
        await asyncio.sleep(60)
        view = it.fleet.view()
        assert (view.is_stuck, "so many cards" in view.reason) == (True, True)
        assert it.phases() == [(1, ReplicaPhase.READY), (2, ReplicaPhase.READY)]


@virtual
async def test_a_fleet_ends_only_without_replicas_and_then_accepts_none():
    async with Fixture() as it:
        it.fleet.want(None, 0)
        assert not it.fleet.end()
        await asyncio.sleep(30)
        it.fleet.want(None, 1)
        assert not it.fleet.end()
        it.fleet.want(None, 0)
        await asyncio.sleep(30)
        assert it.fleet.end()
        with pytest.raises(InitError, match="try again"):
            it.fleet.want(RELEASE, 2)


@virtual
async def test_replicas_of_no_release_are_refused():
    fleet = Fleet("f", PlayedNodes(), asyncio.get_running_loop().time)
    with pytest.raises(InitError, match="has no release yet"):
        fleet.want(None, 2)
    fleet.want(None, 0)
    assert fleet.view().is_reached


def test_a_release_is_put_once_and_forgotten_with_the_fleets():
    put: list[bytes] = []
    releases = PutReleases(lambda data: put.append(data) or len(put))
    first = FleetRelease(ScriptBundle("a.py"))
    assert (releases.of(first), releases.of(first)) == (1, 1)
    for number in range(2, 5):  # they come to the same place in memory
        del first
        first = FleetRelease(ScriptBundle(f"{number}.py"))
        assert releases.of(first) == number
