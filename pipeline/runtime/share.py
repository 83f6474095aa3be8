"""Share: what the graphs of a server have in common, as config.yml says."""

from __future__ import annotations

import asyncio

import msgspec

from pipeline.config import registry
from pipeline.config.schema import ServiceConfig
from pipeline.engine.op.answer_cache import ServerCache
from pipeline.engine.op.rate_limiter import RateLimiter
from pipeline.errors import InitError, PipelineError, described
from pipeline.observe.custom_metrics import CustomMetrics
from pipeline.runtime.earlier_counters import EarlierCounters
from pipeline.stores.base import InputStore, open_store


class Share(msgspec.Struct, frozen=True):
    """Parts that all graphs of a server have together.

    Args:
        cache: where answers are kept; None: nowhere.
        limiter: of the resources of their workers; None: none waits for any.
        store: where callers leave large inputs; None: nowhere.
        metrics: that the code of models counts in.
        earlier: what models have counted that were loaded anew since.
    """

    cache: ServerCache | None = None
    limiter: RateLimiter | None = None
    store: InputStore | None = None
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


def share_of(config: ServiceConfig) -> Share:
    """Return what a configuration says, which is not open. Raises ConfigError, InitError."""
    limiter = None
    if config.rate_limit.mode != "off":
        resources = config.rate_limit.resources
        limiter = RateLimiter({(each.device, each.name): each.count for each in resources})
    store = None if config.payload_store is None else open_store(config.payload_store)
    return Share(cache_of(config), limiter, store)


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
