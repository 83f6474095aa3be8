"""Streams whose parts a model sends by itself: in the worker, and as the server sees them.

The job of such a request ends when the model has taken the request. Its parts go over the socket
for calls, from any thread of the model, as far as there is room; the rest waits here.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast, runtime_checkable

from msgspec import field

from pipeline.data import RequestContext, contexts_of
from pipeline.engine.run.bound_op import BoundOp
from pipeline.engine.streams.flow import ENDED, UNWANTED
from pipeline.engine.streams.run import StreamRun
from pipeline.errors import PipelineError
from pipeline.routes import Answer
from pipeline.tracing.context import child, first_of, set_call_trace
from pipeline.workers.process.calls import CallLink, WirePartLimit
from pipeline.workers.process.pages import AbandonedRequests, StatusPage
from pipeline.workers.process.wire import Result, SliceEnd, WireJob, WireParts

if TYPE_CHECKING:
    from pipeline.workers.process.main import OpenedItem
    from pipeline.workers.process.slices import StreamedItem


@runtime_checkable
class SendingOp(Protocol):
    """An Op of this library that sends parts by itself."""

    def pipeline_send(
        self,
        feeds: Sequence[Any],
        contexts: Sequence[RequestContext],
        tells: Sequence[Callable[[Any], None]],
    ) -> None:
        """Take requests; the function in `tells` of each takes its parts, and its end: ENDED, an
        error or Answer.

        Any thread may call these, also after this has returned. Raises PipelineError.
        """


class SentStream(StreamRun, eq=False):
    """Requests of one batch whose model sends parts by itself, as the server sees them.

    Attributes:
        notified: the number of parts of each item that the worker was allowed to send.
    """

    is_step: ClassVar[bool] = True

    notified: list[int] = field(default_factory=list)

    @property
    def has_work(self) -> bool:
        if self.is_finished or self.is_superseded:
            return False
        return any(map(self.has_news, range(len(self.items))))

    def has_news(self, place: int) -> bool:
        """Return whether the worker needs to know the current number of wanted parts of an item."""
        if self.ended[place]:
            return False
        if not self._is_live(place):
            return True
        sent, least = self.notified[place], max(1, self.least)
        return self.allowed[place] > sent and sent - self.made[place] < least

    def is_unwanted(self, place: int) -> bool:
        """Return whether nobody wants parts of an item any more."""
        return self.allowed[place] == UNWANTED or bool(self.items[place].is_over)


class SentStreams:
    """The requests of a worker process whose model may send more parts.

    Args:
        link: sends the parts.
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
        forgotten: AbandonedRequests,
        item: Callable[[OpenedItem, AbandonedRequests], StreamedItem],
    ) -> None:
        self._link = link
        self._op = op
        self._status = status
        self._forgotten = forgotten
        self._item = item
        self.maker: str = op.name
        self._sending: dict[tuple[int, int], _Sending] = {}  # by job and place
        link.on_room = self._room

    def begin(self, job: WireJob, opened: Sequence[OpenedItem]) -> Result:
        """Give requests to the model; it may send parts at once, and later."""
        start_ns = time.monotonic_ns()
        taken: list[_Sending] = []
        for place, stream in enumerate(opened):
            item = self._item(stream, self._forgotten)
            allowed = job.allowed[place] if job.allowed else 0
            sending = _Sending(self, self._link, (job.number, place), item, allowed, start_ns)
            self._sending[job.number, place] = sending
            if stream.failure is None:
                taken.append(sending)
            else:
                sending.tell(stream.failure)
        if taken:
            self._send_to_model(job, taken)
        end_ns = time.monotonic_ns()
        end = SliceEnd([], [], [], False, end_ns - start_ns)
        return Result(job.number, [], False, start_ns, start_ns, end_ns, end_ns, slice_end=end)

    def _send_to_model(self, job: WireJob, taken: Sequence[_Sending]) -> None:
        items = [sending.item for sending in taken]
        places = None if job.places is None else [job.places[taking.key[1]] for taking in taken]
        trace = first_of(item.trace for item in items)
        set_call_trace(child(trace, self._op.name, "process") if trace else "")
        self._status.call_begins()
        try:
            op, contexts = cast(SendingOp, self._op.op), contexts_of(items, places)
            tells = [sending.tell for sending in taken]
            op.pipeline_send([item.inputs for item in items], contexts, tells)
        except PipelineError as error:
            for sending in taken:
                sending.tell(error)
        finally:
            self._status.call_ends()

    def over(self, key: tuple[int, int]) -> None:
        """Forget a request."""
        self._sending.pop(key, None)

    def _room(self, room: WirePartLimit) -> None:
        sending = self._sending.get((room.number, room.place))
        if sending is not None:
            sending.take_room(room)


class _Sending:
    """One request, by its job and its place there, with the parts that have no room yet.

    Attributes:
        key: number of the job, and place.
        item: the request.
    """

    def __init__(
        self,
        streams: SentStreams,
        link: CallLink,
        key: tuple[int, int],
        item: StreamedItem,
        allowed: int,
        start_ns: int,
    ) -> None:
        self._streams = streams
        self._link = link
        self.key: tuple[int, int] = key
        self.item: StreamedItem = item
        self._allowed = allowed
        self._start_ns = start_ns
        self._lock = threading.Lock()
        self._waiting: deque[Any] = deque()
        self._sent = 0
        self._is_over = False

    def tell(self, outcome: Any) -> None:
        """Send a part, or the end: an error, an Answer or ENDED; from any thread."""
        with self._lock:
            self._waiting.append(outcome)
            self._send()

    def take_room(self, room: WirePartLimit) -> None:
        """Set the number of wanted parts, or end the request if none is wanted any more."""
        with self._lock:
            self._allowed = room.allowed
            if room.is_over:
                self.item.is_left = True
                self._end()
            else:
                self._send()

    def _send(self) -> None:
        number, place = self.key
        entries: list[tuple[int, Any]] = []
        while self._waiting and not self._is_over:
            outcome = self._waiting[0]
            is_part = not (outcome is ENDED or isinstance(outcome, PipelineError))
            if is_part and self._sent >= self._allowed:
                break
            entries.append((place, self._waiting.popleft()))
            self._sent += is_part
            if not is_part or isinstance(outcome, Answer):
                self._end()
        if entries:
            parts = WireParts(number, [], self._start_ns, self._start_ns)
            self._link.send_parts(parts, entries, self._streams.maker)

    def _end(self) -> None:
        self._is_over = True
        self._waiting.clear()
        self._streams.over(self.key)
