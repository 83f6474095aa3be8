"""Edges: a user's unpack and pack, and the pack of arrays, in one go with quick Ops next to them.

A request then goes to the first Ops before it is unpacked, and a walk begins with that; the loop
only hands on what was packed at the end of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import field

from pipeline.engine.channel import Item
from pipeline.engine.fusable import goes, is_bound
from pipeline.engine.hosting import is_hosted
from pipeline.engine.pack_jobs import Packer, PackJob, Unpacker
from pipeline.engine.walk import Walk, longest_ns
from pipeline.engine.walk_api import Lender
from pipeline.errors import PipelineError
from pipeline.routes import Answer

if TYPE_CHECKING:
    from pipeline.engine.dispatcher import OpDispatcher
    from pipeline.engine.executor import Executor
    from pipeline.engine.request import RequestState

_BEFORE, _BEHIND = -1, 1 << 30  # the places of unpack and pack among the steps of a walk


class Unopened:
    """Stands for what a request will be unpacked to."""


UNOPENED = Unopened()


class Opening(msgspec.Struct, eq=False):
    """Requests of a batch that were not unpacked when it left, and how they fared.

    Attributes:
        size: requests of the batch.
        waiting: those that are not unpacked yet.
        jobs: what was done.
        refused: those that cannot be unpacked, and why; or what is their answer already.
        unpacked: those that go on, with those that had been unpacked before.
        is_cut: whether the walk ended here.
    """

    size: int
    waiting: list[Item] = field(default_factory=list)
    jobs: list[PackJob] = field(default_factory=list)
    refused: list[tuple[RequestState, PipelineError | Answer]] = field(default_factory=list)
    unpacked: list[Item] = field(default_factory=list)
    is_cut: bool = False

    def missing(self, items: Sequence[Item]) -> int:
        """Return how many requests are not in the batch any more."""
        return self.size - len(items)


def _is_unopened(item: Item) -> bool:
    return any(part is UNOPENED for part in item.inputs.values())


class Edges:
    """Unpack and pack as parts of walks.

    Args:
        looks: filters' hooks that look at a request whose payload they do not need; None: there
            are others, who want to see the payload on the loop.

    Attributes:
        turned_back: how often requests left each Op's queue for no turn there, for they had to be
            unpacked first.
    """

    def __init__(
        self,
        executor: Executor,
        unpacker: Unpacker,
        packer: Packer,
        clock_ns: Callable[[], int],
        looks: Sequence[Callable[[RequestState, Any], None]] | None,
    ) -> None:
        self._executor = executor
        self._fusing = executor.fusing
        self._unpacker = unpacker
        self._packer = packer
        self._clock_ns = clock_ns
        self._looks = looks or ()
        self._may_unpack = looks is not None
        self.turned_back: Counter[str] = Counter()
        self._first: OpDispatcher | None = None  # which gets requests that are not unpacked
        self._fusing.edges = self
        unpacker.changed = packer.changed = self._fusing.changed

    # On the loop --------------------------------------------------------------------------------

    def go_along(self, leader: OpDispatcher, group: Sequence[OpDispatcher]) -> bool:
        """Return whether walks through a group unpack its requests, or pack its answers."""
        if is_hosted(leader):
            return False
        return self._begins(leader) or (self._packer.goes and self._executor.last in group)

    def look_again(self) -> None:
        """Look for what binds the user's methods to their own threads."""
        for edge in (self._unpacker, self._packer):
            if edge.may_be_lent and edge.pace.is_quick and is_bound(edge.op, edge.workers):
                edge.may_be_lent = False

    def _begins(self, leader: OpDispatcher) -> bool:
        receivers = self._executor.receivers
        is_quick = self._unpacker.may_be_lent and self._unpacker.pace.is_quick
        if not (self._may_unpack and is_quick and len(receivers) == 1):
            return False
        return receivers[0][0] is leader and not leader.channel.is_join

    def regrouped(self) -> None:
        """Find out who gets requests that are not unpacked; those that wait go the usual way."""
        first, self._first, self._unpacker.begin = self._first, None, None
        if first is not None:
            self._take_out(first)
        for node, _ in self._executor.receivers[:1]:
            if not (goes(node) and not is_hosted(node) and self._begins(node)):
                continue
            if self._fusing.plan(node) is not None:
                self._first, self._unpacker.begin = node, self._begin

    def _begin(self, request: RequestState) -> None:
        """Send a request to the first Ops as it is."""
        for look in self._looks:
            look(request, None)
        self._executor.start_unopened(request, UNOPENED)

    def _take_out(self, node: OpDispatcher) -> None:
        """Have what waits at an Op unpacked as ever."""
        now = self._executor.loop.time()
        items = node.scheduler.clear()
        self.turned_back[node.name] += len(items)
        for item in items:
            if _is_unopened(item):
                self._unpack_apart(item)
            else:
                node.scheduler.add(item, now)
        self._executor.mark_dirty(node)

    def _unpack_apart(self, item: Item) -> None:
        if not item.is_over:
            item.request.live -= 1
            self._unpacker.submit(item.request)

    def lost(self, walk: Walk) -> None:
        """Have what no worker took unpacked as ever, for it to go where the others go."""
        lead = walk.lead
        unopened = [item for item in lead.items if _is_unopened(item)]
        lead.items = [item for item in lead.items if not _is_unopened(item)]
        node = walk.plan.steps[0].node
        node.load.items -= len(unopened)
        self.turned_back[node.name] += len(unopened)
        for item in unopened:
            self._unpack_apart(item)

    def part(self, walk: Walk, place: int, job: PackJob) -> None:
        """Take a job that takes too long out of a walk, which is at its end with that."""
        if place == _BEHIND:
            self._packer.pace_is_over()
            job.is_under_way = True
            for number, (step, index, answer) in enumerate(walk.outs):
                if answer is job.keeps and walk.lead.items[index].request is job.request:
                    walk.outs[number] = (step, index, job)
            return
        self._unpacker.pace_is_over()
        opening = cast(Opening, walk.opening)
        opening.is_cut = True
        item = opening.waiting.pop(0)
        if not item.is_over:
            item.request.live -= 1

    def settle(self, walk: Walk) -> None:
        """Tell what was unpacked; what was not is, as ever."""
        opening = walk.opening
        if opening is None:
            return
        for job in opening.jobs:
            self._unpacker.took(job)
        for request, error in opening.refused:
            request.spans, request.is_profiled = None, False
            self._unpacker.end(request, error)
        for item in opening.waiting:
            self._unpack_apart(item)
        node = walk.plan.steps[0].node
        self.turned_back[node.name] += opening.missing(walk.lead.items)
        for item in opening.unpacked if opening.is_cut else ():
            if not item.is_over:
                ((slot, part),) = item.inputs.items()
                item.request.live -= 1
                node.enqueue(item.request, slot, part, None, item.entered)

    # In any thread ------------------------------------------------------------------------------

    def unpack(self, walk: Walk, clock_ns: Callable[[], int]) -> bool:
        """Unpack what a walk begins with; as much of it as can be, in one go.

        Returns whether it goes on; else the job that ran has become its worker's own.
        """
        items = walk.lead.items
        waiting = [item for item in items if _is_unopened(item)]
        if not waiting:
            return True
        opening = Opening(len(items), waiting)
        if len(waiting) < len(items):
            opening.unpacked = [item for item in items if not _is_unopened(item)]
        walk.lead.items = []
        walk.opening = opening
        lender = cast(Lender, self._unpacker.workers)
        worker = lender.borrow()
        if worker is not None:
            try:
                is_held = self._unpack(walk, opening, worker, clock_ns)
            except BaseException:
                opening.is_cut = True
                lender.give_back(worker)
                raise
            if not is_held:
                return False
            lender.give_back(worker)
        walk.lead.items = opening.unpacked
        return True

    def _unpack(
        self, walk: Walk, opening: Opening, worker: Any, clock_ns: Callable[[], int]
    ) -> bool:
        """Unpack with a worker; return whether it is still lent to us."""
        walk.began_ns = walk.step_ns = now_ns = clock_ns()
        longest = longest_ns(opening.size)
        while opening.waiting and now_ns - walk.began_ns <= longest:
            item = opening.waiting[0]
            if not item.is_over:
                job = self._unpacker.job(item.request)
                if not walk.perform(_BEFORE, worker, job, clock_ns):
                    return False
                walk.step_ns = now_ns = clock_ns()
                self._take(opening, item, job, now_ns)
            del opening.waiting[0]
        return True

    def _take(self, opening: Opening, item: Item, job: PackJob, now_ns: int) -> None:
        opening.jobs.append(job)
        if item.is_over:
            return
        request = item.request
        payload = self._unpacker.read(request, job.result)
        if isinstance(payload, PipelineError | Answer):
            opening.refused.append((request, payload))
            return
        item.inputs = dict.fromkeys(item.inputs, payload)
        item.log_id = request.log_id
        item.ready_ns = request.dispatched_ns = now_ns
        opening.unpacked.append(item)

    def pack(self, walk: Walk, clock_ns: Callable[[], int]) -> bool:
        """Pack the answers that a walk ends with, as `unpack` unpacks."""
        packer = self._packer
        if not packer.goes or walk.failure is not None:
            return True
        last, worker = self._executor.last, None
        lender = cast(Lender, packer.workers)
        now_ns = walk.began_ns
        longest = longest_ns(len(walk.lead.items))
        try:
            for place, (step, index, answer) in enumerate(walk.outs):
                item = walk.lead.items[index]
                if step.node is not last or type(answer) is not dict or item.is_over:
                    continue
                if (job := packer.job(item.request, answer)) is None:
                    continue
                job.began_ns = now_ns = clock_ns()
                if now_ns - walk.began_ns > longest:
                    break
                if job.is_ours:
                    packer.run(job)
                else:
                    worker = worker or lender.borrow()
                    if worker is None:
                        break
                    walk.step_ns = now_ns
                    if not walk.perform(_BEHIND, worker, job, clock_ns):
                        worker = None
                        return False
                walk.outs[place] = (step, index, job)
        finally:
            if worker is not None:
                lender.give_back(worker)
        return True
