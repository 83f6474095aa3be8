"""ModelRun and ModelStream: one request of an Op at the model that it asks; its sinks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pipeline.data import ChannelData
from pipeline.engine.op.passage import PassingRun
from pipeline.engine.request import RequestState, StreamSink, UnarySink
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.streams.run import StreamRun


class ModelRun(UnarySink, PassingRun, eq=False):
    """One request of an Op at its model, whose sink it is.

    Attributes:
        workers: of the Op.
        handle: the model's request; None: it has not begun.
        early: the answer, where that was there before the model's request was.
    """

    is_ours: ClassVar[bool] = True

    workers: Any = None
    handle: RequestState | None = None
    early: Any = None

    def end(self, answer: ChannelData) -> None:
        """Take the model's answer."""
        if self.handle is None:
            self.early = answer
        else:
            self.workers.ended(self, answer)

    def let_go(self) -> None:
        """Have the model drop the request, of which nobody waits for an answer."""
        if self.handle is not None:
            self.handle.cancel()
        self.workers.tell(self, None)

    def take_times(self) -> None:
        """Let its stages take as long as the model's have."""
        handle, at_ns = self.handle, self.start_ns
        input_ns, infer_ns, output_ns = 0, 0, 0
        if handle is not None:
            input_ns, infer_ns, output_ns = handle.input_ns, handle.infer_ns, handle.output_ns
        self.preprocess_end_ns: int = at_ns + input_ns
        self.process_end_ns: int = self.preprocess_end_ns + infer_ns
        self.end_ns: int = self.process_end_ns + output_ns

    def copy_to(self, batch: BatchRun) -> None:
        """Have the batch know what came of its only request."""
        batch.outcomes, batch.is_models = [self.outcome], True
        batch.start_ns, batch.preprocess_end_ns = self.start_ns, self.preprocess_end_ns
        batch.process_end_ns, batch.end_ns = self.process_end_ns, self.end_ns


class ModelStream(StreamSink, StreamRun, eq=False):
    """One request of an Op at a model that answers in parts, whose sink it is.

    Attributes:
        taken: parts of which the model was told that they were taken.
    """

    is_ours: ClassVar[bool] = True

    workers: Any = None
    handle: RequestState | None = None
    early: Any = None
    taken: int = 0

    @property
    def data_id(self) -> int:
        """Return the number of its request."""
        return int(self.items[0].data_id)

    @property
    def has_work(self) -> bool:
        if self.is_finished or self.is_superseded:
            return False
        return min(self.made[0], self.allowed[0]) > self.taken or not self._is_live(0)

    def add(self, answers: Sequence[ChannelData]) -> None:
        """Take parts of the model's answer."""
        for answer in answers:
            self.workers.took(self, answer)

    def end(self, answer: ChannelData | None) -> None:
        """Take the end of the model's answer: all of it, or an error; None: that was all."""
        if self.handle is None:
            self.early = (answer,)
        else:
            self.workers.stream_ended(self, answer)

    def let_go(self) -> None:
        """Have the model drop the request, of which nobody takes any more."""
        if self.handle is not None:
            self.handle.cancel()
        self.workers.stream_over(self)
