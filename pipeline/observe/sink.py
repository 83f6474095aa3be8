"""SinkContext: the server that a sink is opened in, and the hooks that it has there."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.engine.journal.journal import Sink

if TYPE_CHECKING:  # processes without an engine import this package for their logs
    from pipeline.config.schema import ServiceConfig
    from pipeline.engine.graph import Graph
    from pipeline.engine.state import EngineState
    from pipeline.observe.snapshot import Snapshot

Answer = Callable[[str], Awaitable[bytes]]
"""Takes a question without its first word; returns the answer."""


class SinkHooks:
    """The hooks of all sinks of a process, see the methods of SinkContext.

    `begin_trace` takes (data id, the caller's traceparent or "") and returns the request's
    traceparent. `on_step` is called when a request goes to a worker as a step of a sequence, with
    its data id, the index of the Op, the id of the sequence and its slot. `trace_of` returns the
    result of `begin_trace` for a data id, if the trace is recorded; any thread may call it.
    """

    def __init__(self) -> None:
        self.closing: contextlib.ExitStack[bool | None] = contextlib.ExitStack()
        self.stops: list[Callable[[], None]] = []
        self.timers: list[tuple[str, float, Callable[[], None]]] = []
        self.failures: list[Callable[[int, int, Exception], None]] = []
        self.snapshots: list[Callable[[Snapshot], None]] = []
        self.answers: dict[str, Answer] = {}
        self.begin_trace: Callable[[int, str], str] | None = None
        self.trace_of: Callable[[int], str] | None = None
        self.on_step: Callable[[int, int, int | str, int], None] | None = None


@dataclass(frozen=True, slots=True)
class SinkContext:
    """The server that a sink is opened in, and the hooks that it has there.

    The registry finds a sink by its name under `sinks:` of config.yml. The server calls it with
    (this context, the Struct of its options or None) on the event loop, once, when it starts. It
    returns the `Sink`; an InitError says why the server cannot start.

    Attributes:
        pipeline_name: name of the graph in statistics and metrics.
        op_names: names of the Ops; `OpSpan.op` and `RequestRecord.target` are indexes into it.
        model_names: names of the Ops in statistics and metrics.
        replica: number of this process among the server's; None if it is the only one.
        log_folder: folder of the server's logs.
        state: returns how many requests are in the graph, and at each Op, now.
        flush: calls `Sink.notify` with all rows up to now.
        id_step: difference between the data ids of consecutive requests.
        further: name of the pipeline, for its files, unless it is the first of its server; then
            "".
    """

    pipeline_name: str
    op_names: Sequence[str]
    model_names: Sequence[str]
    replica: int | None
    log_folder: Path
    graph: Graph
    config: ServiceConfig
    state: Callable[[], EngineState]
    flush: Callable[[], None]
    hooks: SinkHooks = field(default_factory=SinkHooks)
    id_step: int = 1
    further: str = ""

    def on_close(self, close: Callable[[], object]) -> None:
        """Call `close` when the server has stopped: on a thread, so that it may block."""
        self.hooks.closing.callback(close)

    def on_stop(self, stop: Callable[[], None]) -> None:
        """Call `stop` when the server is about to stop, while it still accepts requests."""
        self.hooks.stops.append(stop)

    def every(self, name: str, interval_s: float, action: Callable[[], None]) -> None:
        """Call `action` on the event loop every `interval_s`, after `flush`.

        An exception is logged as "<name> failed".
        """
        self.hooks.timers.append((name, interval_s, action))

    def on_failure(self, failed: Callable[[int, int, Exception], None]) -> None:
        """Call `failed` with (data id, log id, error) of each request that fails.

        That may be before or after `Sink.notify` gets its row, which lacks the error's text.
        """
        self.hooks.failures.append(failed)

    def on_snapshot(self, fill: Callable[[Snapshot], None]) -> None:
        """Let `fill` add to the Snapshots of this process, which the dashboard shows."""
        self.hooks.snapshots.append(fill)

    def on_question(self, word: str, answer: Answer) -> None:
        """Answer the questions that begin with `word`; one replica asks them of all replicas."""
        self.hooks.answers[word] = answer


SinkFactory = Callable[[SinkContext, Any], Sink | None]
"""The type of the registry's entries of the kind `sinks`; a result of None opens no sink."""
