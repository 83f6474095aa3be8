"""ResponseCache: the interface of caches of answers. AnswerCache: the answers of one model in it.

A cache never causes an error: if it fails, nothing is found in it and nothing is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import Any, Protocol

import msgspec

from pipeline.data import RequestInfo, own_parameters
from pipeline.engine.journal.journal import PIPELINE, EngineObservers
from pipeline.engine.offload import Offload
from pipeline.engine.op.answer_form import NoFormError, has_form, key_of, packed, unpacked
from pipeline.engine.run.payload import Payload
from pipeline.errors import described
from pipeline.proto.slices import SHORT_BYTES, weight

_LOGGER = logging.getLogger(__name__)

_PLACES = {"insert": "into", "look up": "in"}


class ResponseCache(Protocol):
    """A cache of bytes by keys of 16 bytes; the registry's `caches` has the classes.

    It is made with its options, and lives on the server's event loop. A method returns its result,
    or an awaitable of it. Exceptions are logged.

    Attributes:
        is_shared: whether other servers use it also, and it outlives this server.
    """

    is_shared: bool

    async def open(self) -> None:
        """Connect. Raises InitError: then the server does not start."""

    def lookup(self, key: bytes) -> bytes | Awaitable[bytes | None] | None:
        """Return the value of a key; None: there is none."""

    def insert(self, key: bytes, value: bytes) -> Awaitable[None] | None:
        """Keep a value, if there is room for it. Raises CacheError: it can never be kept."""

    async def close(self) -> None:
        """Release what `open` took."""


class CacheError(Exception):
    """The cache will never do what it was asked for; the text says why."""


class CacheLookup(msgspec.Struct, eq=False):
    """The lookup of a request, and its result.

    Args:
        key: the key for its answer; None: the answer is not kept.
        start_ns: when the lookup began.
        took_ns: how long it took.
        answer: the answer that was found; None: none.
    """

    key: bytes | None
    start_ns: int
    took_ns: int = 0
    answer: dict[str, Any] | None = None


class CacheTeller:
    """Reports hits and misses to the sinks that count them; see `CacheSink`."""

    def __init__(self, observers: EngineObservers) -> None:
        self._observers = observers
        self.clock_ns: Callable[[], int] = observers.clock_ns

    def caches(self, target: int) -> None:
        """Report that a model's answers are kept."""
        self._tell("notify_caches", target)

    def hit(self, target: int, data_id: int, took_ns: int) -> None:
        """Report that a request was found, before its span or row is recorded."""
        self._tell("notify_cache_hit", target, data_id, took_ns)

    def missed(self, target: int, took_ns: int) -> None:
        """Report that a request was not found, after its answer was kept."""
        self._tell("notify_cache_miss", target, took_ns)

    def _tell(self, name: str, *counts: int) -> None:
        journal = self._observers.journal
        for sink in () if journal is None else journal.sinks:
            notify = getattr(sink, name, None)
            if notify is not None:
                notify(*counts)


class CacheSink(Protocol):
    """A sink that counts hits and misses; `target` is as in REQUEST."""

    def notify_caches(self, target: int) -> None:
        """Note a model whose answers are kept."""

    def notify_cache_hit(self, target: int, data_id: int, took_ns: int) -> None:
        """Note that a request, whose row or span comes next, was answered from a cache."""

    def notify_cache_miss(self, target: int, took_ns: int) -> None:
        """Note a request that was not in the cache; `took_ns`: to look it up and keep it."""


class ServerCache:
    """The cache of a server, and the threads for large values.

    Args:
        name: its name in the registry.
    """

    def __init__(self, name: str, cache: ResponseCache) -> None:
        self.cache: ResponseCache = cache
        self.offload: Offload = Offload()
        self.loads: int = 0
        self.failures: int = 0
        """The number of failures of the cache."""
        self._name = name
        self._failing: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Open the cache. Raises InitError."""
        await self.cache.open()

    async def close(self) -> None:
        """Cancel running work, and close the cache."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.offload.stop()
        try:
            await self.cache.close()
        except Exception:  # of a plug-in
            _LOGGER.exception("cache %s could not be closed", self._name)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run slow work on the event loop."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @contextlib.contextmanager
    def trying(self, verb: str, lookup: CacheLookup) -> Iterator[None]:
        """Run the body, and count and log a failure of the cache.

        A failure is logged once, until the cache works again. A CacheError, which is permanent, is
        logged once. A NoFormError says that the value has no key, and is not a failure.
        """
        try:
            yield
        except NoFormError:
            return
        except Exception as error:  # of a plug-in, or another program's data
            self._failed(verb, error, lookup.key)

    def _failed(self, verb: str, error: Exception, key: bytes | None) -> None:
        self.failures += 1
        kind = f"never {verb}" if isinstance(error, CacheError) else verb
        if kind not in self._failing:
            self._failing.add(kind)
            key_text = "key" if key is None else f"key [{key.hex()}]"
            place = f"{_PLACES[verb]} response cache {self._name}"
            _LOGGER.error("Failed to %s %s %s: %s", verb, key_text, place, described(error))

    def is_well(self, verb: str) -> None:
        """Note that the cache worked."""
        self._failing.discard(verb)

    def of_model(self, name: str, version: str) -> bytes:
        """Return the beginning of the keys of a model that is loaded now.

        All servers that share the cache use the same keys; a cache of one server uses new keys for
        each load, so that old answers are not found.
        """
        self.loads += 1
        load = 0 if self.cache.is_shared else self.loads
        return msgspec.msgpack.encode((name, version, load))


class AnswerCache:
    """Answers of one model, or of a whole graph, in a server's cache. On the event loop.

    Args:
        model: see `ServerCache.of_model`.
        target: as in REQUEST, for the sinks.
        reads_parameters: whether a request's own parameters and forwarded headers may influence the
            answer.
    """

    def __init__(
        self,
        server: ServerCache,
        model: bytes,
        teller: CacheTeller,
        target: int = PIPELINE,
        reads_parameters: bool = True,
    ) -> None:
        self._server = server
        self._model = model
        self._target = target
        self._reads_parameters = reads_parameters
        self._teller = teller
        teller.caches(target)

    def hit(self, data_id: int, lookup: CacheLookup) -> None:
        """Report that a request is answered from the cache."""
        self._teller.hit(self._target, data_id, lookup.took_ns)

    # Looking up -----------------------------------------------------------------------------

    def find(
        self, inputs: Mapping[str, Any], info: RequestInfo, take: Callable[[CacheLookup], None]
    ) -> None:
        """Look up the answer of a request; `take` gets the result, at once or later."""
        lookup = CacheLookup(None, self._teller.clock_ns())
        parameters = own_parameters(info) if self._reads_parameters else {}
        make = functools.partial(key_of, self._model, inputs, info.outputs, parameters)
        if not _is_short(inputs):
            self._server.begin(self._find(make, lookup, take))
            return
        with self._server.trying("look up", lookup):
            lookup.key = make()
            result = self._server.cache.lookup(lookup.key)
            if not isinstance(result, bytes | None) or _is_long(result):
                self._server.begin(self._end(lookup, result, take))
                return
            self._open(lookup, result)
        self._tell(lookup, take)

    async def _find(
        self, make: Callable[[], bytes], lookup: CacheLookup, take: Callable[[CacheLookup], None]
    ) -> None:
        result: Any = None
        with self._server.trying("look up", lookup):
            key, _ = await self._server.offload.run(make)
            lookup.key = key
            result = self._server.cache.lookup(key)
        await self._end(lookup, result, take)

    async def _end(
        self, lookup: CacheLookup, result: Any, take: Callable[[CacheLookup], None]
    ) -> None:
        """Wait for the result of a lookup."""
        with self._server.trying("look up", lookup):
            value = result if isinstance(result, bytes | None) else await result
            if value is not None and _is_long(value):
                lookup.answer, _ = await self._server.offload.run(
                    functools.partial(unpacked, value)
                )
                self._server.is_well("look up")
            else:
                self._open(lookup, value)
        self._tell(lookup, take)

    def _open(self, lookup: CacheLookup, value: bytes | None) -> None:
        if value is not None:
            lookup.answer = unpacked(value)
        self._server.is_well("look up")

    def _tell(self, lookup: CacheLookup, take: Callable[[CacheLookup], None]) -> None:
        lookup.took_ns = self._teller.clock_ns() - lookup.start_ns
        take(lookup)

    # Keeping --------------------------------------------------------------------------------

    def keep(self, lookup: CacheLookup, outcome: Any, proceed: Callable[[], None]) -> None:
        """Keep the outcome of a request that was not found, if it is an answer.

        `proceed` is called when the outcome has been read, and may be changed again.
        """
        if lookup.key is None or not has_form(outcome):
            proceed()
            return
        start_ns = self._teller.clock_ns()
        size = outcome.byte_size if isinstance(outcome, Payload) else weight(outcome)
        if size > SHORT_BYTES:
            self._server.begin(self._keep(lookup, outcome, proceed, start_ns))
            return
        result: Any = None
        with self._server.trying("insert", lookup):
            result = self._server.cache.insert(lookup.key, packed(outcome))
            if result is None:
                self._server.is_well("insert")
        if result is None:
            self._missed(lookup, start_ns)
        else:
            self._server.begin(self._kept(lookup, result, start_ns))
        proceed()

    async def _keep(
        self, lookup: CacheLookup, outcome: Any, proceed: Callable[[], None], start_ns: int
    ) -> None:
        value: bytes | None = None
        with self._server.trying("insert", lookup):
            value, _ = await self._server.offload.run(functools.partial(packed, outcome))
        proceed()
        result = None
        with self._server.trying("insert", lookup):
            if value is not None and lookup.key is not None:
                result = self._server.cache.insert(lookup.key, value)
        await self._kept(lookup, result, start_ns)

    async def _kept(self, lookup: CacheLookup, result: Any, start_ns: int) -> None:
        """Wait for the end of an insertion."""
        with self._server.trying("insert", lookup):
            if result is not None:
                await result
                self._server.is_well("insert")
        self._missed(lookup, start_ns)

    def _missed(self, lookup: CacheLookup, start_ns: int) -> None:
        kept_ns = self._teller.clock_ns() - start_ns
        self._teller.missed(self._target, lookup.took_ns + kept_ns)


def _is_short(inputs: Mapping[str, Any]) -> bool:
    """Return whether the key of inputs can be made on the event loop."""
    total = 0
    for part in inputs.values():
        total += part.byte_size if isinstance(part, Payload) else weight(part)
    return total <= SHORT_BYTES


def _is_long(value: bytes | None) -> bool:
    return value is not None and len(value) > SHORT_BYTES
