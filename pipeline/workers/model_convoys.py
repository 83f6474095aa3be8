"""Convoys at Ops that call models: the members go together, or each is sent by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from pipeline.data import ChannelData, RequestInfo
from pipeline.engine.convoy import MemberLostError, MemberOutcomes, member_outcomes, together
from pipeline.engine.request import Members, RequestState, UnarySink
from pipeline.engine.run.payload import opened
from pipeline.errors import PipelineError
from pipeline.workers.model_step import ModelStep, answer_of, ask, failure_of


class _Asking(msgspec.Struct, eq=False):
    """One member as a ModelStep sees it: an item, and its own request."""

    inputs: dict[str, Any]
    info: RequestInfo
    ready_ns: int

    @property
    def request(self) -> _Asking:
        return self


class ConvoyCalls:
    """The members of a convoy, each sent by itself; for the convoy's run they are one request.

    Args:
        step: the call.
        run: of the convoy.
        tell: called with the outcome of all after the last answer; never from within `ask`.
        soon: calls a function in the next round of the loop.
    """

    end_ns: ClassVar[int] = 0  # their answers come at different times
    completed_ns: ClassVar[int] = 0

    def __init__(
        self,
        step: ModelStep,
        run: Any,
        convoy: Members,
        tell: Callable[[Any], None],
        soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self._step = step
        self._run = run
        self._convoy = convoy
        self._tell = tell
        self._soon = soon
        self._handles: list[RequestState | None] = [None] * len(convoy)
        self._outcomes: list[Any] = [None] * len(convoy)
        self._open = set(range(len(convoy)))
        convoy.followers.append(self)

    def ask(self, lost: PipelineError | None) -> None:
        """Send all open members: the others have failed before, or have left.

        Args:
            lost: the error after they were sent together; None: they were not.
        """
        run, convoy = self._run, self._convoy
        parts = {name: member_outcomes(part, convoy.rows) for name, part in run.inputs.items()}
        infos = convoy.infos or [run.request.info] * len(convoy)
        for place in range(len(convoy)):
            inputs = {name: opened(part[place]) for name, part in parts.items()}
            failure = next((p for p in inputs.values() if isinstance(p, PipelineError)), None)
            if isinstance(lost, MemberLostError) and place == lost.member:
                failure = self._step.failed(lost.error)
            if place in convoy.left or failure is not None:
                self._take(place, None if place in convoy.left else failure)
                continue
            item: Any = _Asking(inputs, infos[place], run.ready_ns)
            step, sink = self._step, _MemberSink(self, place, item)
            try:
                handle = ask(step, item, run.request.trace, sink)
            except Exception as error:  # of the model, or our own on some data
                self._take(place, failure_of(step, error))
                continue
            self._handles[place] = handle
            if handle is None:
                self._take(place, answer_of(step, item, {}))

    def answered(self, place: int, item: Any, answer: ChannelData) -> None:
        """Take a model's answer."""
        self._take(place, _mapped(self._step, item, answer.error or answer.payload))

    def _take(self, place: int, outcome: Any) -> None:
        if place in self._open:
            self._open.remove(place)
            self._outcomes[place] = outcome
            if not self._open:
                self._soon(self._end)

    def _end(self) -> None:
        if self in self._convoy.followers:
            self._convoy.followers.remove(self)
        self._tell(together(self._outcomes, self._convoy.rows))
        self._handles.clear()  # each has a sink that refers to this: only the gc could free them

    def stages_ns(self) -> tuple[int, int, int]:
        """Return the time of each stage: of the member that took longest."""
        times = [(0, 0, 0), *(handle.stages_ns() for handle in self._handles if handle is not None)]
        input_ns, infer_ns, output_ns = map(max, zip(*times, strict=True))
        return input_ns, infer_ns, output_ns

    def leave(self, place: int) -> None:
        """Note that the client of a member has left."""
        handle = self._handles[place]
        if handle is not None:
            handle.cancel()
        self._take(place, None)

    def cancel(self) -> None:
        """Drop all of them."""
        for handle in self._handles:
            if handle is not None:
                handle.cancel()


class _MemberSink(UnarySink):
    __slots__ = ("_asked", "_item", "_place")

    is_ours: ClassVar[bool] = True

    def __init__(self, asked: ConvoyCalls, place: int, item: Any) -> None:
        self._asked = asked
        self._place = place
        self._item = item

    def end(self, answer: ChannelData) -> None:
        self._asked.answered(self._place, self._item, answer)


def mapped(step: ModelStep, item: Any, answers: MemberOutcomes) -> MemberOutcomes:
    """Return the Op's outcome of each member, made of the model's."""
    return MemberOutcomes([_mapped(step, item, opened(outcome)) for outcome in answers.outcomes])


def _mapped(step: ModelStep, item: Any, outcome: Any) -> Any:
    if outcome is None:
        return None
    is_failed = isinstance(outcome, PipelineError)
    return step.failed(outcome) if is_failed else answer_of(step, item, outcome)
