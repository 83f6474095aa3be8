"""RedisStore: a Redis server, or one that speaks its protocol. Needs the extra redis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pipeline.errors import InitError, PredictorUnavailableError, TooLargeError

_Result = TypeVar("_Result")

_TIMEOUT_S = 10.0


class RedisStore:
    """Values in a Redis server, at `redis://[user:password@]host:port/db`, `rediss://` for TLS."""

    def __init__(self, url: str) -> None:
        try:
            import redis
        except ImportError as error:
            text = "payload_store: the client is missing: pip install 'pipeline-serving[redis]'"
            raise InitError(text) from error
        self._error: type[Exception] = redis.RedisError
        self._client: Any = redis.Redis.from_url(
            url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
        )

    def put(self, key: str, data: bytes, ttl_s: int) -> None:
        self._ask(lambda: self._client.set(key, data, ex=ttl_s))

    def get(self, key: str, max_bytes: int) -> bytes | None:
        size = self._ask(lambda: int(self._client.strlen(key)))
        if size > max_bytes:
            raise TooLargeError(f"the stored data has {size} bytes; the limit is {max_bytes}")
        value: bytes | None = self._ask(lambda: self._client.get(key))
        return value

    def delete(self, key: str) -> None:
        self._ask(lambda: self._client.delete(key))

    def close(self) -> None:
        self._client.close()

    def _ask(self, work: Callable[[], _Result]) -> _Result:
        try:
            return work()
        except (self._error, OSError) as error:
            raise PredictorUnavailableError(f"payload_store: {error}") from error
