"""Streams whose parts a model sends when it likes: in the worker, and as the server sees them.

The job of such a request is over when the model has taken it. Its parts go over the socket for
calls, from whatever thread the model sends them in, as far as there is room; the rest waits here.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from pipeline.data import RequestContext, contexts_of
from pipeline.engine.bound_op import BoundOp
from pipeline.engine.streams.flow import ENDED
from pipeline.engine.streams.run import UNWANTED, StreamRun
from pipeline.errors import PipelineError
from pipeline.tracing.context import child, set_call_trace
from pipeline.workers.process.calls import CallLink, WireRoom
from pipeline.workers.process.pages import ForgottenRequests, StatusPage
from pipeline.workers.process.wire import Result, SliceEnd, WireJob, WireParts

if TYPE_CHECKING:
    from pipeline.workers.process.main import OpenedItem
    from pipeline.workers.process.slices import StreamedItem


@runtime_checkable
class SendingOp(Protocol):
    """An Op of ours that sends parts by itself."""

    def pipeline_send(
        self, feed: Any, context: RequestContext, tell: Callable[[Any], None]
    ) -> None:
        """Take a request; `tell` gets its parts, an error, which ends it, or ENDED.

        Any thread may call that, also when this has returned. Raises PipelineError.
        """


class SentStream(StreamRun, eq=False):
    """One request whose model sends parts when it likes, as the server sees it.

    Attributes:
        told: how many parts the worker knows that it may send.
    """

    told: int = 0

    @property
    def has_work(self) -> bool:
        if self.is_finished or self.is_superseded:
            return False
        if not self._is_live(0):
            return True
        return self.allowed[0] > self.told and self.told - self.made[0] < max(1, self.least)


class SentStreams:
    """The requests of a worker process whose model may send more parts.

    Args:
        link: takes them.
        op: the worker's copy.
        item: returns an item that knows when nobody waits for it.

    Attributes:
        maker: name of the Op.
    """

    def __init__(
        self,
        link: CallLink,
        op: BoundOp,
        status: StatusPage,
        forgotten: ForgottenRequests,
        item: Callable[[OpenedItem, ForgottenRequests], StreamedItem],
    ) -> None:
        self._link = link
        self._op = op
        self._status = status
        self._forgotten = forgotten
        self._item = item
        self.maker: str = op.name
        self._sending: dict[int, _Sending] = {}
        link.on_room = self._room

    def begin(self, job: WireJob, opened: OpenedItem) -> Result:
        """Have the model take a request; it may send parts at once, and later."""
        start_ns = time.monotonic_ns()
        item = self._item(opened, self._forgotten)
        allowed = job.allowed[0] if job.allowed else 0
        sending = _Sending(self, self._link, job.number, item, allowed, start_ns)
        self._sending[job.number] = sending
        set_call_trace(child(item.trace, self._op.name, "process") if item.trace else "")
        self._status.call_begins()
        try:
            if opened.failure is not None:
                raise opened.failure
            context = contexts_of([item], job.places)[0]
            op = cast(SendingOp, self._op.op)
            op.pipeline_send(item.inputs, context, sending.tell)
        except PipelineError as error:
            sending.tell(error)
        finally:
            self._status.call_ends()
        end_ns = time.monotonic_ns()
        end = SliceEnd([], [], [], False, end_ns - start_ns)
        return Result(job.number, [], False, start_ns, start_ns, end_ns, end_ns, slice_end=end)

    def over(self, number: int) -> None:
        """Forget a request."""
        self._sending.pop(number, None)

    def _room(self, room: WireRoom) -> None:
        sending = self._sending.get(room.number)
        if sending is not None:
            sending.take_room(room)


class _Sending:
    """One request: the parts that were not sent yet, for lack of room."""

    def __init__(
        self,
        streams: SentStreams,
        link: CallLink,
        number: int,
        item: StreamedItem,
        allowed: int,
        start_ns: int,
    ) -> None:
        self._streams = streams
        self._link = link
        self._number = number
        self._item = item
        self._allowed = allowed
        self._start_ns = start_ns
        self._lock = threading.Lock()
        self._waiting: deque[Any] = deque()
        self._sent = 0
        self._is_over = False

    def tell(self, outcome: Any) -> None:
        """Send a part, an error, which ends it, or ENDED; from any thread."""
        with self._lock:
            self._waiting.append(outcome)
            self._send()

    def take_room(self, room: WireRoom) -> None:
        """Take note of how many parts there may be, or that none is wanted any more."""
        with self._lock:
            self._allowed = room.allowed
            if room.is_over:
                self._item.is_left = True
                self._end()
            else:
                self._send()

    def _send(self) -> None:
        entries: list[tuple[int, Any]] = []
        while self._waiting and not self._is_over:
            is_part = not (self._waiting[0] is ENDED or isinstance(self._waiting[0], PipelineError))
            if is_part and self._sent >= self._allowed:
                break
            entries.append((0, self._waiting.popleft()))
            self._sent += is_part
            if not is_part:
                self._end()
        if entries:
            parts = WireParts(self._number, [], self._start_ns, self._start_ns)
            self._link.send_parts(parts, entries, self._streams.maker)

    def _end(self) -> None:
        self._is_over = True
        self._waiting.clear()
        self._streams.over(self._number)


def is_unwanted(run: SentStream) -> bool:
    """Return whether nobody wants parts of a stream any more."""
    return run.allowed[0] == UNWANTED or bool(run.items[0].is_over)
