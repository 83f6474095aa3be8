"""Compares the endings of a case with the model, and checks that nothing is left of it."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Any

from fuzz import model
from fuzz.case import Case, RequestSpec
from fuzz.model import Answer, Failure, Nothing, bound_s
from fuzz.ops import Board
from pipeline.engine.journal.journal import Rows
from pipeline.engine.state import EngineState, OpState
from pipeline.observe.statistics import Statistics

_EXACT_S = 1e-6
_EXPIRED = 6000
GONE = -1  # the connection was refused, or broke
_OF_A_STOP = (3001, 14, GONE)  # 14: UNAVAILABLE
_SAYS_EXPIRED = "deadline passed before it was answered"


@dataclass
class Ending:
    """How a request ended for its caller. kind: "answer", "error" or "left" (it cancelled)."""

    number: int
    kind: str
    code: int = 0
    text: str = ""
    took_s: float = 0.0


class Outlook:
    """The findings of a case; reads the engine's journal."""

    def __init__(self, case: Case, board: Board) -> None:
        self.case = case
        self.findings: list[str] = []
        self.requests = 0
        self.spans: Counter[int] = Counter()
        self.ended: Counter[int] = Counter()
        self._board = board
        self._statistics = Statistics("fuzz", [op.name for op in case.ops])

    def complain(self, text: str) -> None:
        if len(self.findings) < 20:
            self.findings.append(text)

    def notify(self, spans: Rows, requests: Rows) -> None:
        """A sink of the journal."""
        self._statistics.notify(spans, requests)
        self.spans.update(spans["op"].tolist())
        self.ended.update(requests["data_id"].tolist())
        for table, steps in (
            (
                spans,
                (
                    "ready_ns",
                    "start_ns",
                    "preprocess_end_ns",
                    "process_end_ns",
                    "end_ns",
                    "result_received_ns",
                ),
            ),
            (requests, ("start_ns", "admitted_ns", "completed_ns", "end_ns")),
        ):
            for before, after in itertools.pairwise(steps):
                if (table[before] > table[after]).any():
                    self.complain(f"the journal has a {after} before its {before}")

    def check_complaint(self) -> None:
        """Add the complaint of user code, if there is one; the case is over."""
        if self._board.complaint:
            self.complain(f"user code: {self._board.complaint}")
        self._board.close()

    # Gauges -----------------------------------------------------------------------------------

    def is_idle(self, state: EngineState) -> bool:
        """Whether nothing but stuck threads is left of the requests."""
        return not (state.inside or state.waiting or any(map(_is_at_work, state.ops)))

    def check_state(self, state: EngineState, is_released: bool = True) -> None:
        """Check that gauges are 0 and all workers are up; before the release some may hang."""
        if state.inside or state.waiting:
            self.complain(f"inside {state.inside}, waiting {state.waiting} after the last answer")
        for op in state.ops:
            is_stuck = is_released and bool(op.workers.stuck)
            if _is_at_work(op) or is_stuck:
                self.complain(f"not at rest after the last answer: {op}")

    def check_turns(self, executor: Any) -> None:
        """Check that the journal has every request and each of its turns once."""
        self.check_counts(executor.state().accepted)
        for index, node in enumerate(executor.executor.nodes.values()):
            begun = node.scheduler._added + getattr(node.workers, "lent_items", 0)
            if node.shortcut is not None:
                begun += node.shortcut.taken
            if begun != self.spans[index]:
                self.complain(
                    f"turns begun: {begun}, in the journal: {self.spans[index]} at {node.name}"
                )

    def check_counts(self, accepted: int) -> None:
        """Check that the statistics have each accepted request once."""
        twice = [data_id for data_id, count in self.ended.items() if count > 1]
        if twice:
            self.complain(f"requests with two ends in the journal: {twice}")
        if len(self.ended) != accepted:
            self.complain(f"{accepted} requests accepted, {len(self.ended)} in the journal")
        pipeline = self._statistics.models[0]
        counted = pipeline.success_count + sum(pipeline.fail_counts)
        whole = sum(not request.alone_at for request in self.case.requests)
        if counted > whole:
            self.complain(f"{counted} requests in the statistics of {whole}")


def _is_at_work(op: OpState) -> bool:
    is_short = op.workers.up < op.workers.wanted  # while a process starts
    return bool(op.joining or op.queued or op.running or op.workers.busy or is_short)


# Endings --------------------------------------------------------------------------------------


def check_endings(case: Case, endings: list[Ending], outlook: Outlook, late_s: float = 0.0) -> None:
    """Compare every ending with the model, and its time. `late_s`: delay by a busy machine."""
    by_number = {ending.number: ending for ending in endings}
    for request in case.requests:
        ending = by_number.get(request.number)
        if ending is None:
            outlook.complain(f"request {request.number} has no end")
            continue
        problem = problem_with(case, request, ending, late_s)
        if problem:
            outlook.complain(f"request {request.number} {problem}")


def problem_with(case: Case, request: RequestSpec, ending: Ending, late_s: float) -> str:
    """Return the defect in the ending of a request; "" if there is none."""
    limit_s = bound_s(case)
    for most_s in (request.deadline_s, request.leaves_s):
        limit_s = min(limit_s, most_s if most_s is not None else limit_s)
    if ending.took_s > limit_s + late_s + _EXACT_S:
        return f"took {ending.took_s:.3f} s of {limit_s:.3f} s: {ending}"
    if ending.kind == "left":
        return "" if request.leaves_s is not None else "was cancelled by nobody"
    try:
        allowed = model.outcomes(case, request)
    except model.TooManyWorldsError:  # too many to judge
        return ""
    if any(_fits(outcome, ending) for outcome in allowed):
        return ""
    if _is_expired(ending) and may_expire(case, request, allowed, late_s):
        return ""
    if case.stops_s is not None and ending.code in _OF_A_STOP:
        return ""
    if ending.code == model.OVERLOADED and may_be_refused(case, request, allowed, late_s):
        return ""
    if may_expire(case, request, allowed, late_s):
        try:  # one branch may be refused while another one answers
            allowed = model.outcomes(case, request, sheds=True)
        except model.TooManyWorldsError:
            return ""
        if any(_fits(outcome, ending) for outcome in allowed):
            return ""
    return f"ended as {ending}, allowed: {sorted(map(str, allowed))}"


def _fits(outcome: model.Result, ending: Ending) -> bool:
    if isinstance(outcome, Answer):
        return ending.kind == "answer" and ending.text == outcome.value
    if isinstance(outcome, Failure):
        is_same = ending.kind == "error" and ending.code == outcome.code
        return is_same and outcome.holds in ending.text and not _is_expired(ending)
    return False


def _is_expired(ending: Ending) -> bool:
    return ending.code == _EXPIRED and _SAYS_EXPIRED in ending.text


def may_expire(case: Case, request: RequestSpec, allowed: set[model.Result], late_s: float) -> bool:
    """Whether its deadline may pass: it is short, or something may hang."""
    if request.deadline_s is None or request.has_time:
        return False
    return request.deadline_s < bound_s(case) + late_s or any(
        isinstance(o, Nothing) for o in allowed
    )


def may_be_refused(
    case: Case, request: RequestSpec, allowed: set[model.Result], late_s: float
) -> bool:
    """Whether the queue may be full, or the request may be too late to be answered."""
    return may_be_full(case) or may_expire(case, request, allowed, late_s)


def may_be_full(case: Case) -> bool:
    """Whether the queue may be full: half of it is reserved for the pipelines in equal parts."""
    own = len(case.requests)
    if not case.others:
        return case.queue_size < own
    kept = case.queue_size // (2 * (1 + len(case.others)))
    # When requests of a pipeline wait, at least one of them is inside.
    most = sum(max(count - 1, kept) for count in (own - 1, *case.others))
    return own - 2 >= kept and most >= case.queue_size
