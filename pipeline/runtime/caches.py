"""The cache of a server, as config.yml says."""

from __future__ import annotations

from pipeline.config import registry
from pipeline.config.schema import ServiceConfig
from pipeline.engine.answer_cache import ServerCache
from pipeline.errors import InitError, PipelineError, described


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
