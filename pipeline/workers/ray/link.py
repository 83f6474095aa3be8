"""ActorLink: the server's end of the connection to one actor; and the threads that call Ray.

A call takes a good part of a millisecond of its thread, and longer with large values: none is made
on the event loop. Results are posted to the loop.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

from pipeline.errors import described
from pipeline.workers.inbox import LoopInbox
from pipeline.workers.process.wire import Jobs, WorkerReport, encoded
from pipeline.workers.ray.actor import RayActor
from pipeline.workers.ray.api import (
    ActorGoneError,
    Demands,
    ObjectGoneError,
    RayApi,
    UnreachableError,
)
from pipeline.workers.ray.cargo import ActorSetup
from pipeline.workers.ray.objects import (
    ActorCall,
    ActorReply,
    RayMemory,
    decode_reply,
    numbers_in,
    objects_in,
    renumber,
)

_LOGGER = logging.getLogger(__name__)

Call = Callable[[], object]


class Sender(threading.Thread):
    """A thread that makes calls to Ray, one after the other."""

    def __init__(self, name: str) -> None:
        super().__init__(name=f"pipeline-ray-{name}", daemon=True)
        self._calls: SimpleQueue[Call | None] = SimpleQueue()

    def do(self, call: Call) -> None:
        """Queue a call, which handles its own exceptions."""
        self._calls.put(call)

    def close(self) -> None:
        """End after all calls so far."""
        self._calls.put(None)

    def run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception:  # a defect of this library: waiting requests have a deadline
                _LOGGER.exception("a call into Ray failed")
            del call  # free its data while the thread waits


@dataclass(frozen=True, slots=True)
class RayContext:
    """Services that all actors of a server share.

    `control` makes the calls that no batch waits for, so that they are not delayed when an Op's own
    sender, made by `make_sender`, puts a large value.
    """

    api: RayApi
    memory: RayMemory
    inbox: LoopInbox
    control: Sender
    on_record: Callable[[bytes], None]
    models: None = None
    make_sender: Callable[[str], Sender] = Sender


class LinkOwner(Protocol):
    """Listener to an actor, on the loop: its worker.

    Attributes:
        objects: how many objects a reply may have. More large values share these objects, or are in
            the reply.
    """

    @property
    def objects(self) -> int: ...
    def opens(self, report: WorkerReport) -> list[int]:
        """Return the numbers of the objects in a report that the server itself will read."""

    def on_began(self, node: str, pid: int) -> None: ...
    def on_report(self, report: WorkerReport) -> None: ...
    def on_running(self, job: int, age_s: float, call_age_s: float) -> None: ...
    def on_job_lost(self, number: int, why: str) -> None: ...
    def on_unreachable(self) -> None: ...
    def on_end(self, why: str) -> None: ...


@dataclass(slots=True, eq=False)
class _ArrivedReport:
    """A report that has arrived; it is passed on when all of its objects have arrived."""

    report: WorkerReport
    numbers: list[int]
    missing: int = 0
    lost: str = ""


class ReportsInOrder:
    """Reports of an actor: passed on in order, when the server has the objects that it reads."""

    def __init__(self, memory: RayMemory, inbox: LoopInbox, owner: LinkOwner) -> None:
        self._memory = memory
        self._inbox = inbox
        self._owner = owner
        self._next = 1  # the number of the next report to be passed on
        self._arrived: dict[int, _ArrivedReport] = {}

    def take(self, message: Any, objects: Sequence[Any] = ()) -> ActorReply:
        """Take a reply with its objects, or references to them; pass on its reports, in order."""
        frame, *values = message if isinstance(message, tuple) else (message,)
        reply = decode_reply(frame)
        used = sorted({number for _, report in reply.reports for number in objects_in(report)})
        adopt = self._memory.adopt
        if values:
            numbers = {at: adopt(None, values[at]) for at in used}
        else:
            numbers = {at: adopt(objects[at]) for at in used}
        for serial, report in reply.reports:
            renumber(report, numbers)
            self._arrived[serial] = arrived = _ArrivedReport(report, objects_in(report))
            for number in arrived.numbers:
                self._memory.hold(number)
            self._fetch(arrived)
        self._pass_on_ready()
        return reply

    def _fetch(self, arrived: _ArrivedReport) -> None:
        """Fetch the objects that the server itself will read."""
        for number in self._owner.opens(arrived.report):
            if not self._memory.is_here(number):
                arrived.missing += 1
                here = functools.partial(self._inbox.post, self._fetched, arrived)
                self._memory.when_here(number, here)

    def _fetched(self, arrived: _ArrivedReport, error: Exception | None) -> None:
        arrived.missing -= 1
        if error is not None:
            arrived.lost = described(error)
        self._pass_on_ready()

    def _pass_on_ready(self) -> None:
        while (arrived := self._arrived.get(self._next)) is not None and not arrived.missing:
            del self._arrived[self._next]
            self._next += 1
            self._pass_on(arrived)

    def _pass_on(self, arrived: _ArrivedReport) -> None:
        if arrived.lost and arrived.report.results:
            for result in arrived.report.results:
                self._owner.on_job_lost(result.number, arrived.lost)
        else:
            self._owner.on_report(arrived.report)
        for number in arrived.numbers:
            self._memory.release(number)

    def drain(self) -> None:
        """Pass on the reports that have come; no more will come."""
        for serial in sorted(self._arrived):
            arrived = self._arrived.pop(serial)
            if arrived.missing:
                arrived.report = WorkerReport()  # its jobs are started again
            self._pass_on(arrived)


class ActorLink:
    """The connection to one actor. On the loop, except for methods of a sender."""

    def __init__(
        self, context: RayContext, sender: Sender, owner: LinkOwner, cargo: ActorSetup, name: str
    ) -> None:
        self._api = context.api
        self._memory = context.memory
        self._inbox = context.inbox
        self._reports = ReportsInOrder(context.memory, context.inbox, owner)
        self.drain: Callable[[], None] = self._reports.drain
        self._control = context.control
        self._sender = sender
        self._owner = owner
        self._cargo = cargo
        self._name = name
        self._actor: Any = None
        self._is_open = True
        self._ended = ""

    # To the actor -------------------------------------------------------------------------------

    def start(self, demands: Demands, model_files: Sequence[Any]) -> None:
        self._control.do(functools.partial(self._start, demands, model_files))

    def _start(self, demands: Demands, model_files: Sequence[Any]) -> None:
        """Start the actor, in a sender."""
        api = self._api
        try:
            self._actor = api.start(RayActor, self._cargo, demands, self._name)
            (began,) = api.call(self._actor, "begin", model_files, 1)
        except Exception as error:  # a value that cannot be pickled, or a lost connection
            self._inbox.post(self._end, f"could not be started: {described(error)}", None)
            return
        api.when_done(began, functools.partial(self._inbox.post, self._began))
        self._poll_again()

    def work(self, work: Jobs, number: int) -> None:
        """Send one batch or slice, which is the job of this number."""
        if self._is_open:
            call = ActorCall(0, numbers_in(work), self._owner.objects, work)
            self._sender.do(functools.partial(self._work, call, number))

    def _work(self, call: ActorCall, number: int) -> None:
        """Call `work`, in a sender."""
        lost = functools.partial(self._inbox.post, self._job_lost, number)
        try:
            reply, *objects = self._call("work", call, 1 + call.count)
        except Exception as error:
            lost(error)
            return
        done = functools.partial(self._worked, number, objects)
        self._api.when_done(reply, functools.partial(self._post_result, done))

    def _call(self, method: str, call: ActorCall, returns: int) -> list[Any]:
        """Call a method of the actor, in a sender."""
        refs = [self._memory.ref(number) for number in call.numbers]
        call.sent_ns = time.monotonic_ns()
        return self._api.call(self._actor, method, (encoded(call), *refs), returns)

    def _post_result(self, done: Callable[..., None], value: Any, error: Any) -> None:
        """Post a result; in any thread."""
        self._inbox.post(done, value, error)

    def tell(self, work: Jobs) -> None:
        """Send news to a running job."""
        if self._is_open:
            call = ActorCall(0, numbers_in(work), 0, work)
            self._sender.do(functools.partial(self._tell, call))

    def _tell(self, call: ActorCall) -> None:
        """Call `tell`, in a sender."""
        try:
            self._call("tell", call, 1)
        except Exception as error:
            self._inbox.post(self._failed, error, None)

    def revoke(self, number: int, notify: Callable[[int], None]) -> None:
        """Take back all jobs up to this one; `notify` gets the last job that has begun."""

        def answered(begun: Any, error: Any) -> None:
            if error is None and self._is_open:
                notify(begun)

        def ask() -> None:
            if self._actor is None:  # it has ended
                return
            (ref,) = self._api.call(self._actor, "revoke", (number,), 1)
            self._api.when_done(ref, functools.partial(self._inbox.post, answered))

        self._control.do(ask)

    def forget(self, data_ids: Sequence[int]) -> None:
        """Tell it that nobody waits for these requests any more."""
        if self._is_open and self._actor is not None:
            args = (self._actor, "forget", (data_ids,), 1)
            self._control.do(functools.partial(self._api.call, *args))

    def finish(self) -> None:
        """Let it end after the jobs that it has."""
        if self._is_open:
            self._is_open = False
            self._sender.do(self._close)

    def _close(self) -> None:
        """Let it end, in a sender."""

        def ended(value: Any, error: Any) -> None:
            self._control.do(self._kill)

        if self._actor is None:
            self._inbox.post(self._end, "was stopped", None)
            return
        (ref,) = self._api.call(self._actor, "end", (), 1)
        self._api.when_done(ref, ended)

    def kill(self) -> None:
        """Kill it. Its results from now on are dropped."""
        self._is_open = False
        self._control.do(self._kill)

    def _kill(self) -> None:
        """Kill it, in a sender. Ray reports an unreachable actor as soon as it can."""
        try:
            if self._actor is not None:
                self._api.kill(self._actor)
        finally:
            self._inbox.post(self._end, "was killed", None)

    # From the actor -----------------------------------------------------------------------------

    def _began(self, frame: Any, error: Any) -> None:
        if error is not None:
            self._failed(error, None)
            return
        if self._is_open:
            began = decode_reply(frame)
            self._owner.on_began(began.node, began.pid)
        self._reports.take(frame)

    def _worked(self, number: int, objects: Sequence[Any], reply: Any, error: Any) -> None:
        if error is None:
            self._reports.take(reply, objects)
        elif isinstance(error, ObjectGoneError):
            self._job_lost(number, error)
        else:
            self._failed(error, None)

    def _poll(self) -> None:
        """Ask the actor for its reports, which it returns when it has some; in a sender."""
        (reply,) = self._api.call(self._actor, "poll", (), 1)
        self._api.when_done(reply, functools.partial(self._inbox.post, self._polled))

    def _polled(self, reply: Any, error: Any) -> None:
        if error is not None:
            self._failed(error, None)
            return
        if self._is_open:
            self._control.do(self._poll_again)
        running = self._reports.take(reply).running
        if self._is_open and running is not None:
            self._owner.on_running(*running)

    def _poll_again(self) -> None:
        """Ask again, in a sender."""
        try:
            self._poll()
        except Exception as error:
            self._inbox.post(self._failed, error, None)

    def _job_lost(self, number: int, error: Exception) -> None:
        if self._is_open:
            self._owner.on_job_lost(number, described(error))

    def _failed(self, error: Exception, _: object) -> None:
        """Handle a failed call: the actor has ended, or has to end."""
        if isinstance(error, ActorGoneError):
            if isinstance(error, UnreachableError) and not self._ended:
                self._owner.on_unreachable()
            self._end(f"ended: {error}", None)
            return
        if self._is_open:
            _LOGGER.error("[%s] an actor failed and is replaced: %s", self._name, described(error))
        self.kill()

    def _end(self, why: str, _: object) -> None:
        if not self._ended:
            self._is_open, self._ended = False, why
            self._owner.on_end(why)
            if self._actor is not None:
                self._control.do(self._forget_actor)

    def _forget_actor(self) -> None:
        """Drop the handle, in a sender: that may also end the actor, which takes some time."""
        self._actor = None
