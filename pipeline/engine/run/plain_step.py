"""PlainStep: one request at an Op without `process`, of which most trips are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pipeline.engine.run.bound_op import BoundOp
from pipeline.engine.run.stage_errors import stage_error

if TYPE_CHECKING:
    from pipeline.engine.run.stages import BatchRun


class PlainStep:
    """A BatchRun of one item at an Op that `is_plain`, in less time; once it has run, of the next.

    Attributes:
        inputs: what the Op reads.
        ready_ns: when that was there.
        start_ns: when it begins; who runs it says so.
        outcome: its payload, a Goto or Answer with that, or a PipelineError; None: not finished.
        apart: the batch that it has become, which may be given up meanwhile.
    """

    __slots__ = (
        "apart",
        "data_id",
        "end_ns",
        "inputs",
        "log_id",
        "outcome",
        "preprocess_end_ns",
        "ready_ns",
        "start_ns",
    )

    def __init__(self, data_id: int, log_id: int) -> None:
        self.data_id: int = data_id
        self.log_id: int = log_id
        self.inputs: Any = None
        self.ready_ns: int = 0
        self.start_ns: int = 0
        self.preprocess_end_ns: int = 0
        self.end_ns: int = 0
        self.outcome: Any = None
        self.apart: BatchRun | None = None

    def run(self, op: BoundOp, watch: object, clock_ns: Callable[[], int]) -> None:
        """Run both stages."""
        inputs, data_id, log_id = self.inputs, self.data_id, self.log_id
        stage = "preprocess"
        self.preprocess_end_ns = 0
        try:
            data = returned = op.users_preprocess(inputs, data_id, log_id)
            if type(returned) is tuple and len(returned) == 4:
                data, skip, code, _ = returned
                if code is not None or type(skip) is not bool:
                    data = None
            is_usual = type(data) is dict
            if not is_usual:
                data, _ = op.prepared(returned)
            self.preprocess_end_ns = clock_ns()
            if self.apart is not None and self.apart.is_superseded:  # another worker has it
                return
            stage = "postprocess"
            if is_usual:
                answer = op.users_postprocess(inputs, data, data_id, log_id)
                if type(answer) is tuple and len(answer) == 3 and answer[1] is None:
                    answer = answer[0]
                if type(answer) is not dict:
                    answer = op.answered(answer)
            else:
                answer = op.postprocess(inputs, data, data_id, log_id)
            self.outcome = answer
        except BaseException as error:  # user code; a worker survives even SystemExit
            self.outcome = stage_error(error, op, stage, log_id, data_id)
        self.end_ns = clock_ns()
        if not self.preprocess_end_ns:
            self.preprocess_end_ns = self.end_ns

    def tell(self) -> None:
        """Have the batch that it has become know what came of it."""
        run = self.apart
        assert run is not None, "asked by who made it a batch"
        run.outcomes = [self.outcome]
        run.start_ns, run.preprocess_end_ns = self.start_ns, self.preprocess_end_ns
        run.process_end_ns, run.end_ns = self.preprocess_end_ns, self.end_ns
