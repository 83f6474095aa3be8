"""Errors that requests of sequences are refused with; where Triton has words, they are these."""

from __future__ import annotations

from pipeline.engine.channel import Item
from pipeline.engine.request import RequestState
from pipeline.engine.schedulers.arrivals import how_it_left
from pipeline.errors import (
    DeadlineError,
    InputError,
    OverloadedError,
    PipelineError,
    RequestCancelledError,
    WorkerDiedError,
)

EXPIRED = "timeout of the corresponding sequence has been expired"


def refusal_of(op_name: str, item: Item, is_new: bool) -> PipelineError | None:
    """Return why a request is none of a sequence; `is_new`: there is none of its id."""
    info = item.info
    if not info.sequence_id:
        return InputError(
            f"inference request to model '{op_name}' must specify a non-zero or non-empty "
            "correlation ID"
        )
    if item.request.rows > 1:
        return InputError(
            f"inference request to model '{op_name}' must specify batch-size 1 due to "
            "requirements of sequence batcher"
        )
    if is_new and not info.sequence_start:
        return InputError(
            f"inference request for sequence {info.sequence_id} to model '{op_name}' must "
            "specify the START flag on the first request of the sequence"
        )
    return None


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
        "kept of it. Begin anew with the START flag"
    )
