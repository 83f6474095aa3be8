"""The graph command shows which Ops may run without a change of thread."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from doubles import Tag

from pipeline import Op, RequestOp, ResponseOp
from pipeline.cli.drawing import FORMATS, Fused, drawing_of, fused
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.engine.graph import Graph, build_graph
from pipeline.op import configure_op


class Works(Tag):
    def process(self, feed_batch: Any, typical_logid: int) -> Any:
        return feed_batch[0]


def chain(*names: str) -> list[Op]:
    ops: list[Op] = []
    for name in names:
        ops.append(Works(name, [ops[-1] if ops else RequestOp()]))
    return ops


def graph_of(last: Op, config: dict[str, Any]) -> tuple[Graph, Fused]:
    graph = build_graph(ResponseOp(input_ops=[last]))
    settings = load_config(yml_dict={"rpc_port": 0, **config})
    for op in graph.ops:
        configure_op(op, resolve_op(op.name, op.pipeline_given, settings))
    return graph, fused(graph, settings.dag)


def groups_of(last: Op, **config: Any) -> tuple[list[tuple[str, ...]], dict[str, str]]:
    result = graph_of(last, config)[1]
    return list(result.groups), dict(result.apart)


def test_quick_ops_that_follow_each_other_are_a_group():
    assert groups_of(chain("a", "b", "c")[-1]) == ([("a", "b", "c")], {})


class Speaks(Works):
    def process(self, feed_batch: Any, typical_logid: int) -> Any:
        yield feed_batch[0]


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_an_op_that_makes_a_stream_is_drawn(workers):
    (reads,) = chain("reads")
    groups, apart = groups_of(Speaks("speaks", [reads]), op={"speaks": {"workers": workers}})
    assert groups == []
    assert apart["speaks"] == "it makes or reads a stream"


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"fuse": False}, "fuse is false"),
        ({"workers": "process"}, "its workers (process) run only their own Op"),
    ],
)
def test_an_op_outside_groups_has_a_reason(keys, reason):
    ops = chain("a", "b", "c")
    assert groups_of(ops[-1], op={"c": keys}) == ([("a", "b")], {"c": reason})


def test_an_obstacle_has_the_engines_text():
    ops = chain("a", "b", "c", "d", "e")
    ops[1].set_jump_to_ops(ops[3])
    jumps = "it jumps, or is jumped to"
    alone = "no neighbour can run in one pass with it"
    assert groups_of(ops[-1]) == ([], {"a": alone, "b": jumps, "c": alone, "d": jumps, "e": alone})


def test_a_join_of_different_groups_waits():
    ops = chain("a", "b")
    ops[1].held = threading.local()
    groups, apart = groups_of(Works("c", ops))
    assert groups == []
    assert apart["b"] == "only the thread that made its state may use it"
    assert apart["c"] == "it waits for Ops that do not run in one pass"


def test_off_is_the_reason_of_each_op():
    off = "dag.fuse is off"
    assert groups_of(chain("a", "b")[-1], dag={"fuse": "off"}) == ([], {"a": off, "b": off})


def test_bounded_channels_are_thought_of():
    read = RequestOp()
    side = [Works("a", [read]), Works("b", [read])]
    assert groups_of(Works("c", side))[0] == [("a", "b", "c")]
    assert groups_of(Works("c", side), dag={"channel_size": 2})[0] == []


@pytest.mark.parametrize(
    ("form", "group", "apart"),
    [
        ("text", "in one pass while quick: a, b\n", "by itself: c: fuse is false\n"),
        (
            "mermaid",
            '    subgraph g0["in one pass while quick"]\n        n1\n        n2\n    end\n',
            "<br>by itself: fuse is false",
        ),
        (
            "dot",
            '    subgraph cluster_0 { label="in one pass while quick"; style=dashed; n1; n2; }\n',
            "\\nby itself: fuse is false",
        ),
    ],
)
def test_every_form_shows_groups_and_reasons(form, group, apart):
    graph, result = graph_of(chain("a", "b", "c")[-1], {"op": {"c": {"fuse": False}}})
    text = FORMATS[form](drawing_of(graph, "svc", result))
    assert group in text
    assert apart in text
    alone = graph_of(chain("a")[-1], {})
    assert "by itself" not in FORMATS[form](drawing_of(alone[0], "svc", alone[1]))
