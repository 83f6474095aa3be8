"""Shortcut: requests go to the workers of an Op without having waited in its scheduler."""

from __future__ import annotations

from typing import Any

from pipeline.config.batching import traits_of
from pipeline.engine.journal.journal import Outcome
from pipeline.engine.journal.spans import WayRows
from pipeline.engine.op.channel import Item
from pipeline.engine.op.lone_run import LoneRun
from pipeline.engine.ports import OpNode, Router
from pipeline.engine.request import Recipient, RequestState
from pipeline.engine.run.op_facts import OpFacts
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.worker_api import Loop, Worker

_AHEAD_S = 0.004  # work that may wait at busy workers, so that they never wait for the loop


class Shortcut:
    """The way past the scheduler of an Op, where this one would let each request go at once.

    A request that comes while none is worked on is handed over as it comes; of several that come
    in one round of the loop none is before its end, so that they wake a thread once and do not
    fight with it for the interpreter meanwhile.

    Attributes:
        taken: how many came this way.
    """

    def __init__(self, node: OpNode, router: Router, loop: Loop) -> None:
        self.taken: int = 0
        self._node = node
        self._router = router
        self._loop = loop
        self._is_plain = False  # as far as is known before the workers are there
        self._rows: WayRows | None = None  # if it is the only Op of its graph
        self._waiting: list[Any] = []
        self._is_rush = False  # several came in the last round

    @staticmethod
    def is_there(node: OpNode) -> bool:
        """Return whether an Op has one."""
        return node.workers.lender is not None and lets_each_pass(node)

    def take(
        self, request: RequestState, inputs: dict[str, Any], entered: tuple[Recipient, ...]
    ) -> bool:
        """Hand a request to the workers, if it is its turn."""
        node = self._node
        load, spans = node.load, node.spans
        running = load.running
        if running >= load.workers and not 0 < running * load.service_s < _AHEAD_S:
            return False
        if not load.workers or len(node.scheduler) or request.laps is not None:
            return False
        if request.spans is not None:
            spans.is_wanted = True
        ready_ns = spans.clock_ns() if spans.is_wanted else 0
        generation, data_id, log_id = request.generation, request.data_id, request.log_id
        job: Any = None
        if self._is_plain:
            job = LoneRun(request, generation, data_id, log_id, inputs, 0.0, ready_ns)
            job.entered = entered
            if node.pace.was_fusable:
                job = self._router.trips.begin_alone(node, job)
        if job is None:
            now = self._loop.time()
            item = Item(request, generation, data_id, log_id, inputs, now, ready_ns)
            item.entered = entered
            job = BatchRun([item])
            if node.pace.was_fusable:
                (job,) = self._router.trips.begin(node, [job])
        self._takes(request)
        if self._is_rush or running:
            self._waiting.append(job)
            if len(self._waiting) == 1:
                self._loop.call_soon(self._hand_over)
        else:
            self._submit([job])
        return True

    def _takes(self, request: RequestState) -> None:
        """Take note that a request goes this way."""
        load = self._node.load
        self.taken += 1
        request.live += 1
        load.running += 1
        load.items += 1

    def _hand_over(self) -> None:
        jobs, self._waiting = self._waiting, []
        self._is_rush = len(jobs) > 1
        self._submit(jobs)

    def workers_are_there(self) -> None:
        """Find out what kind of runs they take."""
        self._is_plain = OpFacts(self._node.op).is_plain
        spans = self._node.spans
        if len(self._router.nodes) == 1 and spans.journal is not None:
            self._rows = self._rows or WayRows(spans.journal, [spans], [-1])

    def _submit(self, jobs: list[Any]) -> None:
        node = self._node
        node.workers.submit(jobs)
        if node.watch.timeout_s is not None:
            node.watch.submitted()

    def done(self, worker: Worker, job: Any) -> None:
        """Take down what came of a LoneRun, and pass it on."""
        if job.apart is not None and job.apart.is_superseded:
            return
        node, router, request, outcome = self._node, self._router, job.request, job.outcome
        load, pace, spans = node.load, node.pace, node.spans
        load.running -= 1
        load.items -= 1
        if outcome is None:  # it was over before it began
            spans.unfinished([job], Outcome.OTHER)
        else:
            took_ns = job.end_ns - job.start_ns
            load.served(took_ns / 1e9)
            if pace.is_fusable and pace.took(took_ns):
                router.trips.changed()
            if spans.is_wanted:
                self._take_down(worker, job)
            node.links.answered += 1
            if job.generation == request.generation:
                if request.laps is None or not request.laps.get(node):  # it was made in the first
                    router.route(node, request, outcome, False)
                if job.generation == request.generation:  # it goes on
                    router.gone(job)
        if len(node.scheduler):
            router.cycle.mark_dirty(node)

    def _take_down(self, worker: Worker, job: Any) -> None:
        """Take down its span: in its request, if this can have no other, and has not ended."""
        spans, request = self._node.spans, job.request
        now_ns, number = spans.clock_ns(), worker.number
        start_ns, middle_ns, end_ns = job.start_ns, job.preprocess_end_ns, job.end_ns
        is_good = type(job.outcome) is dict and job.generation == request.generation
        rows = self._rows
        if is_good and rows is not None and request.spans is None and request.way is None:
            told = job.ready_ns, start_ns, now_ns, number, middle_ns, middle_ns, end_ns
            request.way = rows, told
        else:
            times = start_ns, middle_ns, middle_ns, end_ns
            spans.alone(job, job.outcome, number, times, now_ns)


def lets_each_pass(node: OpNode) -> bool:
    """Return whether each request is a batch at an Op, and its scheduler lets that go at once."""
    config = node.op.pipeline_config
    is_lone = config.batch_size == 1 and not node.room.size
    return is_lone and traits_of(config.batching).lets_pass
