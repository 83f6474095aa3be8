"""CachedDispatcher: the dispatcher of an Op whose answers are kept. CachedGraph: a whole graph's.

A request is looked for before it waits for anything; one that is found comes to no worker.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec

from pipeline.engine.filters import Filter
from pipeline.engine.journal.journal import NO_WORKER, EngineObservers, Outcome
from pipeline.engine.op.answer_cache import AnswerCache, CacheTeller, Found, ServerCache
from pipeline.engine.op.channel import Item
from pipeline.engine.op.dispatcher import OpDispatcher
from pipeline.engine.op.limiter import limited
from pipeline.engine.op.order import DynamicDispatcher, is_dynamic
from pipeline.engine.op.shortcut import Shortcut
from pipeline.engine.ports import Router
from pipeline.engine.request import ACTIVE, RequestState
from pipeline.engine.run.hooks import asking
from pipeline.engine.sequences.dispatcher import SequenceDispatcher, has_sequences
from pipeline.errors import GraphError
from pipeline.op import Op

Complete = Callable[[RequestState, Any], None]


class ModelCache(msgspec.Struct, frozen=True):
    """The cache of a server, and the model whose graph is to have answers in it."""

    server: ServerCache
    name: str
    version: str

    def open(self, graph: CachedGraph | None, executor: Router, observers: EngineObservers) -> None:
        """Have answers kept of a whole graph, if it is one, and of its Ops that want it.

        Raises GraphError: some of these answer in parts.
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
            if isinstance(node, CachedDispatcher):
                of_op = b"%b %b" % (model, node.name.encode())
                reads = bool(asking(node.op))
                node.open_cache(AnswerCache(self.server, of_op, teller, node.spans.index, reads))


class CachedDispatcher(OpDispatcher):
    """Has an Op's requests looked for, once it has a cache, and its answers kept.

    What is found overtakes whoever waits here, also where answers leave in order.
    """

    _kept: AnswerCache | None = None

    def open_cache(self, answers: AnswerCache) -> None:
        """Keep answers from now on."""
        self._kept = answers
        self.may_spare: bool = True
        self.goes_alone: str = "its answers are kept"
        self.shortcut: Shortcut | None = None  # which leads past the cache

    def add(self, item: Item) -> None:
        if self._kept is None:
            super().add(item)
        else:
            self._kept.find(item.inputs, item.info, functools.partial(self._found, item))

    def _found(self, item: Item, found: Found) -> None:
        """Answer a request, or have it wait for its turn, unless it is over meanwhile."""
        request = item.request
        if item.generation != request.generation:
            return
        if request.laps is not None and item.lap != request.laps.get(self, 0):
            self._router.gone(item)
        elif found.answer is None:
            item.found = found
            super().add(item)
        else:
            self._take_down(item, found)
            self.links.answered += 1
            super().pass_on(item, found.answer)

    def _take_down(self, item: Item, found: Found) -> None:
        """Take down the span of a request that came to no worker."""
        assert self._kept is not None, "it was found there"
        self._kept.hit(item.data_id, found)
        spans, request = self.spans, item.request
        if not spans.is_wanted:
            return
        start_ns, end_ns = found.start_ns, found.start_ns + found.took_ns
        times = item.ready_ns, start_ns, start_ns, start_ns, end_ns, end_ns
        spans.row(request, NO_WORKER, -1, request.rows, Outcome.OK, *times)
        if spans.journal is not None:
            spans.journal.flush_if_long()

    def pass_on(self, item: Item, outcome: Any, jumped: bool = False) -> None:
        found, item.found = item.found, None  # it may come here again
        go_on = functools.partial(super().pass_on, item, outcome, jumped)
        if found is None or jumped or self._kept is None or item.is_over:
            go_on()
        else:
            self._kept.keep(found, outcome, go_on)


class CachedDynamicDispatcher(CachedDispatcher, DynamicDispatcher):
    """The same for an Op with `batching: dynamic`."""


class CachedGraph(Filter):
    """Has requests for a whole graph looked for, once it has a cache, and their answers kept.

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
        self._found: dict[RequestState, Found] = {}  # of those that are in the graph

    def open_cache(self, answers: AnswerCache) -> None:
        """Keep answers from now on."""
        self._answers = answers

    def start(self, request: RequestState, payload: Any) -> None:
        """Send a request into the graph, unless it has an answer already."""
        target = request.target
        if self._answers is None or (target is not None and target.op is not None):
            self.send(request, payload)
            return
        request.dispatched_ns = self._clock_ns()
        take = functools.partial(self._take, request, request.generation, payload)
        self._answers.find(payload, request.info, take)

    def _take(self, request: RequestState, generation: int, payload: Any, found: Found) -> None:
        if request.generation != generation:  # over, or started anew
            return
        if found.answer is None:
            self._found[request] = found
            self.send(request, payload)
        else:
            assert self._answers is not None, "it was found there"
            self._answers.hit(request.data_id, found)
            self._complete(request, found.answer)

    def complete(self, request: RequestState, answer: Any) -> None:
        """End a request, whose answer is read before that."""
        found = self._found.pop(request, None)
        if (
            found is None
            or self._answers is None
            or request.phase is not ACTIVE
            or request.head is not None
        ):
            self._complete(request, answer)
        else:
            request.live += 1  # no Op works on it while a large answer is read
            self._answers.keep(found, answer, functools.partial(self._end, request, answer))

    def _end(self, request: RequestState, answer: Any) -> None:
        if request.phase is ACTIVE:
            request.live -= 1
            self._complete(request, answer)

    def on_end(self, request: RequestState) -> None:
        """Forget a request that ended otherwise."""
        self._found.pop(request, None)


def _nowhere(request: RequestState, payload: Any) -> None:
    """Refuse what comes before there is a graph."""
    raise NotImplementedError


def kind_of(op: Op) -> type[OpDispatcher]:
    """Return the dispatcher of an Op that neither makes nor reads a stream."""
    kind = _kind_of(op)
    return limited(kind) if op.pipeline_config.rate_limiter else kind


def _kind_of(op: Op) -> type[OpDispatcher]:
    if has_sequences(op):
        return SequenceDispatcher
    if op.pipeline_config.response_cache:
        return CachedDynamicDispatcher if is_dynamic(op) else CachedDispatcher
    return DynamicDispatcher if is_dynamic(op) else OpDispatcher
