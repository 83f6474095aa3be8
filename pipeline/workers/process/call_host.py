"""CallHost: the server's end of a worker process's calls to other models."""

from __future__ import annotations

import asyncio
import functools
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from pipeline.data import ChannelData
from pipeline.engine.model_calls import MetricUse, ModelChange, ModelHost, ModelPart, PeerCall
from pipeline.engine.run.stage_errors import unsendable
from pipeline.errors import PipelineError, error_to_fields
from pipeline.workers.peer_calls import ModelCheck, PeerSink, changed, failure_of, untraced, used
from pipeline.workers.process.calls import AnswersMessage, CallsMessage, WireAnswer, WirePartLimit
from pipeline.workers.process.wire import ErrorFields, Link, WireParts, framed
from pipeline.workers.shm.payload import SerializedPayload, SharedPayload
from pipeline.workers.shm.server_memory import ServerMemory


class CallHost:
    """The calls of one worker process, on the event loop.

    They end with the worker: its running calls are cancelled.

    Args:
        models: answer the calls.
        maker: the Op of the worker.
        on_parts: takes parts of a job that its model sends by itself.

    Attributes:
        region: of the arena, for the inputs of the worker's calls.
        check: of the worker's model; None: it has none.
    """

    def __init__(
        self,
        models: ModelHost,
        memory: ServerMemory,
        loop: asyncio.AbstractEventLoop,
        maker: str,
        on_parts: Callable[[WireParts], None],
    ) -> None:
        self._models = models
        self._metrics = models.metrics()
        self._memory = memory
        self._loop = loop
        self._maker = maker
        self._on_parts = on_parts
        self.check: ModelCheck | None = None
        self._asked: dict[int, _HostedCall] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.theirs: socket.socket = theirs
        self.region: int = memory.open_region()
        self._link = Link(ours, loop, CallsMessage, self._take, lambda: None)

    def send_init(self, sock: socket.socket, frame: bytes) -> None:
        """Send a worker's first frame, with its end of the socket."""
        try:
            socket.send_fds(sock, [frame], [self.theirs.fileno()])
        except OSError:
            pass  # it is dead already; its owner will be notified
        finally:
            self.theirs.close()

    def close(self) -> None:
        """End all calls: the worker has ended."""
        self._link.close()
        self.theirs.close()
        if self.check is not None:
            self.check.answered(False)
        for asked in list(self._asked.values()):
            asked.sink.abandon()
        self._asked.clear()
        self._metrics.close()
        self._memory.close_region(self.region)

    # Calls --------------------------------------------------------------------------------------

    def send_room(self, room: WirePartLimit) -> None:
        """Send the worker the number of wanted parts of a job."""
        self._link.send(framed(AnswersMessage([], self._memory.take_freed(self.region), room)))

    def _take(self, calls: CallsMessage) -> None:
        if calls.parts is not None:
            self._on_parts(calls.parts)
        if calls.has_check:
            self.check = ModelCheck(self._loop, self._begin_check)
        if calls.is_ready is not None and self.check is not None:
            self.check.answered(calls.is_ready)
        for wire in calls.calls:
            if wire.metric is not None:
                self._use(wire.number, wire.metric)
            elif wire.change is not None and wire.feeds is not None:
                work = self._change(wire.number, wire.change, wire.feeds)
                task = self._loop.create_task(work)
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif wire.call is not None and wire.feeds is not None:
                self._begin(wire.number, wire.call, wire.feeds)
        for number in calls.taken:
            if number in self._asked and self._asked[number].taken():
                del self._asked[number]
        for number in calls.cancelled:
            if number in self._asked:
                self._asked.pop(number).sink.abandon()

    def _begin_check(self) -> None:
        freed = self._memory.take_freed(self.region)
        self._link.send(framed(AnswersMessage([], freed, checks=True)))

    def _begin(self, number: int, call: PeerCall, feeds: SerializedPayload) -> None:
        payload = self._memory.payload(feeds, self._maker)
        asked = self._asked[number] = _HostedCall(self, number, call.takes_parts)
        try:
            arrays: dict[str, Any] = payload.open(copy=False)
        except Exception as error:
            asked.sink.is_over = True
            self.answered(asked, ChannelData(0, error=failure_of(error)), is_final=True)
        else:
            asked.sink.begin(self._models, call, arrays)

    def _use(self, number: int, use: MetricUse) -> None:
        part = used(self._metrics, use)
        if number:
            self._send(WireAnswer(number, error=_fields(part.error), value=part.value))

    async def _change(self, number: int, change: ModelChange, files: SerializedPayload) -> None:
        self._send(await self._changed(number, change, files))  # with the blocks of the files

    async def _changed(
        self, number: int, change: ModelChange, files: SerializedPayload
    ) -> WireAnswer:
        try:
            opened = self._memory.payload(files, self._maker).open(False, bytes_as_views=True)
            part = await changed(self._models, msgspec.structs.replace(change, files=opened))
        except Exception as error:
            part = ModelPart(error=untraced(error))
        return WireAnswer(number, error=_fields(part.error), is_ready=part.is_ready)

    def answered(self, asked: _HostedCall, answer: ChannelData | None, is_final: bool) -> None:
        """Send an answer, or the last one; None: there is no other."""
        number = asked.number
        if self._asked.get(number) is not asked:
            return  # nobody waits for it
        error = None if answer is None else answer.error
        outputs: SerializedPayload | None = None
        if answer is not None and error is None:
            try:
                payload = self._memory.serialize(answer.payload)
            except PipelineError as failure:
                error = unsendable(failure, self._maker)
            else:
                outputs = payload.serialized
                if not is_final or outputs.buffers:
                    asked.unread.append(payload)
        if error is not None and not is_final:  # our own error: the part cannot be sent
            asked.sink.abandon()
            is_final = True
        if is_final and not asked.unread:
            del self._asked[number]
        self._send(WireAnswer(number, outputs, _fields(error), is_final))

    def _send(self, answer: WireAnswer) -> None:
        self._link.send(framed(AnswersMessage([answer], self._memory.take_freed(self.region))))


class _HostedCall:
    """One request of a worker."""

    def __init__(self, host: CallHost, number: int, takes_parts: bool) -> None:
        self.number: int = number
        self.sink: PeerSink = PeerSink(takes_parts, functools.partial(host.answered, self))
        self.unread: deque[SharedPayload] = deque()  # sent and not taken

    def taken(self) -> bool:
        """Note that the worker has taken an answer; return whether it was the last."""
        if self.unread:
            self.unread.popleft()
        self.sink.took_part()
        return self.sink.is_over and not self.unread


def _fields(error: PipelineError | None) -> ErrorFields | None:
    return None if error is None else ErrorFields(*error_to_fields(error))
