"""RequestState: the record of one admitted request, changed on the event loop only."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from pipeline.engine.journal import Outcome
from pipeline.engine.load_shedding import is_late
from pipeline.errors import PipelineError
from pipeline.op import Op

if TYPE_CHECKING:
    from pipeline.engine.dispatcher import OpDispatcher


class RequestTarget(msgspec.Struct, frozen=True):
    """How a request comes in and goes out that is not just for RequestOp and ResponseOp.

    Args:
        op: this Op alone works on it; None: the whole graph.
        payload: what the RequestOp would have returned, which is not asked then; with `op` its
            `input_dicts`, or with `feeds` what its `process` is fed, without pre- and postprocess.
        feeds: see `payload`.
        packs: False: the answer is the ChannelData itself, the ResponseOp is not asked.
        rows: samples that it brings.
        traceparent: its caller's, as W3C Trace Context writes it; "" for none.
        is_large: what it brings is too much to be unpacked on the event loop.
    """

    op: Op | None = None
    payload: Any = None
    feeds: bool = False
    packs: bool = True
    rows: int = 1
    traceparent: str = ""
    is_large: bool = False


class RequestState(msgspec.Struct, eq=False):
    """One request between the door and its answer.

    `live` counts the Ops that it is queued at or worked on by. `generation` counts its starts:
    it is raised by a retry of the whole request and set to `OVER` by the answer, so that
    whatever still carries an older number is dropped. `asked_at`, which is known if there is a
    deadline, and `deadline` are in `time.monotonic`. The times are `time.monotonic_ns`, see
    `engine.journal.REQUEST`; the last three are sums over its spans. `spans` has these, packed,
    where its caller asked for a profile. `trace` is its own traceparent; "" if it is not traced.
    `is_told`: it is over, and all know it who want to. `settled`: the targets of jumps that have
    answered, or for which a jump stood in. `laps`: how often jumps back have had an Op run again.
    """

    OVER: ClassVar[int] = -1

    raw: Any
    answer: asyncio.Future[Any]
    data_id: int
    start_ns: int
    route: RequestTarget | None = None
    log_id: int = 0
    generation: int = 0
    live: int = 0
    rows: int = 1
    as_tensors: bool = False
    asked_at: float = 0.0
    deadline: float | None = None
    deadline_timer: asyncio.TimerHandle | None = None
    payload: Any = None
    outcome: int = Outcome.OK
    error: PipelineError | None = None
    admitted_ns: int = 0
    dispatched_ns: int = 0
    completed_ns: int = 0
    end_ns: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0
    spans: list[bytes] | None = None
    trace: str = ""
    is_told: bool = False
    settled: frozenset[OpDispatcher] = frozenset()
    laps: dict[OpDispatcher, int] | None = None

    @property
    def is_over(self) -> bool:
        return self.generation == self.OVER

    def is_late(self, now: float, turn_s: float = 0.0) -> bool:
        """Whether newer requests go first; see `admission.is_late`."""
        deadline = self.deadline
        return deadline is not None and is_late(now, self.asked_at, deadline, turn_s)

    @property
    def is_packed(self) -> bool:
        """Whether the ResponseOp makes its answer."""
        return self.route is None or self.route.packs
