"""ResponseCache: the seam of caches of answers. AnswerCache: what one model has in it.

A cache is never a reason for an error: where it fails nothing is found in it, and nothing kept.
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
    """A cache of bytes by keys of 16 bytes; the registry has what makes one as `caches`.

    It is made with its options, and lives on the server's event loop. What answers at once returns
    the result itself, anything else what is awaited for it. What they raise is logged.

    Attributes:
        is_shared: whether other servers have it, too, and it outlives this one.
    """

    is_shared: bool

    async def open(self) -> None:
        """Connect to whatever it needs. Raises InitError: the server does not start."""

    def lookup(self, key: bytes) -> bytes | Awaitable[bytes | None] | None:
        """Return the value of a key; None: there is none."""

    def insert(self, key: bytes, value: bytes) -> Awaitable[None] | None:
        """Keep a value, if there is room for it. Raises CacheError: there will never be."""

    async def close(self) -> None:
        """Give back what `open` took."""


class CacheError(Exception):
    """A cache never does what it was asked for; the text says why."""


class CacheLookup(msgspec.Struct, eq=False):
    """Result of a lookup, for a request.

    Args:
        key: under which its answer is to be kept; None: it is not.
        answer: the request's; None: there is none.
        start_ns, took_ns: when it was looked for, and how long.
    """

    key: bytes | None
    start_ns: int
    took_ns: int = 0
    answer: dict[str, Any] | None = None


class CacheTeller:
    """Tells the sinks that want to know it what came of a cache; see `CacheSink`."""

    def __init__(self, observers: EngineObservers) -> None:
        self._observers = observers
        self.clock_ns: Callable[[], int] = observers.clock_ns

    def caches(self, target: int) -> None:
        """Tell that answers of a model are kept."""
        self._tell("notify_caches", target)

    def hit(self, target: int, data_id: int, took_ns: int) -> None:
        """Tell that a request was found, before its span or row is told."""
        self._tell("notify_cache_hit", target, data_id, took_ns)

    def missed(self, target: int, took_ns: int) -> None:
        """Tell that a request was not found, after its answer was to be kept."""
        self._tell("notify_cache_miss", target, took_ns)

    def _tell(self, name: str, *counts: int) -> None:
        journal = self._observers.journal
        for sink in () if journal is None else journal.sinks:
            notify = getattr(sink, name, None)
            if notify is not None:
                notify(*counts)


class CacheSink(Protocol):
    """A sink that counts what caches do; `target` is as in REQUEST."""

    def notify_caches(self, target: int) -> None:
        """Take note of a model whose answers are kept."""

    def notify_cache_hit(self, target: int, data_id: int, took_ns: int) -> None:
        """Take note that a request, whose row or span comes next, was answered from a cache."""

    def notify_cache_miss(self, target: int, took_ns: int) -> None:
        """Take note that one was not, and how long it was looked for and kept."""


class ServerCache:
    """The cache of a server, and the threads for what is large.

    Args:
        name: by which the registry knows it.
    """

    def __init__(self, name: str, cache: ResponseCache) -> None:
        self.cache: ResponseCache = cache
        self.offload: Offload = Offload()
        self.loads: int = 0
        self.failures: int = 0
        """Times that it could not do what it was asked for."""
        self._name = name
        self._failing: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Open the cache. Raises InitError."""
        await self.cache.open()

    async def close(self) -> None:
        """Give up what is under way, and close the cache."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.offload.stop()
        try:
            await self.cache.close()
        except Exception:  # a plug-in's
            _LOGGER.exception("cache %s could not be closed", self._name)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what takes a while, on the event loop."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @contextlib.contextmanager
    def trying(self, verb: str, lookup: CacheLookup) -> Iterator[None]:
        """Have the cache asked for something, and take note if it has failed.

        That is logged once, until it is well again. What it never does, as its CacheError says, is
        logged once for all. What has no form cannot be asked for, which is nobody's failure.
        """
        try:
            yield
        except NoFormError:
            return
        except Exception as error:  # a plug-in's, or what somebody else wrote
            self._failed(verb, error, lookup.key)

    def _failed(self, verb: str, error: Exception, key: bytes | None) -> None:
        self.failures += 1
        kind = f"never {verb}" if isinstance(error, CacheError) else verb
        if kind not in self._failing:
            self._failing.add(kind)
            what = "key" if key is None else f"key [{key.hex()}]"
            place = f"{_PLACES[verb]} response cache {self._name}"
            _LOGGER.error("Failed to %s %s %s: %s", verb, what, place, described(error))

    def is_well(self, verb: str) -> None:
        """Take note that the cache did what it was asked for."""
        self._failing.discard(verb)

    def of_model(self, name: str, version: str) -> bytes:
        """Return what begins the keys of a model that is loaded now.

        Who shares the cache has the same; else what was kept of one that was loaded before under
        this name is found no more.
        """
        self.loads += 1
        load = 0 if self.cache.is_shared else self.loads
        return msgspec.msgpack.encode((name, version, load))


class AnswerCache:
    """Answers of one model, or of a whole graph, in a server's cache. On the event loop.

    Args:
        model: see `ServerCache.of_model`.
        target: as in REQUEST, for those who count.
        reads_parameters: whether the caller's own parameters, and forwarded headers, may reach who
            answers.
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
        """Tell that a request is answered from the cache."""
        self._teller.hit(self._target, data_id, lookup.took_ns)

    # Looking up -----------------------------------------------------------------------------

    def find(
        self, inputs: Mapping[str, Any], info: RequestInfo, take: Callable[[CacheLookup], None]
    ) -> None:
        """Look for the answer of a request; `take` is told what there is, at once or later."""
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
        """Await what a lookup comes to."""
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

    def keep(self, lookup: CacheLookup, outcome: Any, go_on: Callable[[], None]) -> None:
        """Keep what came of a request that was not found, if it is an answer.

        `go_on` is called when it has been read, and may be changed again.
        """
        if lookup.key is None or not has_form(outcome):
            go_on()
            return
        start_ns = self._teller.clock_ns()
        size = outcome.byte_size if isinstance(outcome, Payload) else weight(outcome)
        if size > SHORT_BYTES:
            self._server.begin(self._keep(lookup, outcome, go_on, start_ns))
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
        go_on()

    async def _keep(
        self, lookup: CacheLookup, outcome: Any, go_on: Callable[[], None], start_ns: int
    ) -> None:
        value: bytes | None = None
        with self._server.trying("insert", lookup):
            value, _ = await self._server.offload.run(functools.partial(packed, outcome))
        go_on()
        result = None
        with self._server.trying("insert", lookup):
            if value is not None and lookup.key is not None:
                result = self._server.cache.insert(lookup.key, value)
        await self._kept(lookup, result, start_ns)

    async def _kept(self, lookup: CacheLookup, result: Any, start_ns: int) -> None:
        """Await what an insertion comes to."""
        with self._server.trying("insert", lookup):
            if result is not None:
                await result
                self._server.is_well("insert")
        self._missed(lookup, start_ns)

    def _missed(self, lookup: CacheLookup, start_ns: int) -> None:
        kept_ns = self._teller.clock_ns() - start_ns
        self._teller.missed(self._target, lookup.took_ns + kept_ns)


def _is_short(inputs: Mapping[str, Any]) -> bool:
    """Return whether a key can be made of inputs on the event loop."""
    total = 0
    for part in inputs.values():
        total += part.byte_size if isinstance(part, Payload) else weight(part)
    return total <= SHORT_BYTES


def _is_long(value: bytes | None) -> bool:
    return value is not None and len(value) > SHORT_BYTES
