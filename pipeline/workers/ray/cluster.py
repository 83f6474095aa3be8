"""RayCluster: implements RayApi with Ray. No other module imports Ray."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pipeline.config.sections import RayConfig
from pipeline.errors import InitError, described
from pipeline.system.script import MODULES
from pipeline.workers.ray.api import (
    ActorGoneError,
    Demands,
    ObjectGoneError,
    OnValue,
    UnreachableError,
)

_MISSING = "`workers: ray` needs Ray: pip install 'pipeline-serving[ray]'"
_CONTROL = "control"  # the group of threads for methods that do not wait for batches
_CONTROL_THREADS = 4


class _Connection:
    """The one connection of this process, which the pipelines of a server share."""

    lock = threading.Lock()
    users = 0
    is_own = False


class RayCluster:
    """See `RayApi`. A connection that the script opened before is used, and stays open."""

    def __init__(self) -> None:
        self.where: Callable[[], str] = node_id
        self._is_connected = False
        self._classes: dict[type, Any] = {}

    def connect(self, config: RayConfig) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError as error:
            raise InitError(_MISSING) from error
        for module in MODULES:  # they cannot be imported elsewhere
            ray.cloudpickle.register_pickle_by_value(module)
        with _Connection.lock:
            if not ray.is_initialized():
                try:
                    self._init(ray, config)
                except Exception as error:  # Ray raises many types
                    where = f"dag.ray.address {config.address!r}"
                    raise InitError(f"{where}: no connection to Ray: {described(error)}") from error
                _Connection.is_own = True
            _Connection.users += 1
            self._is_connected = True

    def _init(self, ray: Any, config: RayConfig) -> None:
        common: dict[str, Any] = {"logging_level": "error"}
        if config.working_dir is not None:
            common["runtime_env"] = {"working_dir": config.working_dir}
        if config.address not in ("auto", "local"):
            ray.init(address=config.address, **common)
            return
        if config.address == "auto":
            try:
                ray.init(address="auto", **common)
            except ConnectionError:  # no cluster runs on this machine
                pass
            else:
                return
        own: dict[str, Any] = {"include_dashboard": False, "num_cpus": config.num_cpus}
        if config.object_store_mib is not None:
            own["object_store_memory"] = config.object_store_mib * 2**20
        ray.init(address="local", **own, **common)

    def start(self, actor: type, cargo: Any, demands: Demands, name: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        strategy: Any = "SPREAD" if demands.spreads else "DEFAULT"
        if demands.node is not None:
            # Otherwise the actor would wait for room on this node; Ray has no public option for it.
            strategy = NodeAffinitySchedulingStrategy(
                demands.node, soft=True, _spill_on_unavailable=True
            )
        made = self._remote(actor).options(
            num_cpus=demands.num_cpus,
            num_gpus=demands.num_gpus,
            resources=dict(demands.resources),
            scheduling_strategy=strategy,
            max_restarts=0,  # the pool starts another actor itself, and so knows each one
        )
        return made.remote(cargo)

    def _remote(self, actor: type) -> Any:
        import ray

        made = self._classes.get(actor)
        if made is None:
            groups = {_CONTROL: _CONTROL_THREADS}
            made = self._classes[actor] = ray.remote(concurrency_groups=groups)(actor)
        return made

    def call(self, actor: Any, method: str, args: Sequence[Any], returns: int) -> list[Any]:
        bound = getattr(actor, method)
        if returns == 1:
            return [bound.remote(*args)]
        refs: list[Any] = bound.options(num_returns=returns).remote(*args)
        return refs

    def put(self, value: Any) -> Any:
        import ray

        return ray.put(value)

    def get(self, ref: Any, timeout_s: float) -> Any:
        import ray

        try:
            return ray.get(ref, timeout=timeout_s)
        except Exception as error:
            raise ObjectGoneError(described(error)) from error

    def when_done(self, ref: Any, notify: OnValue) -> None:
        def pass_on(future: Any) -> None:
            error = future.exception()
            notify(None if error else future.result(), error and _converted(error))

        ref.future().add_done_callback(pass_on)

    def kill(self, actor: Any) -> None:
        import ray

        ray.kill(actor)

    def describe_room(self) -> str:
        import ray

        nodes = [node for node in ray.nodes() if node.get("Alive")]
        rooms = [
            ", ".join(
                f"{name} {amount:g}"
                for name, amount in sorted(node["Resources"].items())
                if not name.startswith(("node:", "memory", "object_store"))
            )
            for node in nodes
        ]
        return f"{len(nodes)} nodes: {'; '.join(rooms)}"

    def close(self) -> None:
        import ray

        with _Connection.lock:
            _Connection.users -= self._is_connected
            self._is_connected = False
            if _Connection.is_own and not _Connection.users:
                _Connection.is_own = False
                ray.shutdown()


Method = TypeVar("Method", bound=Callable[..., Any])


def in_parallel(method: Method) -> Method:
    """Mark a method of an actor that runs in parallel with its batches.

    `ray.method` would need an import of Ray in the actor's module. A mark that is set later would
    be missing with `ray://`, where Ray's server imports the actor by its name.
    """
    method.__ray_concurrency_group__ = _CONTROL  # type: ignore[attr-defined]
    return method


def node_id() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


def _converted(error: BaseException) -> Exception:
    """Return the error of `api` that corresponds to one of Ray."""
    from ray import exceptions as ray_errors

    text = _first_line(error)
    if isinstance(error, ray_errors.ActorUnavailableError):
        return UnreachableError(text)
    if isinstance(
        error, ray_errors.RayActorError | ray_errors.NodeDiedError | ray_errors.WorkerCrashedError
    ):
        return ActorGoneError(text)
    cause = getattr(error, "cause", None)  # an argument of the call could not be fetched
    lost = ray_errors.ObjectLostError | ray_errors.ObjectStoreFullError | ray_errors.OutOfDiskError
    if isinstance(error, lost) or isinstance(cause, lost):
        return ObjectGoneError(text)
    return error if isinstance(error, Exception) else RuntimeError(text)


def _first_line(error: BaseException) -> str:
    """Return the reason in an error's text, without Ray's hints to its log files."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = next((line for line in lines if line.startswith("The actor is dead because")), None)
    return (reason or (lines[0] if lines else type(error).__name__))[:300]
