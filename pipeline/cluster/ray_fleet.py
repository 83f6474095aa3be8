"""Fleets on Ray: replicas as actors on its nodes, the fleet as one that outlives its maker."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from pipeline.cluster.fleet import Fleet, FleetRelease, ReplicaGoneError
from pipeline.cluster.node_server import NodeServer, ReplicaReport
from pipeline.errors import InitError, described

NAMESPACE = "pipeline"
"""Ray's namespace of all fleets."""

_HEAD = {"node:__internal_head__": 0.001}  # Ray's own name of the node that the cluster ends with
_ANSWER_TIMEOUT_S = 60.0
_MISSING = "a cluster needs Ray: pip install 'pipeline-serving[ray]'"


class ReplicaActor:
    """A replica on its node: a process of Ray's, whose child is the server."""

    def __init__(self, release: bytes, version: str, environment: Mapping[str, str]) -> None:
        ray = _ray()
        _check_version(version)
        wanted = msgspec.msgpack.decode(release, type=FleetRelease)
        host = ray.util.get_node_ip_address()
        self._node = f"{host} ({ray.get_runtime_context().get_node_id()[:8]})"
        settings = {_variable(key): value for key, value in wanted.settings.items()}
        self._server = NodeServer(wanted.bundle, host, {**environment, **settings})
        self._server.start()

    def look(self) -> tuple[ReplicaReport, str]:
        """Return what the server is, and the node."""
        return self._server.look(), self._node

    def stop(self, grace_s: float) -> None:
        """End the server."""
        self._server.stop(grace_s)


class PutReleases:
    """Releases as nodes get them: each is put once, and kept as long as the fleet has it."""

    def __init__(self, put: Callable[[bytes], Any]) -> None:
        self._put = put
        self._known: WeakKeyDictionary[FleetRelease, Any] = WeakKeyDictionary()

    def of(self, release: FleetRelease) -> Any:
        if release not in self._known:
            self._known[release] = self._put(msgspec.msgpack.encode(release))
        return self._known[release]


class RayNodes:
    """The nodes of a Ray cluster, which run replicas. In the fleet's actor."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._releases = PutReleases(lambda data: _ray().put(data))

    def start(self, name: str, release: FleetRelease) -> Any:
        """Return a handle of a new replica, which starts as soon as a node has room for it."""
        ray = _ray()
        made = ray.remote(ReplicaActor).options(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=release.num_cpus,
            num_gpus=release.num_gpus,
            resources=dict(release.resources),
            scheduling_strategy="SPREAD",
            max_restarts=0,  # the fleet starts another one
            max_concurrency=4,
        )
        arguments = (self._releases.of(release), library_version(), self._environment)
        return made.remote(*arguments)

    async def look(self, handle: Any) -> tuple[ReplicaReport, str]:
        """Return what a replica is, and the name of its node, waited for.

        Raises ReplicaGoneError: there is none any more.
        """
        answer: tuple[ReplicaReport, str] = await _answer(handle.look.remote())
        return answer

    async def stop(self, handle: Any, grace_s: float) -> None:
        await _answer(handle.stop.remote(grace_s))

    def kill(self, handle: Any) -> None:
        _ray().kill(handle)


async def _answer(ref: Any) -> Any:
    try:
        return await ref
    except _ray().exceptions.RayError as error:
        raise ReplicaGoneError(reason_of(error)) from error


class FleetActor:
    """The fleet, in a process of its own on the head node. It works while Ray does."""

    def __init__(self, name: str, environment: Mapping[str, str]) -> None:
        self._fleet = Fleet(name, RayNodes(environment))
        self._running: asyncio.Task[None] | None = None

    async def want(self, release: bytes | None, replicas: int | None, version: str) -> None:
        """Change what is wanted, see `Fleet.want`."""
        _check_version(version)
        if self._running is None:
            self._running = asyncio.create_task(self._fleet.run())
        wanted = None if release is None else msgspec.msgpack.decode(release, type=FleetRelease)
        self._fleet.want(wanted, replicas)

    async def roll_back(self) -> int:
        """Want the release before again, see `Fleet.roll_back`."""
        return self._fleet.roll_back()

    async def end(self) -> bool:
        """Want nothing any more, see `Fleet.end`."""
        return self._fleet.end()

    async def view(self) -> bytes:
        """Return how it stands, as JSON of a FleetView."""
        return msgspec.json.encode(self._fleet.view())


class RayFleets:
    """The fleets of a Ray cluster, asked from a program.

    Raises InitError everywhere: there is no Ray, no cluster at that address, or it does not answer.
    """

    def __init__(self, address: str) -> None:
        try:
            ray = _ray()
        except ImportError as error:
            raise InitError(_MISSING) from error
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if ray.is_initialized():
            return
        try:
            ray.init(address, namespace=NAMESPACE, logging_level="warning", log_to_driver=False)
        except Exception as error:  # of many kinds
            text = f"no Ray cluster at {address!r}: {described(error)}"
            raise InitError(
                f"{text}. Start one: pipeline cluster local, or ray start --head"
            ) from error

    def find(self, name: str) -> Any:
        ray = _ray()
        try:
            return ray.get_actor(_actor_name(name), namespace=NAMESPACE)
        except ValueError:  # Ray's for a name that nobody has
            raise InitError(
                f"there is no fleet {name!r} in this cluster: pipeline cluster up SCRIPT makes one"
            ) from None

    def find_or_make(self, name: str) -> Any:
        """Return the fleet of this name, a new one if there is none."""
        ray = _ray()
        environment = {"PYTHONPATH": path} if (path := os.environ.get("PYTHONPATH")) else {}
        made = ray.remote(FleetActor).options(
            name=_actor_name(name),
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            resources=_HEAD,
            max_concurrency=64,
        )
        return made.remote(name, environment)

    def ask(self, fleet: Any, method: str, *arguments: Any) -> Any:
        ray = _ray()
        try:
            return ray.get(getattr(fleet, method).remote(*arguments), timeout=_ANSWER_TIMEOUT_S)
        except Exception as error:  # Ray's, or what the fleet raises
            raise InitError(f"the fleet does not answer: {reason_of(error)}") from error

    def end(self, fleet: Any) -> None:
        """End a fleet that has no replicas any more."""
        _ray().kill(fleet)

    def close(self) -> None:
        """Part from the cluster."""
        _ray().shutdown()


def reason_of(error: Exception) -> str:
    """Return what an error of Ray says, without its traces of other processes."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line and ":" in line]
    return (telling or lines or [type(error).__name__])[-1][:500]


def _ray() -> Any:
    """Return the package, which is loaded where it is needed. Raises ImportError."""
    import ray

    return ray


def _actor_name(name: str) -> str:
    return f"fleet:{name}"


def library_version() -> str:
    return str(importlib.import_module("pipeline").__version__)


def _check_version(version: str) -> None:
    if version != (ours := library_version()):
        raise InitError(f"pipeline {version} asks a node that has {ours}: install the same")


def _variable(key: str) -> str:
    return "PIPELINE__" + "__".join(
        part if place else part.upper() for place, part in enumerate(key.split("."))
    )


_STORE_BYTES = 200 * 2**20  # of each node's object store


class LocalCluster:
    """A head and other nodes, all of this machine; `with` it gives the address.

    Raises InitError: there is no Ray here.
    """

    def __init__(self, nodes: int, num_cpus: int) -> None:
        self._nodes = nodes
        self._node = {"num_cpus": num_cpus, "object_store_memory": _STORE_BYTES}
        self.cluster: Any = None

    def __enter__(self) -> str:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            from ray.cluster_utils import Cluster
        except ImportError as error:
            raise InitError("needs Ray: pip install 'pipeline-serving[ray]'") from error
        self.cluster = Cluster()
        try:
            self.cluster.add_node(**self._node, include_dashboard=False)  # the head
            for _ in range(self._nodes - 1):
                self.cluster.add_node(**self._node)
            self.cluster.wait_for_nodes()
        except BaseException:  # also for Ctrl-C: no process of it stays
            self._shut_down()
            raise
        return str(self.cluster.address)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._shut_down()

    def _shut_down(self) -> None:
        with contextlib.suppress(Exception):  # its processes may have ended already
            self.cluster.shutdown()
