"""Items on their way to a worker process, and their outcomes on the way back."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from pipeline.engine.convoy import MemberOutcomes
from pipeline.engine.op.channel import Item
from pipeline.engine.run.hooks import asking
from pipeline.engine.run.stage_errors import unsendable
from pipeline.engine.sequences.feeds import feeds_sequences
from pipeline.errors import (
    PayloadTypeError,
    PipelineError,
    error_from_fields,
    error_to_fields,
)
from pipeline.op import Op
from pipeline.routes import Answer, Goto, Routed, answer_with
from pipeline.workers.process.wire import ErrorFields, ItemOutcome, WireConvoy, WireItem
from pipeline.workers.shm.payload import (
    BlockReader,
    PayloadMemory,
    SerializedPayload,
    SharedPayload,
    serialize,
)

_LOGGER = logging.getLogger(__name__)

_MIN_INT, _MAX_INT = -(2**63), 2**64 - 1  # of msgpack


def outcome_of(outcome: Any, maker: str, memory: PayloadMemory, arena: BlockReader) -> ItemOutcome:
    """Return the wire form of an answer of the Op `maker`, or of an error.

    If an answer cannot be sent, the outcome is an error.
    """
    if not isinstance(outcome, PipelineError):
        to = outcome.to if isinstance(outcome, Goto) else None
        answer = outcome.answer if isinstance(outcome, Routed) else outcome
        try:
            payload = serialize(answer, memory, arena)
            is_final = isinstance(outcome, Answer)
            head = outcome.head if is_final else None
            return ItemOutcome(payload, None, to, is_final, head=head)
        except PipelineError as error:
            outcome = unsendable(error, maker)
    return ItemOutcome(error=ErrorFields(*error_to_fields(outcome), outcome.op))


def error_of(fields: ErrorFields | None) -> PipelineError | None:
    """Return the error in a message, if there is one."""
    if fields is None:
        return None
    error = error_from_fields(
        fields.name, fields.code, fields.text, fields.retry_after_s, fields.head
    )
    if fields.op is not None:
        error.op = fields.op
    return error


class PayloadStore(Protocol):
    """Memory for payloads on their way to workers and back."""

    def serialize(self, payload: Any) -> SharedPayload: ...
    def payload(self, serialized: SerializedPayload, maker: str = "") -> SharedPayload: ...


class ItemCodec:
    """The server's side: makes wire forms of an Op's items, and reads their outcomes."""

    def __init__(self, op: Op, memory: PayloadStore) -> None:
        self._op_name = op.name
        self._gathers = op.pipeline_gathers
        self._asks_context = bool(asking(op)) or feeds_sequences(op)
        self._memory = memory

    def item(self, item: Item, payloads: list[SharedPayload]) -> WireItem:
        """Return the wire form of an item; `payloads` keeps the memory of its inputs.

        Raises:
            PipelineError: it cannot be sent.
        """
        if not _MIN_INT <= item.log_id <= _MAX_INT:
            raise PayloadTypeError(
                f"log_id {item.log_id} has more than 64 bits and cannot be sent to another "
                "process: return a smaller one from unpack_request_package"
            )
        inputs, gathered = item.inputs, {}
        if self._gathers:
            gathered = {
                name: [self.serialized(name, part, payloads) for part in parts]
                for name, parts in inputs.items()
                if isinstance(parts, list)
            }
        inputs = {
            name: self.serialized(name, part, payloads)
            for name, part in inputs.items()
            if name not in gathered
        }
        info = item.info if self._asks_context else None
        wire = WireItem(
            item.data_id, item.log_id, inputs, item.deadline, item.trace, item.is_feed, info
        )
        if gathered:
            wire.gathered = gathered
        if (convoy := item.convoy) is not None:
            infos = convoy.infos if self._asks_context else []
            wire.convoy = WireConvoy(convoy.ids, convoy.rows, infos, sorted(convoy.left))
        return wire

    def serialized(self, maker: str, part: Any, payloads: list[SharedPayload]) -> SerializedPayload:
        """Return the wire form of an answer of `maker`; raises as `item` does."""
        if isinstance(part, SharedPayload):
            return part.serialized
        try:
            payload = self._memory.serialize(part)
        except PipelineError as error:
            raise unsendable(error, maker) from error
        payloads.append(payload)
        return payload.serialized

    def states(self, taken: object) -> Any:
        """Return the states of a sequence; None: they could not be sent."""
        if isinstance(taken, SharedPayload):
            return taken
        _LOGGER.warning("[%s] states of a sequence cannot be kept: %s", self._op_name, taken)
        return None

    def outcome(
        self, outcome: ItemOutcome
    ) -> SharedPayload | Routed | PipelineError | MemberOutcomes | None:
        """Return the outcome of an item."""
        if outcome.members is not None:
            return MemberOutcomes([self.outcome(member) for member in outcome.members])
        if outcome.payload is None:
            return error_of(outcome.error)
        payload = self._memory.payload(outcome.payload, self._op_name)
        if outcome.to is not None:
            return Goto(payload, outcome.to)
        return answer_with(payload, outcome.head) if outcome.is_final else payload
