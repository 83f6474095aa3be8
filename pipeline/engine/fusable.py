"""Rules for the Ops that run in one go: who may, who does now, who goes along with whom."""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pipeline.config.elastic import bounds_of
from pipeline.engine.hosting import go_along_in_process, is_hosted
from pipeline.engine.walk_api import Hosting, Lender
from pipeline.op import Op, runs_process

if TYPE_CHECKING:
    from pipeline.engine.dispatcher import OpDispatcher
    from pipeline.engine.pace import Pace
    from pipeline.engine.worker_api import Workers

_BOUND_TO_A_THREAD = (sqlite3.Connection, sqlite3.Cursor, threading.local)
_LOOK_NS = 1_000_000_000  # an Op that fails again and again is looked at so often
_MOST_LOOKED_AT = 256  # values that an Op holds


def place_of(node: OpDispatcher) -> int:
    """Return the place of an Op in the graph."""
    return node.spans.index


def goes(node: OpDispatcher) -> bool:
    """Return whether an Op is in a group now."""
    return node.pace.is_quick and node.pace.is_fusable


def goes_along(leader: OpDispatcher, node: OpDispatcher) -> bool:
    """Return whether an Op takes batches as the leader cuts them."""
    if is_hosted(leader) or is_hosted(node):
        return go_along_in_process(leader, node)
    config, leading = node.op.pipeline_config, leader.op.pipeline_config
    if config.batch_size == 1 or not runs_process(node.op):
        return True
    return (
        _batching(config) == _batching(leading) and node.load.rows_limits == leader.load.rows_limits
    )


def _batching(config: Any) -> tuple[Any, ...]:
    options = dict(config.scheduler_options)
    return config.batch_size, config.batching, config.auto_batching_timeout_s, options


def obstacle(node: OpDispatcher, nodes: Iterable[OpDispatcher]) -> str | None:
    """Return why an Op is never in a group; None: it may be."""
    config = node.op.pipeline_config
    if not config.fuse:
        return "fuse is false"
    if node.goes_alone:
        return node.goes_alone
    if bounds_of(config) is not None:
        return "its workers come and go"
    if config.sequence.strategy is not None:
        return "its sequences stay with its workers"
    if not isinstance(node.workers, Lender | Hosting):
        return f"its workers ({config.workers}) run no Op but their own"
    if is_hosted(node) and config.batch_size > 1:
        return "it runs batches in processes"
    if not vars(type(node.scheduler)).get("lets_pass", False):  # not one that is derived from ours
        return f"its scheduler, {config.batching}, has to see each request"
    if config.channel_recv_first_arrive and node.channel.is_join:
        return "it takes the first of several that arrives"
    if node.streams:
        return "it makes or reads a stream"
    if node.links.targets or node.links.is_target:
        return "it jumps, or is jumped to"
    if any(node in other.links.runs_again for other in nodes):
        return "it runs again after a jump back"
    if node.links.is_in_loop:
        return "it runs again in a loop"
    if not is_hosted(node) and has_threads_module(node.op):
        return "its module keeps something for each thread"
    return None


def has_threads_module(op: Op) -> bool:
    """Return whether a module of an Op keeps something for each thread."""
    modules = [sys.modules.get(kind.__module__) for kind in type(op).__mro__]
    return any(
        isinstance(value, threading.local)
        for module in modules
        if module is not None
        for value in list(vars(module).values())
    )


def is_bound(op: Op, workers: Workers) -> bool:
    """Return whether an Op has what only the thread may use that made it, by itself or within."""
    if not isinstance(workers, Lender):  # they lend their Op to no other thread
        return False
    states = (vars(op), *workers.states())
    values = [value for state in states for value in list(state.values())]
    is_bound_itself = any(isinstance(value, _BOUND_TO_A_THREAD) for value in values)
    return is_bound_itself or _holds_connection(values)


def is_bound_after_all(op: Op, workers: Workers, pace: Pace, now_ns: int) -> bool:
    """Look again at an Op that has failed, once a second at most; return `is_bound`."""
    if now_ns - pace.looked_at_ns <= _LOOK_NS:
        return False
    pace.looked_at_ns = now_ns
    return is_bound(op, workers)


def _holds_connection(values: list[Any]) -> bool:
    """Return whether a connection of sqlite3 is in some values; what is large is data."""
    seen: set[int] = set()
    while values and len(seen) < _MOST_LOOKED_AT:
        value = values.pop()
        if isinstance(value, sqlite3.Connection | sqlite3.Cursor):
            return True
        if id(value) in seen or isinstance(value, Op | type):
            continue
        seen.add(id(value))
        if not isinstance(value, list | tuple | dict):
            try:
                value = object.__getattribute__(value, "__dict__")
            except AttributeError:
                continue
        if len(value) <= _MOST_LOOKED_AT:
            values += list(value.values()) if isinstance(value, dict) else value
    return False
