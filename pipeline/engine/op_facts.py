"""OpFacts: what an Op's configuration and class say, once and for all."""

from __future__ import annotations

from pipeline.data import announced_batch, declares, max_batch_size_of
from pipeline.engine.hooks import asking, yields
from pipeline.op import Op, predictor_of, runs_process


class OpFacts:
    """Facts of an Op that do not change while it runs.

    Attributes:
        most_rows: that one call of `process` gets; 0: any number.
        most_fed_rows: those that are fed to it where `preprocess` is skipped.
        merges: whether requests of a batch are merged into one feed.
        asking: the names of the hooks that ask for the context of their requests.
        is_plain: whether nothing happens between `preprocess` and `postprocess`, nor behind it,
            and neither asks for that context.
        streams: the name of the hook that is a generator; "": none is.
    """

    def __init__(self, op: Op) -> None:
        self.name: str = op.name
        self.runs_process: bool = runs_process(op)
        self.has_model: bool = predictor_of(op) is not None
        most = max_batch_size_of(op)
        self.most_rows: int = most if self.has_model or declares(op) else 0
        self.most_fed_rows: int = announced_batch(most, op.pipeline_config.batch_size)
        self.merges: bool = op.pipeline_merges
        self.attempts: int = max(1, op.pipeline_config.retry)
        self.timeout_s: float | None = op.pipeline_config.timeout_s
        self.jumps: bool = op.is_jump_op()
        self.asking: frozenset[str] = asking(op)
        streaming = [hook for hook in ("process", "postprocess") if yields(op, hook)]
        self.streams: str = streaming[0] if streaming else ""
        self.is_plain: bool = not (
            self.runs_process
            or self.has_model
            or self.most_rows
            or self.jumps
            or self.asking
            or self.streams
        )
