"""run_op: one Op with samples, without a graph and a server."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.data import NO_INFO, RequestInfo
from pipeline.engine.run.bound_op import BoundOp
from pipeline.engine.run.hooks import check_hooks
from pipeline.engine.run.init_op import end_op, run_init_op
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.streams.flow import ALL, ENDED
from pipeline.engine.streams.run import Entry, StreamRun
from pipeline.errors import InitError, InputError, PipelineError, described
from pipeline.op import EXECUTOR_NAME, Op, RequestOp, ResponseOp, configure_op
from pipeline.routes import Answer, Goto, Routed
from pipeline.runtime.predictor_loader import PredictorLoader
from pipeline.system.event_loop import LoopThread
from pipeline.testing.predictor import Fake, as_predictor


class OpAnswers(Sequence[dict[str, Any]]):
    """Answers of an Op to its samples, in their order; reading a failed one raises its error.

    Attributes:
        errors: by the sample's place, the errors of failed samples.
        batches: the places of the samples in each batch.
    """

    def __init__(self, outcomes: Sequence[list[Any]], batches: Sequence[Sequence[int]]) -> None:
        self._outcomes = outcomes
        self.batches: list[list[int]] = [list(batch) for batch in batches]
        self.errors: dict[int, PipelineError] = {
            place: parts[-1]
            for place, parts in enumerate(outcomes)
            if parts and isinstance(parts[-1], PipelineError)
        }

    def __len__(self) -> int:
        return len(self._outcomes)

    def __getitem__(self, place: Any) -> Any:
        """Return the answer to a sample; of a stream the last part.

        Raises PipelineError: the error that the client would get. The answer of a Goto is its
        payload.
        """
        if isinstance(place, slice):
            return [self[index] for index in range(len(self))[place]]
        parts = self.parts(place)
        return parts[-1] if parts else {}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[place] for place in range(len(self)))

    def parts(self, place: int) -> list[dict[str, Any]]:
        """Return all parts of the answer to a sample. Raises PipelineError, as `answers[i]`."""
        outcome = self._outcomes[place]
        if outcome and isinstance(outcome[-1], PipelineError):
            raise outcome[-1]
        return [_payload(part) for part in outcome]

    def route(self, place: int) -> Goto | Answer | None:
        """Return where the answer to a sample goes, if the Op said so: a Goto or Answer."""
        outcome = self._outcomes[place]
        last = outcome[-1] if outcome else None
        return last if isinstance(last, Goto | Answer) else None

    def __repr__(self) -> str:
        shown = [parts[0] if len(parts) == 1 else parts for parts in self._outcomes]
        return f"OpAnswers({shown!r})"


def run_op(
    op: Op | type[Op],
    samples: Sequence[Mapping[str, Any]],
    *,
    predictor: Fake | None = None,
    batch_size: int | None = None,
    config: Mapping[str, object] | None = None,
    infos: Sequence[RequestInfo] = (),
    log_ids: Sequence[int] = (),
) -> OpAnswers:
    """Run one Op with samples: init_op, then preprocess, process and postprocess of each batch.

    The code is that of a server's workers: the same forms of methods, merging and splitting of
    batches, retries, errors and their codes. Timeouts of config.yml are ignored, and sequences are
    not formed: a `TestClient` has both.

    Args:
        op: an Op, or its class, which is then made without arguments.
        samples: the Op's inputs, one for each request: the answer of the Op before it, a dict. For
            an
            Op that reads several others: a dict of such dicts, by the names of these Ops.
        predictor: replaces its model: a FakePredictor, or its answers. None: the model that
            `config`
            names, if it does; it is loaded each time.
        batch_size: at most this many samples in a batch; None: as the Op or `config` says, or 1.
        config: the settings under `op.<name>` in config.yml.
        infos: the requests' parameters, headers and so on, in the order of the samples.
        log_ids: the clients' numbers, in the same order.

    Raises:
        ConfigError: `config` is wrong.
        InitError: `init_op` failed, or a method cannot be called.
        InputError: a sample is not a dict, or lacks an Op that is read.
    """
    made = op() if isinstance(op, type) else op
    if isinstance(made, RequestOp | ResponseOp):
        raise InputError(f"{type(made).__name__} has no samples: test it with a TestClient")
    _configure(made, {**(config or {}), **({"batch_size": batch_size} if batch_size else {})})
    items = [_Item(place, _inputs_of(made, sample, place)) for place, sample in enumerate(samples)]
    for item, log_id in zip(items, log_ids, strict=False):
        item.log_id = log_id
    for item, info in zip(items, infos, strict=False):
        item.info = info
    fakes = {} if predictor is None else {made.name: as_predictor(predictor)}
    PredictorLoader(Path.cwd(), given=fakes)(made, 0)
    return _ran(made, items)


def _configure(op: Op, section: Mapping[str, object]) -> None:
    """Give an Op its configuration, as a server does. Raises ConfigError, InitError."""
    config = load_config(yml_dict={"rpc_port": 0, "op": {op.name: section}})
    configure_op(op, resolve_op(op.name, op.pipeline_given, config))
    check_hooks([op])


class _Item(msgspec.Struct, eq=False):
    """A request that nobody sent; what a BatchRun wants to know of it."""

    data_id: int
    inputs: dict[str, Any]
    log_id: int = 0
    info: RequestInfo = NO_INFO
    deadline: float | None = None
    trace: str = ""
    is_feed: bool = False
    is_over: bool = False

    def is_cancelled(self) -> bool:
        """Return False: nobody leaves."""
        return False


@dataclass
class _Watch:
    """A StreamWatch that keeps the parts; calls may take as long as they like."""

    entries: list[Entry]

    def call_begins(self) -> None: ...
    def call_ends(self) -> None: ...

    def yielded(self, run: StreamRun, entries: Sequence[Entry]) -> None:
        self.entries += entries


def _ran(op: Op, items: Sequence[_Item]) -> OpAnswers:
    """Run the items in batches of the Op's size, with a loop for its `async def` methods."""
    size = op.pipeline_config.batch_size
    batches = [range(len(items))[at : at + size] for at in range(0, len(items), size)]
    outcomes: list[list[Any]] = []
    thread = LoopThread()
    try:
        try:
            run_init_op(op, thread.loop)
        except Exception as error:
            raise InitError(f"Op {op.name!r} failed to start: {described(error)}") from error
        bound = BoundOp(op, 0, thread.loop)
        for batch in batches:
            outcomes += _outcomes(bound, [items[place] for place in batch])
    finally:
        end_op(op)
        thread.close()
    return OpAnswers(outcomes, batches)


def _outcomes(op: BoundOp, batch: list[_Item]) -> list[list[Any]]:
    """Return the parts, or the one answer or error, of each item."""
    watch = _Watch([])
    if not op.streams:
        run = BatchRun(batch)
        run.run(op, watch, time.monotonic_ns)
        return [[outcome] for outcome in run.outcomes]
    stream = StreamRun(batch, allowed=[ALL] * len(batch))
    while not stream.is_finished:
        stream.run(op, watch, time.monotonic_ns)
    parts: list[list[Any]] = [[] for _ in batch]
    for place, part in watch.entries:
        if part is not ENDED:
            parts[place].append(part)
    return parts


def _inputs_of(op: Op, sample: Mapping[str, Any], place: int) -> dict[str, Any]:
    """Return the `input_dicts` of a sample. Raises InputError: it is not what the Op reads."""
    if not isinstance(sample, Mapping):
        raise InputError(
            f"samples[{place}]: expected a dict, as {op.name!r} reads it, found "
            f"{type(sample).__name__}"
        )
    reads = [op.name for op in op.get_input_ops()] or [EXECUTOR_NAME]
    if len(reads) == 1:
        return {reads[0]: dict(sample)}
    lacks = [name for name in reads if not isinstance(sample.get(name), Mapping)]
    if lacks:
        raise InputError(
            f"samples[{place}]: {op.name!r} reads {', '.join(reads)}: give a dict for each of "
            f"them by its name; missing: {', '.join(lacks)}"
        )
    return {name: dict(sample[name]) for name in reads}


def _payload(part: Any) -> dict[str, Any]:
    """Return the answer in what an Op returned, wherever it goes."""
    answer: dict[str, Any] = part.answer if isinstance(part, Routed) else part
    return answer
