"""Calls between models of the same server: the messages and the interfaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

import msgspec

from pipeline.data import NO_INFO, RequestInfo
from pipeline.engine.request import ResponseSink, StreamHandle
from pipeline.errors import PipelineError, error_from_fields, error_to_fields


class PeerCall(msgspec.Struct, frozen=True, array_like=True):
    """A request of a model to another model.

    Args:
        model: the name of the other model.
        version: -1: the latest.
        info: the request's parameters, id and so on.
        timeout_s: from now; None: only the server's limit applies.
        traceparent: of the request that the calling model runs; "": it is not traced.
        takes_parts: whether there may be several answers.
    """

    model: str
    version: int = -1
    info: RequestInfo = NO_INFO
    timeout_s: float | None = None
    traceparent: str = ""
    takes_parts: bool = False


class ModelChange(msgspec.Struct, frozen=True, array_like=True):
    """A request of a model to load or unload another model, or for its state.

    Args:
        model: the name of the other model.
        action: the kind of request.
        version: for "is_ready"; -1: any.
        config: replaces the configuration file, JSON; None: the file.
        files: contents by "<version>/<path>", which replace the folder.
        with_dependents: unload also models that only this one needs.
    """

    model: str
    action: Literal["load", "unload", "is_ready"]
    version: int = -1
    config: str | None = None
    files: Mapping[str, bytes] = {}
    with_dependents: bool = False


class MetricUse(msgspec.Struct, frozen=True, array_like=True):
    """A use of a metric family by the model that owns it; see `MetricHolder`.

    Args:
        number: of the family, in its worker.
        action: the kind of use; "drop" drops the family with all its series.
        labels: of the series.
        amount: the number that is added, set or observed.
        name: of a "family".
        text: the description of a "family".
        kind: of a "family": counter, gauge or histogram.
        buckets: upper bounds, of a "series" of a histogram.
    """

    number: int
    action: Literal["family", "series", "add", "set", "observe", "value", "drop"]
    labels: dict[str, str] = {}
    amount: float = 0.0
    name: str = ""
    text: str = ""
    kind: str = ""
    buckets: list[float] = []


class ModelPart(msgspec.Struct, frozen=True):
    """An answer to a call: outputs by name, or an error; neither: there are no more.

    `is_final`: none follows. `is_ready` answers a ModelChange, `value` a MetricUse.
    """

    outputs: Mapping[str, Any] | None = None
    error: PipelineError | None = None
    is_final: bool = True
    is_ready: bool = False
    value: float = 0.0


OnPart = Callable[[ModelPart], None]
"""Takes each answer, in a thread of this library: it must not block."""


class PendingCall(Protocol):
    """A call that has begun; all threads may call these."""

    def cancel(self) -> None:
        """Let the other model know that nobody waits for it any more."""

    def took_part(self) -> None:
        """Take note that one of several answers was taken: others may come."""


class ModelCaller(Protocol):
    """The models of the server, for a worker of it: from any thread."""

    def begin(self, call: PeerCall, feeds: Mapping[str, Any], on_part: OnPart) -> PendingCall:
        """Ask a model; `on_part` gets each answer, the last of them final. Raises PipelineError."""

    def change(self, change: ModelChange, on_part: OnPart) -> None:
        """Have a model loaded or unloaded; `on_part` gets one answer. Raises PipelineError."""

    def metric(self, use: MetricUse, on_part: OnPart | None) -> None:
        """Use a metric; `on_part` gets one answer, if it is given. Raises PipelineError."""

    def drop_metrics(self, use: MetricUse) -> None:
        """Drop a family; may be called by the garbage collector, and raises nothing."""

    def offer_check(self, check: Callable[[], bool]) -> None:
        """Have the server call `check`, in any thread, to learn whether the model is ready.

        `check` raises nothing. Raises PipelineError: the server has ended.
        """


class MetricHolder(Protocol):
    """The metrics that one worker uses, on the event loop of its server."""

    def use(self, use: MetricUse) -> float:
        """Do what a model wants, and return the value. Raises PipelineError."""

    def close(self) -> None:
        """Drop the metrics of the worker, which has ended."""


class ModelHost(Protocol):
    """The models of the server, on its event loop."""

    def begin(self, call: PeerCall, feeds: dict[str, Any], sink: ResponseSink) -> StreamHandle:
        """Ask a model. Raises PipelineError: it cannot be asked so."""

    async def change(self, change: ModelChange) -> bool:
        """Load or unload a model, or return whether it is ready. Raises PipelineError."""

    def metrics(self) -> MetricHolder:
        """Return what a worker uses metrics by."""


# Beside the outputs of an answer, in the same dict, under names that no output has ---------------

PARAMETERS = "@parameters"
"""The name of the parameters, a dict."""

LAST = "@last"
"""The name of what says that no other answer follows this one of several."""

_ERROR = "@error"
_NAMES = (PARAMETERS, LAST)


def failed_part(error: PipelineError) -> dict[str, Any]:
    """Return an error as one answer of several: others may follow it."""
    *fields, _head = error_to_fields(error)  # a model says no head
    return {_ERROR: fields}


def error_in(answer: Any) -> PipelineError | None:
    """Return the error in one answer of several; None: it is not an error."""
    if type(answer) is not dict or _ERROR not in answer:
        return None
    return error_from_fields(*answer[_ERROR])


def is_last_part(answer: Any) -> bool:
    """Return whether one answer of several says that no other follows it."""
    return type(answer) is dict and LAST in answer


def outputs_in(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outputs alone."""
    return {name: value for name, value in answer.items() if name not in _NAMES}
