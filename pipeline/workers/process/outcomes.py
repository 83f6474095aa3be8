"""Outcomes of items, as a worker process sends them."""

from __future__ import annotations

from typing import Any

from pipeline.errors import OverloadedError, PayloadTypeError, PipelineError, error_to_fields
from pipeline.routes import Answer, Goto, Routed
from pipeline.workers.process.wire import ErrorFields, ItemOutcome
from pipeline.workers.shm.payload import BlockReader, PayloadMemory, serialize


def outcome_of(outcome: Any, maker: str, memory: PayloadMemory, arena: BlockReader) -> ItemOutcome:
    """Return an answer of the Op `maker`, or an error, as it goes over the wire.

    What cannot be sent is an error.
    """
    if not isinstance(outcome, PipelineError):
        to = outcome.to if isinstance(outcome, Goto) else None
        answer = outcome.answer if isinstance(outcome, Routed) else outcome
        try:
            payload = serialize(answer, memory, arena)
            is_final = isinstance(outcome, Answer)
            head = outcome.head if is_final else None
            return ItemOutcome(payload, None, to, is_final, head=head)
        except (PayloadTypeError, OverloadedError) as error:
            outcome = type(error)(f"[{maker}] {error}")
    return ItemOutcome(error=ErrorFields(*error_to_fields(outcome), outcome.op))
