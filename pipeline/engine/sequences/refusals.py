"""Errors that requests of sequences are refused with; where Triton has words, they are these."""

from __future__ import annotations

from pipeline.engine.op.channel import Item
from pipeline.engine.request import RequestState
from pipeline.engine.sequences.arrivals import how_it_left
from pipeline.errors import (
    DeadlineError,
    InputError,
    OverloadedError,
    PipelineError,
    RequestCancelledError,
    WorkerDiedError,
)

_OF_TRITON = {
    "id": "inference request to model '{op}' must specify a non-zero or non-empty correlation ID",
    "rows": "inference request to model '{op}' must specify batch-size 1 due to requirements of "
    "sequence batcher",
    "start": "inference request for sequence {id} to model '{op}' must specify the START flag on "
    "the first request of the sequence",
}
_OURS = {  # for those who have written these words
    "id": "Op '{op}' has sequences: a request of one says sequence_id, a number that is not 0 or a "
    "text",
    "rows": "Op '{op}' has sequences: a request of one has one row",
    "start": "Op '{op}' knows no sequence {id}: the first request of one says sequence_start: "
    "true. It is over behind sequence_end, and when nothing has come of it for max_idle_ms",
}

EXPIRED = "timeout of the corresponding sequence has been expired"


def refusal_of(op_name: str, item: Item, is_new: bool) -> PipelineError | None:
    """Return why a request is none of a sequence; `is_new`: there is none of its id."""
    wrong = _wrong(item, is_new)
    if wrong is None:
        return None
    target, info = item.request.target, item.info
    is_v2 = (target is not None and target.op is not None) or "sequence_id" in info.parameters
    words = _OF_TRITON if is_v2 else _OURS
    return InputError(words[wrong].format(op=op_name, id=info.sequence_id))


def _wrong(item: Item, is_new: bool) -> str | None:
    info = item.info
    if not info.sequence_id:
        return "id"
    if item.request.rows > 1:
        return "rows"
    return "start" if is_new and not info.sequence_start else None


def dropped(op_name: str, id: int | str, has_slot: bool, request: RequestState) -> PipelineError:
    """Return what the others of a sequence are told when a request of it has left."""
    if not has_slot and isinstance(request.error, DeadlineError):
        return OverloadedError(EXPIRED)
    how = how_it_left(request.error)
    return RequestCancelledError(
        f"[{op_name}] a request of sequence {id} {how}, which ended the sequence"
    )


def lost(op_name: str, id: int | str) -> PipelineError:
    """Return what the requests of a sequence are told whose worker was lost."""
    return WorkerDiedError(
        f"[{op_name}] sequence {id} has ended: the worker that it was at was lost, and what that "
        "kept of it. Begin anew with sequence_start"
    )
