"""StreamPlan: which Ops of a graph answer in parts, and where each stream begins and ends.

Pure: the methods of the Ops decide it, before there is any request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from pipeline.config.batching import traits_of
from pipeline.engine.graph import Graph, names_of
from pipeline.engine.run.hooks import yields
from pipeline.engine.run.op_facts import is_ragged
from pipeline.errors import ConfigError, GraphError
from pipeline.op import Op, runs_process

if TYPE_CHECKING:
    from pipeline.engine.streams.dispatcher import StreamDispatcher


class StreamPlan(msgspec.Struct, frozen=True, eq=False):
    """The streams of a graph.

    Attributes:
        makers: Ops that make several parts of one request.
        sources: for each Op that answers in parts the maker of these parts.
        reads: for each Op that reads streams, the names of the producers that stream.
        ends: for each maker, where its stream ends: at an Op, None for the ResponseOp; with the
            name
            of the Op that sends it, if there may be several.
    """

    makers: frozenset[Op]
    sources: Mapping[Op, Op]
    reads: Mapping[Op, frozenset[str]]
    ends: Mapping[Op, tuple[tuple[Op | None, str], ...]]

    def has(self, op: Op) -> bool:
        """Return whether an Op makes or reads parts."""
        return op in self.makers or op in self.reads


def makes_parts(op: Op) -> bool:
    """Return whether an Op makes several answers of one request."""
    return yields(op, "process") or yields(op, "postprocess") or is_iterative(op)


def is_iterative(op: Op) -> bool:
    """Return whether an Op's `process` is called step by step; False before it is configured."""
    config = getattr(op, "pipeline_config", None)  # a graph is drawn unconfigured
    return config is not None and traits_of(config.batching).steps


def plan_streams(graph: Graph) -> StreamPlan | None:
    """Find the streams of a graph; None: it has none.

    Raises:
        GraphError: naming the Ops: two streams meet, an Op gathers without a stream, or streams are
            combined with jumps or with inputs of which the first counts.
    """
    makers = frozenset(op for op in graph.ops if makes_parts(op))
    sources: dict[Op, Op] = {}
    reads: dict[Op, frozenset[str]] = {}
    for op in graph.ops:
        streaming = [producer for producer in op.get_input_ops() if producer in sources]
        if op.pipeline_gathers and not streaming:
            raise GraphError(
                f"Op {op.name!r} has gather=True, but the Ops that it reads do not stream: "
                f"{names_of(op.get_input_ops())}."
            )
        if streaming:
            reads[op] = frozenset(producer.name for producer in streaming)
            if not op.pipeline_gathers:
                sources[op] = _one_source(op, streaming, sources)
        if op in makers:
            sources[op] = op
    if not makers:
        return None
    _check_others(graph, makers, reads)
    _check_waits(graph, sources, makers)
    ends = {maker: _ends_of(maker, graph, sources, makers) for maker in makers}
    return StreamPlan(makers, sources, reads, ends)


def _one_source(op: Op, streaming: list[Op], sources: Mapping[Op, Op]) -> Op:
    makers = dict.fromkeys(sources[producer] for producer in streaming)
    if len(makers) > 1:
        paths = ", ".join(
            f"{producer.name!r} brings the stream of {sources[producer].name!r}"
            for producer in streaming
        )
        raise GraphError(
            f"Op {op.name!r} reads two streams, whose parts do not belong together: {paths}. Give "
            "it gather=True, which gets all parts of both at once, or join them before they "
            "stream."
        )
    return next(iter(makers))


def _check_others(graph: Graph, makers: frozenset[Op], reads: Mapping[Op, frozenset[str]]) -> None:
    """Check that each stream is combined only with supported features."""
    ragged = [op for op in makers if hasattr(op, "pipeline_config") and is_ragged(op)]
    if ragged:
        raise GraphError(
            f"{names_of(ragged)} streams: allow_ragged_batch, batch_input and batch_output are "
            "for Ops that answer once."
        )
    for op in filter(is_iterative, graph.ops):
        hook = next(
            (hook_name for hook_name in ("process", "postprocess") if yields(op, hook_name)), ""
        )
        if hook or not runs_process(op):
            what = f"its {hook} is a generator" if hook else "it has no process"
            raise GraphError(
                f"Op {op.name!r} has batching: iterative, and {what}: process has to be a plain "
                "method, which is called once for each step."
            )
    looping = [op for op in graph.ops if op.pipeline_loop_to and (op in makers or op in reads)]
    if looping:
        raise GraphError(
            f"{names_of(looping)} has loop_to, and makes or reads a stream: parts of a stream run "
            "once. Loop before it streams, or give it gather=True and loop behind it."
        )
    for op in graph.ops:
        for name in op.pipeline_loop_to:
            target = next(other for other in graph.ops if other.name == name)
            _check_loop(graph, op, target, makers, reads)
    first = min(makers, key=graph.ops.index)
    jumping = [op for op in graph.ops if op.is_jump_op()]
    if jumping:
        raise GraphError(
            f"Op {first.name!r} streams, and {names_of(jumping)} jumps: streams and jump_to_ops "
            "do not go together in one graph."
        )


def _check_loop(
    graph: Graph, op: Op, target: Op, makers: frozenset[Op], reads: Mapping[Op, frozenset[str]]
) -> None:
    """Check that no stream beside a loop may be running when the loop begins its next lap."""
    leads = {op}  # lead to the Op that loops
    for step in reversed(graph.ops):
        leads |= {step} & {read for one in leads for read in one.get_input_ops()}
    waits = {op}  # wait until it loops no more
    again = {target}  # run in each lap
    for step in graph.ops:
        inputs = step.get_input_ops()
        config = getattr(step, "pipeline_config", None)  # None for a graph that is drawn
        takes_first = config is not None and config.channel_recv_first_arrive
        if (all if takes_first else any)(read in waits for read in inputs):
            waits.add(step)
        elif again.intersection(inputs):
            again.add(step)
    beside = again - leads
    wrong = [
        other for other in graph.ops if other in beside and (other in makers or other in reads)
    ]
    wrong += [reader for reader in reads if beside.intersection(reader.get_input_ops())]
    wrong += [target] if target in reads else []
    if wrong:
        raise GraphError(
            f"{names_of(wrong)}: parts are made or read beside the loop of {op.name!r} to "
            f"{target.name!r}, whose Ops run again meanwhile. Also read {op.name!r}: that waits "
            "until the loop has ended."
        )
    once = [
        reader
        for reader in reads
        if reader in again and not again.issuperset(reader.get_input_ops())
    ]
    if once:
        raise GraphError(
            f"{names_of(once)}: a stream is read in the loop of {op.name!r} to {target.name!r}, "
            "together with an answer from outside the loop, which comes only once."
        )


def _check_waits(graph: Graph, sources: Mapping[Op, Op], makers: frozenset[Op]) -> None:
    """Refuse a join of a stream with an Op that answers at its end only: it would deadlock."""
    behind: dict[Op, frozenset[Op]] = {}  # the streams that have ended before an Op first answers
    above: dict[Op, frozenset[Op]] = {}  # for each maker, it and the streams that it is made of
    for op in graph.ops:
        inputs = [producer for producer in op.get_input_ops() if producer in behind]
        behind[op] = frozenset().union(*(behind[producer] for producer in inputs))
        bring = {sources[producer] for producer in inputs if producer in sources}
        upstream = frozenset().union(*(above[source] for source in bring))
        if op.pipeline_gathers:
            behind[op] |= upstream
        elif waiting := upstream & behind[op]:
            raise GraphError(
                f"Op {op.name!r} reads parts of the stream of {names_of(list(waiting))}, and an Op "
                "that answers only at its end: give it gather=True also."
            )
        if op in makers:
            above[op] = frozenset({op}) if op.pipeline_gathers else upstream | {op}


def _ends_of(
    maker: Op, graph: Graph, sources: Mapping[Op, Op], makers: frozenset[Op]
) -> tuple[tuple[Op | None, str], ...]:
    """Return where a maker's parts end: at Ops that gather or stream again, and at the answer."""
    ends: list[tuple[Op | None, str]] = []
    if sources.get(graph.last_op) is maker:
        ends.append((None, ""))
    for op in graph.ops:
        bring = [producer.name for producer in op.get_input_ops() if sources.get(producer) is maker]
        if op.pipeline_gathers:
            ends += [(op, name) for name in bring]
        elif op in makers and bring:
            ends.append((op, ""))
    return tuple(ends)


def check_streams(node: StreamDispatcher) -> None:
    """Check that the Op's configuration allows streams.

    Raises:
        ConfigError: its workers cannot run a generator.
        GraphError: it takes the first of several inputs.
    """
    config = node.op.pipeline_config
    if node.makes_parts and not node.workers.runs_slices:
        raise ConfigError(
            f"op.{node.name}.workers: expected thread or process, found {config.workers}, which "
            "cannot run a generator"
        )
    if config.channel_recv_first_arrive and node.channel.is_join:
        raise GraphError(
            f"Op {node.name!r} makes or reads a stream, and takes the first of several inputs "
            "that arrives (channel_recv_first_arrive): these do not go together."
        )
