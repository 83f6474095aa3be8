"""Running: the request that an Op is working on, for what is logged meanwhile.

Only where somebody reads it: an Op without `Notes` notes nothing, and costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, NamedTuple, Self

from pipeline.tracing.context import child, first_of

_TRACE_ID, _SPAN_ID = slice(3, 35), slice(36, 52)  # where they stand in a `traceparent`


class Running(NamedTuple):
    """A request at an Op, or those of one call of `process`. Empty: nobody knows.

    `traceparent` is that of the request's own span, as its frontend has made it.
    """

    op: str = ""
    stage: str = ""
    data_ids: tuple[int, ...] = ()
    log_id: int = 0
    traceparent: str = ""

    def fields(self) -> dict[str, Any]:
        """Return what is known, by the names that logs have for it; of the trace see `span`."""
        known: dict[str, Any] = {}
        if self.op:
            known["op"] = self.op
        if self.stage:
            known["stage"] = self.stage
        if len(self.data_ids) == 1:
            (known["data_id"],) = self.data_ids
        elif self.data_ids:
            known["data_ids"] = list(self.data_ids)
        if self.log_id:
            known["log_id"] = self.log_id
        return known

    def span(self) -> tuple[str, str]:
        """Return the ids of the trace and of the span, as hex digits; "" for no trace.

        The span is that of the stage, of the first time that the request is at this Op.
        """
        text = self.traceparent
        if self.op and self.stage:
            text = child(text, self.op, self.stage)
        return text[_TRACE_ID], text[_SPAN_ID]


_running: ContextVar[Running | None] = ContextVar("pipeline_running", default=None)


def running() -> Running | None:
    """Return what this thread, or task, was last noted to work on."""
    return _running.get()


class Notes:
    """Takes notes of what Ops work on, each in the context of its worker; see `Op.pipeline_notes`.

    Attributes:
        trace_of: returns the `traceparent` of a request, by its data id; "": it has none, or
            is not known in this process.
    """

    def __init__(self) -> None:
        self.trace_of: Callable[[int], str] = lambda data_id: ""

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()  # in another process nobody knows of traces

    def begin(self, op: str, stage: str, data_id: int, log_id: int) -> None:
        """Note a request."""
        _running.set(Running(op, stage, (data_id,), log_id, self.trace_of(data_id)))

    def around(self, op: str, stage: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that notes its request, whose ids are its last two arguments."""

        def call(*args: Any) -> Any:
            self.begin(op, stage, args[-2], args[-1])
            return method(*args)

        return call

    def begin_call(self, op: str, stage: str, items: Iterable[Any]) -> None:
        """Note the requests of one call: they have data_id, log_id and trace."""
        listed = list(items)
        ids = tuple(item.data_id for item in listed)
        trace = first_of(item.trace for item in listed)
        _running.set(Running(op, stage, ids, listed[0].log_id, trace))
