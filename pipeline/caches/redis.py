"""The cache `redis`: answers in a Redis server, which several servers share. Needs the extra redis.

Redis itself forgets what is too much, as its `maxmemory-policy` says.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta, Struct

from pipeline.config.fields import Masked
from pipeline.errors import InitError

_PREFIX = b"pipeline:"
_AWAY_S = 1.0  # a server that could not be reached is not asked for so long
_CONNECTIONS = 64
_ERRNO = re.compile(r"(?:Errno |Error\()(\d+)")
_CODES = {"invalid username": "WRONGPASS ", "Authentication required": "NOAUTH "}  # it drops them


class RedisOptions(Struct, frozen=True, kw_only=True):
    """`cache.redis`."""

    host: Annotated[str, "Name or address of the Redis server."]
    port: Annotated[int, Meta(ge=0, le=65535), "Port of the Redis server."]
    user: Annotated[
        str | None, "User name; absent: TRITONCACHE_REDIS_USERNAME, otherwise none."
    ] = None
    password: Annotated[
        str | None,
        Masked(),
        "Password; absent: TRITONCACHE_REDIS_PASSWORD, which is the better place.",
    ] = None
    db: Annotated[int, Meta(ge=0), "Number of the database."] = 0
    timeout_ms: Annotated[
        int, Meta(ge=1), "Timeout of a look-up, ms; a late answer counts as not found."
    ] = 250
    ttl_s: Annotated[int, Meta(ge=0), "Lifetime of an answer, s; 0: no limit."] = 0


class RedisCache:
    """Values by keys in a Redis server. While that cannot be reached nothing is found."""

    Options = RedisOptions
    is_shared: bool = True

    def __init__(self, options: RedisOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._client: Any = None  # redis.asyncio.Redis
        self._asks_from = 0.0

    async def open(self) -> None:
        """Connect. Raises InitError: there is no such server, or it does not let us in."""
        options = self._options
        try:
            from redis.asyncio import BlockingConnectionPool, Redis
            from redis.exceptions import RedisError
        except ImportError as error:
            text = "cache.redis: the client is missing: pip install 'pipeline-serving[redis]'"
            raise InitError(text) from error
        limit_s = options.timeout_ms / 1000
        pool = BlockingConnectionPool(
            host=options.host,
            port=options.port,
            db=options.db,
            protocol=2,
            username=options.user or os.environ.get("TRITONCACHE_REDIS_USERNAME"),
            password=options.password or os.environ.get("TRITONCACHE_REDIS_PASSWORD"),
            socket_timeout=limit_s,
            socket_connect_timeout=limit_s,
            max_connections=_CONNECTIONS,
            timeout=limit_s,
        )
        self._client = Redis(connection_pool=pool)
        try:
            await self._ask("PING")
        except (RedisError, OSError) as error:
            await self.close()
            reason = _reason(error)
            place = f"{options.host}:{options.port}"
            raise InitError(f"failed to connect to Redis ({place}): {reason}") from error

    async def lookup(self, key: bytes) -> bytes | None:
        """Return the value of a key; None: there is none, or the server is away."""
        if self._clock() < self._asks_from:
            return None
        value = await self._ask("GET", _PREFIX + key)
        return value if isinstance(value, bytes) else None

    async def insert(self, key: bytes, value: bytes) -> None:
        """Keep a value, unless the server is away."""
        if self._clock() >= self._asks_from:
            ends = ("EX", self._options.ttl_s) if self._options.ttl_s else ()
            await self._ask("SET", _PREFIX + key, value, *ends)

    async def _ask(self, *command: Any) -> Any:
        try:
            return await self._client.execute_command(*command)
        except Exception:
            self._asks_from = self._clock() + _AWAY_S
            raise

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()
            await self._client.connection_pool.disconnect()  # which it does not take for its own


def _reason(error: Exception) -> str:
    """Return why there is no connection, in the words of the system or of the server."""
    text = str(error)
    number = _ERRNO.search(text) or _ERRNO.search(repr(error.__cause__ or error.__context__))
    if number is not None:
        return os.strerror(int(number[1]))
    code = next((code for start, code in _CODES.items() if text.startswith(start)), "")
    return code + text
