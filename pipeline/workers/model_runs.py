"""ModelRun and ModelStream: one request of an Op to its model, and the sink of the answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar

from pipeline.data import ChannelData
from pipeline.engine.convoy import MemberOutcomes
from pipeline.engine.model_calls import error_in
from pipeline.engine.op.channel import Item
from pipeline.engine.request import RequestState, StreamSink, UnarySink
from pipeline.engine.streams.flow import ENDED
from pipeline.engine.streams.run import Entry, StreamRun
from pipeline.errors import PipelineError
from pipeline.workers.model_convoys import mapped
from pipeline.workers.model_step import answer_of


class ModelRun(UnarySink, Item, eq=False):
    """One request of an Op to its model; it is the sink of the model's answer.

    Attributes:
        workers: of the Op.
        handle: the model's request; None: it has not begun.
        early: (the answer,) if it came before `begin` returned.
    """

    is_ours: ClassVar[bool] = True

    workers: Any = None
    handle: RequestState | None = None
    early: Any = None

    def end(self, answer: ChannelData) -> None:
        if self.handle is None:
            self.early = (answer,)
            return
        step, error, convoy = self.workers.step, answer.error, self.request.convoy
        if error is None:
            payload = answer.payload
            make = mapped if type(payload) is MemberOutcomes else answer_of
            self.over(make(step, self, payload))
        elif convoy is not None and convoy.runs_again(error):
            self.workers.send_each(self, convoy, error)
        else:
            self.over(step.failed(error))

    def abandon(self) -> None:
        """Let the model drop the request, because nobody waits for it."""
        if self.handle is not None:
            self.handle.cancel()
        self.over(None)

    def over(self, outcome: Any) -> None:
        """Report the outcome of the request; None: it has ended."""
        workers, handle, at_ns, request = self.workers, self.handle, self.start_ns, self.request
        workers.remove(self)
        self.outcome = outcome
        # Its stages take as long as the model's.
        input_ns, infer_ns, output_ns, request.passed_ns = 0, 0, 0, 0
        if handle is not None:
            input_ns, infer_ns, output_ns = handle.stages_ns()
            request.passed_ns = handle.end_ns or handle.completed_ns
            self.handle = None  # both refer to each other, which only the gc could free
        self.preprocess_end_ns: int = at_ns + input_ns
        self.process_end_ns: int = self.preprocess_end_ns + infer_ns
        self.end_ns: int = self.process_end_ns + output_ns
        batch = self.apart
        if batch is not None:
            batch.outcomes, batch.is_models = [outcome], True
            batch.start_ns, batch.preprocess_end_ns = at_ns, self.preprocess_end_ns
            batch.process_end_ns, batch.end_ns = self.process_end_ns, self.end_ns
        workers.owner.done(workers.place, batch or self)
        request.passed_ns = 0
        workers.next()


class ModelStream(StreamSink, StreamRun, eq=False):
    """One request of an Op to a model that answers in parts; it is the sink of the parts.

    Attributes:
        told: number of parts that the model knows to be taken.
    """

    is_ours: ClassVar[bool] = True

    workers: Any = None
    handle: RequestState | None = None
    early: Any = None
    told: int = 0

    @property
    def data_id(self) -> int:
        """Return the data id of its request."""
        return int(self.items[0].data_id)

    @property
    def has_work(self) -> bool:
        if self.is_finished or self.is_superseded:
            return False
        return min(self.made[0], self.allowed[0]) > self.told or not self._is_live(0)

    def go_on(self, workers: Any) -> None:
        """Begin, or continue: there is room for parts, or nobody takes any more."""
        if self.groups is None:
            self.groups: list[list[int]] | None = [[0]]
            self.made: list[int] = [0]
            self.ended: list[bool] = [False]
            now = time.monotonic_ns()
            self.start_ns: int = now
            self.preprocess_end_ns: int = now
            self.end_ns: int = now
            workers.pass_on(self)
        elif self.items[0].is_over or not self.has_work:
            if not self.is_finished:
                self.abandon()
        else:
            self._allow_more()
        workers.loop.call_soon(self._slice_is_over)

    def _slice_is_over(self) -> None:
        if self.is_out:
            self.workers.owner.done(self.workers.place, self)

    def _allow_more(self) -> None:
        """Tell the model that parts were taken and that there is room for more."""
        more = min(self.made[0], self.allowed[0]) - self.told
        if more > 0 and self.handle is not None:
            self.told += more
            self.handle.took_part(more)

    def add(self, answers: Sequence[ChannelData]) -> None:
        """Take parts of the model's answer."""
        for answer in answers:
            self._take(answer.payload)

    def _take(self, fetched: Any) -> None:
        if self.is_finished:
            return
        step, failure = self.workers.step, error_in(fetched)
        part = answer_of(step, self.items[0], fetched) if failure is None else step.failed(failure)
        if isinstance(part, PipelineError):
            if self.handle is not None:
                self.handle.cancel()
            self._give([(0, part)], is_last=True)
            return
        self.made[0] += 1
        self._give([(0, part)])
        if not self.is_finished:
            self._allow_more()

    def _give(self, entries: Sequence[Entry], is_last: bool = False) -> None:
        if is_last:
            self.ended[0] = True
            self._finish()
        self.workers.owner.parts(self, entries)

    def end(self, answer: ChannelData | None) -> None:
        """Take the end of the answer: the whole answer, or an error; None: all parts were sent."""
        if self.handle is None:
            self.early = (answer,)
        elif self.is_finished:
            pass
        elif answer is None or (answer.error is None and not answer.payload):
            self._give([(0, ENDED)], is_last=True)
        elif answer.error is not None:
            self.over(self.workers.step.failed(answer.error))
        else:  # it answered at once
            self.over(answer_of(self.workers.step, self.items[0], answer.payload))

    def over(self, outcome: Any) -> None:
        """Report the only part of the request, or the error in its place.

        If the model was not called, nobody wants the part.
        """
        if isinstance(outcome, PipelineError):
            self._give([(0, outcome)], is_last=True)
        else:
            parts = [] if self.handle is None else [(0, outcome)]
            self._give([*parts, (0, ENDED)], is_last=True)

    def abandon(self) -> None:
        """Let the model drop the request, because nobody takes its parts any more."""
        if self.handle is not None:
            self.handle.cancel()
        self._finish()

    def _finish(self) -> None:
        """Note that no more parts will come."""
        if not self.is_finished:
            self.is_finished: bool = True
            self.groups, self.handle = [], None
            self.workers.remove(self)
            self.workers.next()
