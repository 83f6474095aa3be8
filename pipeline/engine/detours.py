"""Detours: the ways of answers that are not for all that read their Op: Goto, loops and jumps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pipeline.engine.op.channel import Receiver, alone
from pipeline.engine.op.conditions import Absent, WayBack, no_such_way, too_many_loops
from pipeline.routes import Goto

if TYPE_CHECKING:
    from pipeline.engine.executor import Executor
    from pipeline.engine.op.dispatcher import OpDispatcher
    from pipeline.engine.request import RequestState


class Detours:
    """Router of answers that only some Ops get; the others learn that there is none for them.

    An Op that jumps are for answers once, by itself or by a jump that stands in for it; and once
    more when a jump back, or a loop, has it run again.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._passing: dict[RequestState, list[tuple[int, Sequence[Receiver], str, Any]]] = {}

    def pass_on(
        self, request: RequestState, receivers: Sequence[Receiver], producer: str, answer: Any
    ) -> None:
        """Hand on what Ops do not run for: past any number of them, without recursion."""
        entry = request.generation, receivers, producer, answer
        passing = self._passing.get(request)
        if passing is not None:  # whoever began sees to it
            passing.append(entry)
            return
        # Of each request its own: one that its end lets into the graph must not wait for it.
        passing = self._passing[request] = [entry]
        try:
            for generation, receivers, producer, answer in passing:
                if request.generation == generation:
                    self._executor.send(request, receivers, producer, answer)
        finally:
            del self._passing[request]

    def goto(self, source: OpDispatcher, request: RequestState, goto: Goto) -> None:
        """Pass on an answer to the Ops that it names, and to the others that there is none."""
        links, to = source.links, goto.to
        if not to:
            links.withheld.update(links.successors)
            self._executor.route(source, request, Absent((source.name,)))
            return
        named = [reader for reader in links.successors if reader.name in to]
        if len(named) == len(to):
            if links.is_target:
                request.settled |= {source}
            self._send_to(named, request, source, goto.answer)
        elif len(to) == 1 and to[0] in links.loops:
            self._loop(source, request, links.loops[to[0]], goto.answer)
        else:
            self._executor.route(source, request, no_such_way(source, to))

    def _send_to(
        self,
        named: Sequence[OpDispatcher],
        request: RequestState,
        source: OpDispatcher,
        answer: Any,
    ) -> None:
        generation = request.generation
        others = [reader for reader in source.links.successors if reader not in named]
        source.links.withheld.update(others)
        if named:
            self._executor.send(request, alone(named), source.name, answer)
        if others and request.generation == generation:
            self.pass_on(request, alone(others), source.name, Absent((source.name,)))

    def _loop(
        self, source: OpDispatcher, request: RequestState, loop: WayBack, answer: Any
    ) -> None:
        """Have an Op that leads to `source`, and all behind it, run again."""
        loops = request.loops or {}
        count = loops.get(source, 0) + 1
        if count > source.op.pipeline_max_loops:
            self._executor.route(source, request, too_many_loops(source, loop))
            return
        request.loops = {**loops, source: count}
        request.settled -= {loop.target, *loop.below}
        source.links.taken[loop.target] += 1
        source.links.withheld.update(source.links.successors)
        loop.target.begin_lap(request)
        for node in loop.below:
            node.begin_lap(request, loop.again)
        loop.target.enqueue(request, source.name, answer, is_all=True)

    def jump(self, source: OpDispatcher, request: RequestState, answer: Any) -> None:
        """Pass on an answer in the place of those of the Ops that it jumped to."""
        executor = self._executor
        if executor.last in source.links.targets:
            executor.complete(request, answer)
            return
        generation, settled, links = request.generation, request.settled, source.links
        distinct = dict.fromkeys(links.targets)
        targets = [t for t in distinct if t not in settled or source in t.links.below]
        request.settled = ((settled | {source}) - links.runs_again).union(targets)
        for node in links.begins_laps:
            node.begin_lap(request, node.channel.producers)
        for target in targets:
            if request.generation == generation:
                readers = target.links.successors
                links.taken.update(readers)
                self._executor.send(request, alone(readers), target.name, answer, source.name)
        is_heard_of = source in links.targets or source in links.runs_again
        if is_heard_of:
            links.withheld.update(links.successors)
        elif request.generation == generation:
            self._send_to((), request, source, None)
