"""Share: what the graphs of a server have in common, as config.yml says."""

from __future__ import annotations

import asyncio

import msgspec

from pipeline.config import registry
from pipeline.config.schema import ServiceConfig
from pipeline.engine.admission import SharedQueue
from pipeline.engine.op.answer_cache import ServerCache
from pipeline.engine.op.rate_limiter import RateLimiter
from pipeline.errors import InitError, PipelineError, described
from pipeline.observe.custom_metrics import CustomMetrics
from pipeline.observe.snapshot import ModelCounters, Snapshot
from pipeline.observe.statistics import merge
from pipeline.runtime.observation import ObservabilityStack
from pipeline.stores.base import InputStore, open_store

_MOST_ENDED = 1024  # versions of models; some servers load models under names that they generate

Version = tuple[str, str]
"""The key of a model in the registry, and its version."""


class EarlierCounters:
    """The counters of loads that are over: metrics continue from there.

    Statistics do not: they cover the current load only. Of more versions of models than
    `_MOST_ENDED`, the versions that ended first are forgotten.
    """

    def __init__(self) -> None:
        self._ended: dict[Version, ModelCounters] = {}
        self._ending: dict[ObservabilityStack, str] = {}

    def ending(self, key: str, observation: ObservabilityStack) -> None:
        """Take note of a load of the model `key` that finishes what it has, and still counts."""
        self._ending[observation] = key

    def ended(self, observation: ObservabilityStack) -> None:
        """Take over what a load has counted that was ending, and is over."""
        for version, model in _models(self._ending.pop(observation), observation.snapshot()):
            self._ended[version] = _added(model, self._ended.pop(version, None))  # now the last
        while len(self._ended) > _MOST_ENDED:
            del self._ended[next(iter(self._ended))]

    def add_to(self, snapshot: Snapshot) -> None:
        """Add what earlier loads of its model have counted to the Snapshot of a `model`."""
        earlier = dict(self._ended)
        for observation, key in self._ending.items():
            for version, model in _models(key, observation.snapshot()):
                earlier[version] = _added(model, earlier.get(version))
        snapshot.models = [
            _added(model, earlier.get((snapshot.model, model.version)) if model.version else None)
            for model in snapshot.models
        ]


def _models(key: str, snapshot: Snapshot) -> list[tuple[Version, ModelCounters]]:
    """Return the model that clients can name: a graph of a repository has one."""
    return [((key, entry.version), entry) for entry in snapshot.models if entry.version]


def _added(model: ModelCounters, earlier: ModelCounters | None) -> ModelCounters:
    """Return a model's counters plus the earlier ones; a value that is not a sum stays."""
    if earlier is None:
        return model
    if earlier.first_part_bounds_ms != model.first_part_bounds_ms:
        earlier = msgspec.structs.replace(earlier, first_part_ms=[])
    (total,) = merge([[model], [earlier]])
    total.memory, total.recent_us, total.caches = model.memory, model.recent_us, model.caches
    total.exemplars = model.exemplars
    return total


class Share(msgspec.Struct, frozen=True):
    """Parts that all graphs of a server have together.

    Args:
        cache: where answers are kept; None: nowhere.
        limiter: of the resources of their workers; None: none waits for any.
        store: where callers leave large inputs; None: nowhere.
        queue: where the requests of all pipelines wait; None: each graph has one of its own.
        metrics: that the code of models counts in.
        earlier: the counts of models from before a reload.
    """

    cache: ServerCache | None = None
    limiter: RateLimiter | None = None
    store: InputStore | None = None
    queue: SharedQueue | None = None
    metrics: CustomMetrics = msgspec.field(default_factory=CustomMetrics)
    earlier: EarlierCounters = msgspec.field(default_factory=EarlierCounters)

    async def open(self) -> None:
        """Open what is to be opened. Raises InitError."""
        if self.cache is not None:
            await self.cache.open()

    async def close(self) -> None:
        """Close it, when there are no graphs any more."""
        if self.cache is not None:
            await self.cache.close()
        if self.store is not None:
            await asyncio.to_thread(self.store.close)


def share_of(config: ServiceConfig, pipelines: int) -> Share:
    """Return what a configuration says, which is not open. Raises ConfigError, InitError.

    `pipelines`: how many share the queue.
    """
    limiter = None
    if config.rate_limit.mode != "off":
        resources = config.rate_limit.resources
        limiter = RateLimiter(
            {(resource.device, resource.name): resource.count for resource in resources}
        )
    store = None if config.payload_store is None else open_store(config.payload_store)
    queue = SharedQueue(config.queue_size, pipelines) if pipelines > 1 else None
    return Share(cache_of(config), limiter, store, queue)


def cache_of(config: ServiceConfig) -> ServerCache | None:
    """Return the cache that a configuration names, which is not open; None: none.

    Raises:
        ConfigError, InitError: it cannot be made.
    """
    for name, options in config.cache.items():
        make = registry.find("caches", name)
        try:
            return ServerCache(name, make(options))
        except PipelineError:
            raise
        except Exception as error:  # a plug-in's
            raise InitError(f"cache.{name}: it cannot be made: {described(error)}") from error
    return None
