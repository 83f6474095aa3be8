"""The parts of a case: a graph of Ops, a configuration, requests and their faults."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

REQUEST = "@DAGExecutor"
"""The producer of the first Ops."""

ALWAYS = 99
"""As a number of attempts: all of them."""

RAISES = ("raise_pre", "raise_process", "raise_post", "product_pre", "product_process", "code")
"""Faults that end a request with an error, whatever else happens."""

RETRIED = ("unavailable", "hang", "crash")
"""Faults of the first `attempts` calls of `process`; `hang` is ended by the Op's timeout."""


@dataclass(frozen=True)
class Shape:
    """The input that `preprocess` makes for `process`, for one request: `rows` of each part.

    kind: "rows" (one part), "mini" (a list of parts, a call each), "skip" (no call at all).
    """

    kind: str = "rows"
    rows: tuple[int, ...] = (1,)
    width: int = 1
    dtype: str = "int64"


@dataclass(frozen=True)
class Fault:
    """A fault of one request at one Op.

    kind: one of RAISES, of RETRIED, or "stuck": hangs in `preprocess`, which nothing limits.
    attempts: for RETRIED, the number of calls of `process` that it affects.
    back_s: the time after which a hang in a thread ends; None: not while the case runs.
    """

    kind: str
    attempts: int = ALWAYS
    back_s: float | None = None


@dataclass(frozen=True)
class OpSpec:
    """One Op. Times are in seconds. `jumps_to`: a batch jumps if its first request wants to;
    `loops_to`: each request runs that Op again as often as it wants, at most `max_loops` times.

    `has_lod`, `has_texts`, `has_scalars`: further inputs besides the rows; `has_bulk`: its answer
    is large enough to go through shared memory; `is_async`: `process` is a coroutine (real servers
    only).
    """

    name: str
    inputs: tuple[str, ...]
    has_process: bool = True
    first_arrival: bool = False
    jumps_to: tuple[str, ...] = ()
    loops_to: str = ""
    max_loops: int = 100
    workers: str = "thread"
    concurrency: int = 1
    batch_size: int = 1
    batching_s: float | None = None
    adaptive: bool = False
    timeout_s: float | None = None
    retry: int = 1
    max_batch_size: int = 0  # samples of one call; 0: any number
    has_lod: bool = False
    has_texts: bool = False
    has_scalars: bool = False
    has_bulk: bool = False
    is_async: bool = False

    @property
    def is_batched(self) -> bool:
        return self.batch_size > 1


@dataclass(frozen=True)
class RequestSpec:
    """One request: it comes after `at_s`; the dicts are by the name of an Op.

    leaves_s: the time between its arrival and its cancellation.
    has_time: the server has to meet its deadline, whatever else there is to do.
    alone_at: the only Op that it runs.
    log_id: the caller's number.
    delays_s: of preprocess, process and postprocess.
    laps: how often an Op that jumps or loops back sends it back.
    ways: for an Op that does not answer all its readers: the readers that get an answer; None: the
    answer ends the request.
    door: the frontend of a real server that it comes to.
    bulk: the bytes of its file, which its answer returns; both go through shared memory.
    """

    number: int
    at_s: float = 0.0
    deadline_s: float | None = None
    has_time: bool = False
    leaves_s: float | None = None
    alone_at: str = ""
    log_id: int = 0
    shapes: dict[str, Shape] = field(default_factory=dict)
    delays_s: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    faults: dict[str, Fault] = field(default_factory=dict)
    jumps: frozenset[str] = frozenset()
    laps: int = 0
    ways: dict[str, tuple[str, ...] | None] = field(default_factory=dict)
    door: str = ""
    bulk: int = 0
    misfit: str = ""  # follows its number, so that a schema refuses it

    def shape(self, op: str) -> Shape:
        return self.shapes.get(op, Shape())


@dataclass(frozen=True)
class Case:
    """A whole case. `stops_s` after its start a real server is stopped while it works.

    `siblings`: further pipelines of the same server, with its settings and Ops of other names.
    """

    ops: tuple[OpSpec, ...]
    requests: tuple[RequestSpec, ...]
    dag_retry: int = 1
    channel_size: int = 0
    worker_num: int | None = None
    queue_size: int = 4096
    stops_s: float | None = None
    has_schema: bool = False  # by which a request is a number
    own_edges: bool = False  # unpack and pack are the user's, and run in threads
    fuse: str = "off"  # "on": all Ops that can be fused are; "switching": from time to time
    origin: str = ""
    siblings: tuple[Case, ...] = ()
    others: tuple[int, ...] = ()  # the number of requests of each other pipeline of its server

    @property
    def pipelines(self) -> tuple[Case, ...]:
        """All pipelines of the server."""
        every = (self, *self.siblings)
        counts = [len(one.requests) for one in every]
        return tuple(
            replace(one, others=(*counts[:place], *counts[place + 1 :]))
            for place, one in enumerate(every)
        )

    @property
    def count(self) -> int:
        """The number of requests to all pipelines."""
        return sum(len(one.requests) for one in (self, *self.siblings))

    @property
    def last(self) -> OpSpec:
        return self.ops[-1]

    def op(self, name: str) -> OpSpec:
        return next(op for op in self.ops if op.name == name)

    def is_loop(self, op: OpSpec) -> bool:
        """Whether it jumps back."""
        return any(is_before(self.ops, target, op.name) for target in op.jumps_to)

    def readers(self, name: str) -> list[str]:
        """The names of the Ops that read an Op."""
        return [op.name for op in self.ops if name in op.inputs]

    def only(self, numbers: list[int]) -> Case:
        """The case with only some of its requests; their numbers are unique in the server."""
        kept = tuple(request for request in self.requests if request.number in numbers)
        siblings = tuple(sibling.only(numbers) for sibling in self.siblings)
        return replace(self, requests=kept, siblings=siblings)


def is_before(ops: tuple[OpSpec, ...], one: str, other: str) -> bool:
    names = [op.name for op in ops]
    return names.index(one) < names.index(other)


def bulk_of(request: RequestSpec) -> bytes:
    """Return the file of a request; no other request has the same."""
    return (request.number.to_bytes(8) * (request.bulk // 8 + 1))[: request.bulk]


def mark(number: int, op: str) -> str:
    """Return the mark in the text of every error that this request's fault at this Op causes."""
    return f"<r{number}@{op}>"
