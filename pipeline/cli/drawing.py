"""Drawings of a graph: as text with rails, as Mermaid, as DOT."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from pipeline.config.schema import DagConfig, OpConfig
from pipeline.engine.executor import DispatchCycle, Executor
from pipeline.engine.graph import Graph
from pipeline.engine.journal.journal import EngineObservers
from pipeline.engine.op.dispatcher import OpDispatcher
from pipeline.engine.streams.plan import plan_streams
from pipeline.engine.trips.groups import begins_at_once, obstacle
from pipeline.engine.worker_api import WorkersBase
from pipeline.frontends.dashboard.layout import arrows_of
from pipeline.op import Op, RequestOp, ResponseOp


class Fused(Struct, frozen=True):
    """Names of Ops: the Ops of each group run in one pass while they are quick.

    `apart`: why other Ops never do. Which Ops are quick is only known at run time; settings from
    `init_op`, and the abilities of plug-ins' workers, are not known before.
    """

    groups: Sequence[tuple[str, ...]]
    apart: Mapping[str, str]


def fused(graph: Graph, config: DagConfig) -> Fused:
    """Return the groups of a configured graph, if all its Ops are quick."""
    executor = Executor(
        graph,
        lambda op, owner: cast(Any, _workers_of(op)),
        cast(Any, _Loop),
        DispatchCycle(cast(Any, _Loop), cast(Any, None)),
        cast(Any, None),
        cast(Any, None),
        EngineObservers(),
        config,
        plan_streams(graph),
    )
    nodes = list(executor.nodes.values())
    for node in nodes:
        node.pace.is_quick = True
    executor.trips.changed()
    groups = _groups(executor, nodes)
    together = {name for group in groups for name in group}
    return Fused(
        groups,
        {node.name: _why(node, nodes, config) for node in nodes if node.name not in together},
    )


def _groups(executor: Executor, nodes: Iterable[OpDispatcher]) -> list[tuple[str, ...]]:
    groups: list[tuple[str, ...]] = []
    for node in nodes:
        is_new = not any(node.name in group for group in groups)
        plan = executor.trips.groups.planned(node) if is_new else None
        if plan is not None:
            groups.append(tuple(step.name for step in plan.steps))
    return groups


def _why(node: OpDispatcher, nodes: Sequence[OpDispatcher], config: DagConfig) -> str:
    """Return why an Op runs by itself."""
    reason = obstacle(node, nodes)
    if reason is not None:
        return reason
    if config.fuse != "auto":
        return "dag.fuse is off"
    if not node.pace.is_fusable:
        return "only the thread that made its state may use it"
    producers = [other for other in nodes if other.name in node.channel.producers]
    free = [other for other in producers if other.pace.is_fusable]
    if not free:
        return "no neighbour can run in one pass with it"
    if node.channel.is_join:
        return "it waits for Ops that do not run in one pass"
    (other,) = free
    if begins_at_once(node):
        return f"{other.name} runs in one pass with others"
    return "its requests wait to form a batch"


# What an Executor asks for ------------------------------------------------------------------


class _Loop:
    """An event loop without timers."""

    @staticmethod
    def call_soon(callback: Callable[[], None]) -> None:
        callback()

    @staticmethod
    def call_at(when: float, callback: Callable[..., None], *args: object) -> None:
        """Never call it."""

    @staticmethod
    def time() -> float:
        return 0.0


def _never(self: object, *arguments: object) -> None:
    """Do nothing: it is for running Ops."""


class _Workers(WorkersBase):
    """The workers of an Op that does not start; `note`: of its model, if it has one."""

    runs_slices = True  # as in our own workers

    def __init__(self, op: Op) -> None:
        self.note: Any = op.pipeline_config.local_service_conf.model_config


class _Lending(_Workers):
    """Threads; see `Lender`."""

    part = employ = _never

    def __init__(self, op: Op) -> None:
        super().__init__(op)
        self.idle: list[Any] = []
        self.backlog: deque[Any] = deque()
        self.lender: Any = self

    def states(self) -> Iterable[dict[str, Any]]:
        return ()


_KINDS: Mapping[str | None, type[_Workers]] = {"thread": _Lending}


def _workers_of(op: Op) -> _Workers:
    return _KINDS.get(op.pipeline_config.workers, _Workers)(op)


class Node(Struct, frozen=True):
    """An Op in a drawing; `details` are short texts. The ends of a graph are not `is_op`.

    `apart` is why it never runs in one pass with others.
    """

    name: str
    details: tuple[str, ...]
    is_op: bool
    apart: str = ""


class Drawing(Struct, frozen=True):
    """Nodes, each after its inputs; the other fields use their indexes.

    `jumps` are (from, to, the name of the Op that it answers for), `loops` (from, to, maximum laps
    of a request), `groups` the nodes that run in one pass while they are quick.
    """

    title: str
    nodes: Sequence[Node]
    edges: Sequence[tuple[int, int]]
    jumps: Sequence[tuple[int, int, str]]
    groups: Sequence[tuple[int, ...]] = ()
    loops: Sequence[tuple[int, int, int]] = ()


_NOTHING = Fused((), {})
_TOGETHER = "in one pass while quick"


def drawing_of(graph: Graph, title: str, fused: Fused = _NOTHING) -> Drawing:
    """Return the drawing of a graph; settings are shown if its Ops have been configured."""
    arrows = arrows_of(graph)
    places = {op.name: place for place, op in enumerate(arrows.ops)}
    groups = [tuple(places[name] for name in group) for group in fused.groups]
    apart = fused.apart if len(graph.ops) > 1 else {}
    nodes = [_node(op, apart) for op in arrows.ops]
    return Drawing(title, nodes, arrows.edges, arrows.jumps, groups, arrows.loops)


def _node(op: Op, apart: Mapping[str, str]) -> Node:
    kind = type(op).__name__
    if isinstance(op, RequestOp | ResponseOp):
        return Node("request" if isinstance(op, RequestOp) else "response", (kind,), is_op=False)
    config: OpConfig | None = getattr(op, "pipeline_config", None)  # None: not configured yet
    own = (kind,) if type(op) is not Op else ()
    details = (*own, *(_settings(config) if config else ()))
    return Node(op.name, details, True, apart.get(op.name, ""))


def _settings(config: OpConfig) -> Iterator[str]:
    """Yield the settings that differ from the default, and the number of workers."""
    kind = config.workers or "worker"
    several = "" if config.concurrency == 1 else "es" if kind.endswith("s") else "s"
    yield f"{config.concurrency} {kind}{several}"
    if config.batch_size > 1:
        wait = config.auto_batching_timeout_s
        yield f"batch up to {config.batch_size}" + (f" within {_ms(wait)}" if wait else "")
    if config.sequence.strategy is not None:
        slots = config.sequence.max_candidates or config.batch_size
        yield f"sequences: {config.sequence.strategy}, {slots} slot{'s' * (slots > 1)} a worker"
    if config.timeout_s is not None:
        yield f"timeout {_ms(config.timeout_s)}"
    if config.retry > 1:
        yield f"{config.retry} attempts"
    local = config.local_service_conf
    if config.server_endpoints:
        yield f"{config.client_type or 'brpc'} {', '.join(config.server_endpoints)}"
    elif local.model_config is not None:
        by = "" if local.client_type == "local_predictor" else f" over {local.client_type}"
        yield f"{local.model_config}{by}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:g} ms"


# Text -------------------------------------------------------------------------------------


def as_text(drawing: Drawing) -> str:
    """Return a line for each Op, next to rails that lead to its readers."""
    rails = _Rails()
    for number in range(len(drawing.nodes)):
        rails.add(number, [to for source, to in drawing.edges if source == number])
    width = max(len(row) for row, _ in rails.rows)
    names = max(len(node.name) for node in drawing.nodes)
    lines = [drawing.title, ""]
    for row, place in rails.rows:
        line = "" if place is None else _line(drawing, place, names)
        lines.append(f"{row:{width}}  {line}".rstrip())
    lines += [""] * bool(drawing.jumps or drawing.loops)
    lines += [
        f"{drawing.nodes[source].name} may jump to {drawing.nodes[to].name}, instead of {over}"
        for source, to, over in drawing.jumps
    ]
    lines += [
        f"{drawing.nodes[source].name} may loop to {drawing.nodes[to].name}, {_at_most(count)}"
        for source, to, count in drawing.loops
    ]
    together = list(_together(drawing))
    return "\n".join([*lines, *[""] * bool(together), *together, ""])


def _at_most(count: int) -> str:
    return f"at most {count} times" if count > 1 else "once at most"


def _together(drawing: Drawing) -> Iterator[str]:
    """Yield a line for each group, and for each reason why Ops are in no group."""
    for group in drawing.groups:
        yield f"{_TOGETHER}: {', '.join(drawing.nodes[place].name for place in group)}"
    for apart in dict.fromkeys(node.apart for node in drawing.nodes if node.apart):
        names = ", ".join(node.name for node in drawing.nodes if node.apart == apart)
        yield f"by itself: {names}: {apart}"


def _labels(node: Node) -> tuple[str, ...]:
    """Return the lines of a box."""
    return (node.name, *node.details, *[f"by itself: {node.apart}"] * bool(node.apart))


def _line(drawing: Drawing, number: int, width: int) -> str:
    node = drawing.nodes[number]
    inputs = [drawing.nodes[source].name for source, to in drawing.edges if to == number]
    reads = [f"reads {', '.join(inputs)}"] if inputs else []
    return f"{node.name:{width}}  {'; '.join([*node.details, *reads])}"


class _Rails:
    """Rows of rails: a lane for each edge, from an Op down to its reader."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int | None]] = []
        self._lanes: list[int | None] = []

    def add(self, number: int, readers: Sequence[int]) -> None:
        """Put an Op below its inputs."""
        ends = [lane for lane, to in enumerate(self._lanes) if to == number]
        home = ends[0] if ends else self._free(-1)
        for lane in ends[1:]:
            self._lanes[lane] = None
        if len(ends) > 1:
            self._join(home, ends[1:], "╯", "┴")
        self._lanes[home] = number
        self._row({home: "●"}, number)
        if not readers:
            self._lanes[home] = None
            return
        self._lanes[home] = readers[0]
        begun = []
        for reader in readers[1:]:
            begun.append(self._free(home))
            self._lanes[begun[-1]] = reader
        if begun:
            self._join(home, sorted(begun), "╮", "┬")

    def _free(self, after: int) -> int:
        """Return the first lane right of `after` that is not in use."""
        for lane in range(after + 1, len(self._lanes)):
            if self._lanes[lane] is None:
                return lane
        self._lanes.append(None)
        return len(self._lanes) - 1

    def _join(self, home: int, lanes: Sequence[int], last: str, middle: str) -> None:
        """Add a row that connects `lanes`, which are right of `home`, to it."""
        marks = {lane: last if lane == lanes[-1] else middle for lane in lanes}
        self._row({home: "├", **marks}, None, (home, lanes[-1]))

    def _row(
        self, marks: Mapping[int, str], number: int | None, across: tuple[int, int] = (0, 0)
    ) -> None:
        row = ""
        for lane, to in enumerate(self._lanes):
            is_within = across[0] <= lane < across[1]
            empty = "─" if across[0] < lane < across[1] else " "
            row += marks.get(lane, empty if to is None else "│") + ("─" if is_within else " ")
        self.rows.append((row.rstrip(), number))


# Other programs' languages ----------------------------------------------------------------


def as_mermaid(drawing: Drawing) -> str:
    """Return a Mermaid flowchart in Markdown."""
    lines = ["flowchart LR"]
    for number, node in enumerate(drawing.nodes):
        left, right = ("[", "]") if node.is_op else ("([", "])")
        label = "<br>".join(map(_mermaid_text, _labels(node)))
        lines.append(f'    n{number}{left}"{label}"{right}')
    for number, group in enumerate(drawing.groups):
        inside = [f"        n{place}" for place in group]
        lines += [f'    subgraph g{number}["{_TOGETHER}"]', *inside, "    end"]
    lines += [f"    n{source} --> n{to}" for source, to in drawing.edges]
    lines += [
        f'    n{source} -.->|"instead of {_mermaid_text(over)}"| n{to}'
        for source, to, over in drawing.jumps
    ]
    lines += [
        f'    n{source} -.->|"again, {_at_most(count)}"| n{to}'
        for source, to, count in drawing.loops
    ]
    return "\n".join([*lines, ""])


def _mermaid_text(text: str) -> str:
    """Return a text with Mermaid's entities for all but harmless characters."""
    return "".join(
        char if char.isalnum() or char in " _-./:,@" else f"#{ord(char)};" for char in text
    )


def as_dot(drawing: Drawing) -> str:
    """Return a digraph in Graphviz' language."""
    lines = [f"digraph {_dot_text(drawing.title)} {{", "    rankdir=LR;", "    node [shape=box];"]
    for number, node in enumerate(drawing.nodes):
        label = _dot_text("\n".join(_labels(node)))
        shape = "" if node.is_op else ", shape=oval"
        lines.append(f"    n{number} [label={label}{shape}];")
    for number, group in enumerate(drawing.groups):
        inside = " ".join(f"n{place};" for place in group)
        label = f"label={_dot_text(_TOGETHER)}; style=dashed;"
        lines.append(f"    subgraph cluster_{number} {{ {label} {inside} }}")
    lines += [f"    n{source} -> n{to};" for source, to in drawing.edges]
    lines += [
        f"    n{source} -> n{to} [style=dashed, label={_dot_text(f'instead of {over}')}];"
        for source, to, over in drawing.jumps
    ]
    lines += [
        f"    n{source} -> n{to} [style=dashed, label={_dot_text(f'again, {_at_most(count)}')}];"
        for source, to, count in drawing.loops
    ]
    return "\n".join([*lines, "}", ""])


def _dot_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


FORMATS: Mapping[str, Callable[[Drawing], str]] = {
    "text": as_text,
    "mermaid": as_mermaid,
    "dot": as_dot,
}
"""The functions that draw, by format."""
