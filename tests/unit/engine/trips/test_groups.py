"""Which Ops run as one trip, and when: on a virtual clock."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from dataclasses import replace

import pytest
from doubles import VirtualLoop
from fuzz import virtual
from fuzz.case import REQUEST, Case, OpSpec, RequestSpec
from fuzz.strands import Strands

from pipeline.engine.trips import groups

# Groups -----------------------------------------------------------------------------------------


def run(case, body):
    """Run `body(engine)` on a started engine of the case; returns what it returns."""
    strands = Strands()

    async def main():
        engine = virtual.VirtualEngine(case, strands, asyncio.get_running_loop())
        await engine.executor.start()
        try:
            return await body(engine)
        finally:
            await engine.executor.stop(0.0)
            strands.close()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def groups_of(ops, prepare=lambda engine: None, slow=(), **case):
    """The groups if all Ops are quick but `slow`."""

    async def body(engine):
        prepare(engine)
        executor = engine.executor.executor
        for node in executor.nodes.values():
            node.pace.is_quick = node.name not in slow
        executor.trips.groups.form()
        return list(dict.fromkeys(executor.trips.groups.names().values()))

    return run(Case(tuple(ops), (), **{"fuse": "on", **case}), body)


def chain(*names, **each):
    read = (REQUEST, *names)
    return [
        OpSpec(name, (before,), **each.get(name, {}))
        for before, name in zip(read, names, strict=False)
    ]


def test_a_chain_of_quick_ops_is_a_group():
    assert groups_of(chain("a", "b", "c")) == [("a", "b", "c")]


def test_a_slow_op_is_in_no_group():
    assert groups_of(chain("a", "b", "c", "d", "e"), slow="c") == [("a", "b"), ("d", "e")]
    assert groups_of(chain("a", "b", "c"), slow="b") == []


def test_a_diamond_is_a_group():
    ops = [OpSpec("a", (REQUEST,)), OpSpec("b", (REQUEST,)), OpSpec("c", ("b", "a"))]
    assert [set(group) for group in groups_of(ops)] == [{"a", "b", "c"}]
    assert groups_of(ops, slow="b") == []


def test_parallel_ops_after_a_slow_op_are_a_group():
    ops = [
        OpSpec("slow", (REQUEST,)),
        OpSpec("a", ("slow",)),
        OpSpec("b", ("slow",)),
        OpSpec("join", ("a", "b", "slow")),
        OpSpec("end", ("join",)),
    ]
    assert groups_of(ops, slow=("slow",)) == [("a", "b"), ("join", "end")]


def test_an_op_in_processes_is_in_no_group():
    assert groups_of(chain("a", "b", "c", b={"workers": "process"})) == []


def test_an_op_that_delays_requests_for_a_batch_is_in_no_group():
    waits = {"batch_size": 4, "batching_s": 0.005}
    assert groups_of(chain("a", "b", "c", "d", b=waits)) == [("b", "c", "d")]
    assert groups_of(chain("a", "b", "c", c=waits)) == [("a", "b")]


def test_an_op_that_merges_without_delay_is_in_a_group():
    assert groups_of(chain("a", "b", "c", b={"batch_size": 4})) == [("a", "b", "c")]


def test_an_op_without_process_is_in_a_group_with_any_batch_size():
    settings = {"batch_size": 4, "has_process": False}
    assert groups_of(chain("a", "b", b=settings)) == [("a", "b")]
    assert groups_of(chain("b", "a", b=settings)) == [("b", "a")]


def test_a_first_arrival_join_is_in_no_group():
    ops = [
        *chain("a", "b"),
        OpSpec("c", ("a",)),
        OpSpec("join", ("b", "c"), first_arrival=True),
        OpSpec("end", ("join",)),
    ]
    assert groups_of(ops) == [("a", "b", "c")]


def test_ops_that_jump_or_are_jumped_to_are_in_no_group():
    ops = chain("a", "b", "c", "d", "e", "f", b={"jumps_to": ("d",)})
    assert groups_of(ops) == [("e", "f")]


def test_an_op_that_a_jump_back_repeats_is_in_no_group():
    ops = chain("before", "then", "a", "b", "c", c={"jumps_to": ("a",)})
    assert groups_of(ops) == [("before", "then")]


def test_off_fuses_nothing():
    assert groups_of(chain("a", "b"), fuse="off") == []


def test_with_bounded_channels_no_op_is_in_a_group():
    assert groups_of(chain("a", "b", "c"), channel_size=2) == []


@pytest.mark.parametrize("bound", [lambda: sqlite3.connect(":memory:"), threading.local])
def test_an_op_with_a_thread_bound_object_is_in_no_group(bound):
    def prepare(engine):
        engine.by_name["b"].held = bound()

    assert groups_of(chain("a", "b", "c", "d"), prepare) == [("c", "d")]


def test_a_group_has_an_end():
    names = [f"op{number}" for number in range(100)]
    assert list(map(len, groups_of(chain(*names)))) == [64, 36]


# In time ----------------------------------------------------------------------------------------


def test_a_group_forms_dissolves_and_forms_again():
    slow = range(100, 200)
    delay = {"b": (0.006, 0.0, 0.0)}
    requests = tuple(
        RequestSpec(number, at_s=number * 0.1, delays_s=delay if number in slow else {})
        for number in range(1, 301)
    )
    case = Case(tuple(chain("a", "b", "c")), requests, fuse="on")

    async def body(engine):
        seen = {}
        formed = engine.executor.executor.trips.groups
        for spec in requests:
            ending = await engine.ask(replace(spec, at_s=0.0))
            assert ending.kind == "answer"
            seen[spec.number] = list(dict.fromkeys(formed.names().values()))
        return seen

    seen = run(case, body)
    whole = [("a", "b", "c")]
    assert seen[10] == []
    assert seen[99] == whole
    assert seen[199] == []
    assert seen[300] == whole


JUMPS = chain("a", "b", "c", "d", "e", "f", b={"jumps_to": ("d",)})
BACK = chain("a", "b", "c", "d", "e", d={"jumps_to": ("c",)})
FIRST = [
    *chain("a", "b"),
    OpSpec("c", ("a",)),
    OpSpec("join", ("b", "c"), first_arrival=True),
    *(OpSpec(name, (before,)) for before, name in (("join", "d"), ("d", "e"))),
]


@pytest.mark.parametrize(
    ("ops", "jumps", "groups"),
    [
        (JUMPS, frozenset("b"), [("e", "f")]),
        (BACK, frozenset("d"), [("a", "b")]),
        (FIRST, frozenset(), [("a", "b", "c"), ("d", "e")]),
    ],
)
@pytest.mark.parametrize("size", [0, 2])
def test_groups_work_with_jumps_and_first_arrivals(ops, jumps, groups, size):
    """Half of the requests jump, some at once; the fuzzer's model says what the answers are."""
    assert groups_of(ops) == groups
    requests = tuple(
        RequestSpec(
            number,
            at_s=number // 4 * 0.002,
            jumps=jumps if number % 2 else frozenset(),
            laps=number % 3,
            delays_s={"a": (0.001 * (number % 3), 0.0, 0.0), "c": (0.004 * (number % 2), 0.0, 0.0)},
        )
        for number in range(1, 61)
    )
    strands = Strands()
    try:
        for fuse in ("on", "switching"):
            case = Case(tuple(ops), requests, channel_size=size, fuse=fuse, origin="beside")
            assert virtual.run(case, strands) == []
    finally:
        strands.close()


def test_an_obstacle_of_a_group_is_described():
    case = Case(tuple(chain("a", "b", b={"workers": "process"})), (), fuse="on")

    async def body(engine):
        nodes = tuple(engine.executor.executor.nodes.values())
        return [groups.obstacle(node, nodes) for node in nodes]

    assert run(case, body) == [None, "its workers (process) run only their own Op"]
