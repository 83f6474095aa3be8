"""Router: where an Op's answers go: to the Ops that read it, over a jump, or out of the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.engine.channel import PassedOver
from pipeline.engine.dispatcher import OpDispatcher
from pipeline.engine.payload import LOCAL
from pipeline.engine.request import RequestState
from pipeline.errors import GraphError, PipelineError
from pipeline.op import Op


class Router:
    """Takes the answers of all Ops of a graph.

    Errors travel as answers do, so that a join knows all its parts and a first-arrival join can
    take another one. The Ops that a jump passes over say that nothing will come of them, in the
    same way. An Op that jumps are for answers once, by itself or by a jump that stands in for it;
    and once more when a jump back has it run again.

    Args:
        nodes: of the graph, linked.
        last: the Op whose answer is the graph's.
        finish: takes the answer of a request, or the error in its place.
    """

    def __init__(
        self,
        nodes: Mapping[Op, OpDispatcher],
        last: Op,
        finish: Callable[[RequestState, Any], None],
    ) -> None:
        self._joins = tuple(n for n in nodes.values() if len(n.channel.producers) > 1)
        self._last = nodes[last]
        self._finish = finish
        self._is_shared = any(n.workers.memory_domain is not LOCAL for n in nodes.values())

    def deliver(
        self, source: OpDispatcher, request: RequestState, answer: Any, jumped: bool
    ) -> None:
        """Pass on a payload or a PipelineError of a request that is not over."""
        if request.route is not None and request.route.op is not None:
            self._finish(request, answer)
        elif source.is_target and source in request.settled:
            return  # a jump stood in for it
        elif jumped and not isinstance(answer, PipelineError):
            self._jump(source, request, answer)
        elif source is self._last:
            self._finish(request, answer)
        else:
            if source.is_target:
                request.settled |= {source}
            self.send(request, source.successors, source.name, answer)

    def send(
        self,
        request: RequestState,
        readers: Sequence[OpDispatcher],
        producer: str,
        answer: Any,
        stand_in: str | None = None,
    ) -> None:
        """Hand `answer` to all readers. Each gets a dict of its own; the values are shared."""
        generation = request.generation
        first, *others = readers
        if others and self._is_shared and isinstance(answer, dict):
            answer = _sealed_once(readers, answer)
        first.offer(request, producer, answer, stand_in)
        for reader in others:
            if request.generation == generation:  # neither over nor started anew
                reader.offer(request, producer, own_dict(answer), stand_in)

    def _jump(self, source: OpDispatcher, request: RequestState, answer: Any) -> None:
        if self._last in source.targets:
            self._finish(request, answer)
            return
        generation, settled = request.generation, request.settled
        targets = [
            t for t in dict.fromkeys(source.targets) if t not in settled or source in t.below
        ]
        request.settled = ((settled | {source}) - source.runs_again).union(targets)
        for node in source.begins_laps:
            node.begin_lap(request)
        for target in targets:
            if request.generation == generation:
                self.send(request, target.successors, target.name, answer, source.name)
        is_heard_of = source in source.targets or source in source.runs_again
        if request.generation == generation and not is_heard_of:
            self._pass_over(source, request)

    def _pass_over(self, source: OpDispatcher, request: RequestState) -> None:
        names = ", ".join(repr(target.name) for target in source.targets)
        error = PassedOver(
            f"the request got lost in the graph: Op {source.name!r} jumped to {names}, past an Op "
            "whose answer a later Op waits for. Check jump_to_ops."
        )
        self.send(request, source.successors, source.name, error)

    def strand(self, request: RequestState) -> None:
        """End a request that no Op works on and that was not answered."""
        held = (node.channel.held_error(request) for node in self._joins)
        self._finish(
            request,
            next((error for error in held if error is not None), None)
            or GraphError(
                "the request got lost in the graph: a jump passed over an Op whose answer a "
                "later Op waits for. Check jump_to_ops."
            ),
        )

    def forget_parts(self, request: RequestState) -> None:
        """Drop the parts that wait in joins for a request that is over."""
        for node in self._joins:
            node.channel.discard_parts(request)


def _sealed_once(readers: Sequence[OpDispatcher], answer: dict[str, Any]) -> Any:
    """Return one Payload for several readers of one domain: what is large is copied only once."""
    domain = readers[0].workers.memory_domain
    if any(reader.workers.memory_domain is not domain for reader in readers):
        return answer
    try:
        return domain.seal(answer)
    except PipelineError as error:
        return error


def own_dict(payload: Any) -> Any:
    """A dict that its reader may change without others noticing; the values are shared."""
    return dict(payload) if isinstance(payload, dict) else payload
