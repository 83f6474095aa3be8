"""CacheFilter: the cache around an Op. CachedGraph: the cache around a whole graph.

The cache is read before a request waits for anything; a request whose answer is found comes to no
worker.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec

from pipeline.engine.filters import Filter
from pipeline.engine.journal.journal import NO_WORKER, EngineObservers, Outcome
from pipeline.engine.op.answer_cache import AnswerCache, CacheLookup, CacheTeller, ServerCache
from pipeline.engine.op.channel import Item
from pipeline.engine.op.filter import OpFilter, surround
from pipeline.engine.ports import OpNode, Router
from pipeline.engine.request import ACTIVE, RequestState
from pipeline.engine.run.hooks import asking
from pipeline.errors import GraphError

Complete = Callable[[RequestState, Any], None]


class ModelCache(msgspec.Struct, frozen=True):
    """The cache of a server, and the model whose answers are kept in it."""

    server: ServerCache
    name: str
    version: str

    def open(self, graph: CachedGraph | None, executor: Router, observers: EngineObservers) -> None:
        """Open the cache of the whole graph, if `graph` is given, and of the Ops that want one.

        Raises GraphError: some of these Ops answer in parts.
        """
        nodes = executor.nodes.values()
        for node in nodes:
            if node.streams and (graph is not None or node.op.pipeline_config.response_cache):
                raise GraphError(
                    f"Op {node.name!r} makes or reads a stream, and response_cache keeps no parts: "
                    "leave it out."
                )
        teller, model = CacheTeller(observers), self.server.of_model(self.name, self.version)
        if graph is not None:
            graph.send = executor.start
            graph.open_cache(AnswerCache(self.server, model, teller))
        for node in nodes:
            if node.op.pipeline_config.response_cache:
                of_op = b"%b %b" % (model, node.name.encode())
                reads = bool(asking(node.op))
                kept = AnswerCache(self.server, of_op, teller, node.spans.index, reads)
                surround(node, CacheFilter(node, kept))


class CacheFilter(OpFilter):
    """Looks up an Op's requests in the cache, and keeps their answers.

    A request whose answer is found overtakes the waiting requests, even if answers leave in order.
    """

    group_obstacle: str = "its answers are kept"

    def __init__(self, node: OpNode, answers: AnswerCache) -> None:
        self._node = node
        self._kept = answers
        node.may_spare = True

    def add(self, call_next: Callable[[Item], None], item: Item) -> None:
        item.request.passed_ns = 0  # a lookup takes time
        self._kept.find(item.inputs, item.info, functools.partial(self._on_lookup, call_next, item))

    def _on_lookup(
        self, call_next: Callable[[Item], None], item: Item, lookup: CacheLookup
    ) -> None:
        """Answer a request from the cache, or let it wait, unless it has ended meanwhile."""
        request, node = item.request, self._node
        if item.generation != request.generation:
            return
        if item.lap != request.lap(node):
            node.pass_on(item, None)  # a later lap has replaced this item
        elif lookup.answer is None:
            item.lookup = lookup
            call_next(item)
        else:
            self._kept.hit(item.data_id, lookup)
            self._take_down(item, lookup)
            node.links.answered += 1
            node.pass_on(item, lookup.answer)

    def _take_down(self, item: Item, lookup: CacheLookup) -> None:
        """Record the span of a request that came to no worker."""
        spans, request = self._node.spans, item.request
        if not spans.is_wanted:
            return
        start_ns, end_ns = lookup.start_ns, lookup.start_ns + lookup.took_ns
        times = item.ready_ns, start_ns, start_ns, start_ns, end_ns, end_ns
        spans.row(request, NO_WORKER, -1, request.rows, Outcome.OK, *times)
        if spans.journal is not None:
            spans.journal.flush_if_long()

    def pass_on(
        self, call_next: Callable[..., None], item: Item, outcome: Any, jumped: bool = False
    ) -> None:
        lookup, item.lookup = item.lookup, None  # the item may come here again
        if lookup is None or jumped or item.is_over:
            call_next(item, outcome, jumped)
        else:
            self._kept.keep(lookup, outcome, functools.partial(call_next, item, outcome))


class CachedGraph(Filter):
    """Looks up requests for a whole graph in its cache, if it has one, and keeps their answers.

    Args:
        complete: ends a request with its answer.

    Attributes:
        send: sends a request into the graph.
    """

    def __init__(self, complete: Complete, clock_ns: Callable[[], int]) -> None:
        super().__init__()
        self.send: Callable[[RequestState, Any], None] = _nowhere
        self._complete = complete
        self._clock_ns = clock_ns
        self._answers: AnswerCache | None = None
        self._lookups: dict[RequestState, CacheLookup] = {}  # requests in the graph

    def open_cache(self, answers: AnswerCache) -> None:
        """Keep answers from now on."""
        self._answers = answers

    def start(self, request: RequestState, payload: Any) -> None:
        """Send a request into the graph, unless the cache has its answer."""
        target = request.target
        if self._answers is None or (target is not None and target.op is not None):
            self.send(request, payload)
            return
        request.dispatched_ns = self._clock_ns()
        request.passed_ns = 0  # a lookup takes time
        take = functools.partial(self._take, request, request.generation, payload)
        self._answers.find(payload, request.info, take)

    def _take(
        self, request: RequestState, generation: int, payload: Any, lookup: CacheLookup
    ) -> None:
        if request.generation != generation:  # answered, or started again
            return
        if lookup.answer is None:
            self._lookups[request] = lookup
            self.send(request, payload)
        else:
            assert self._answers is not None, "the lookup came from it"
            self._answers.hit(request.data_id, lookup)
            self._complete(request, lookup.answer)

    def complete(self, request: RequestState, answer: Any) -> None:
        """End a request after its answer was read for the cache."""
        lookup = self._lookups.pop(request, None)
        if (
            lookup is None
            or self._answers is None
            or request.phase is not ACTIVE
            or request.head is not None
        ):
            self._complete(request, answer)
        else:
            request.live += 1  # no Op works on it while a large answer is read
            self._answers.keep(lookup, answer, functools.partial(self._end, request, answer))

    def _end(self, request: RequestState, answer: Any) -> None:
        if request.phase is ACTIVE:
            request.live -= 1
            self._complete(request, answer)

    def on_end(self, request: RequestState) -> None:
        """Forget a request that ended in another way."""
        self._lookups.pop(request, None)


def _nowhere(request: RequestState, payload: Any) -> None:
    """Raise: no graph is set yet."""
    raise NotImplementedError
