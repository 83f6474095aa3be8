"""ActorSetup: the description of an actor; pickled by Ray, classes of the script by value."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipeline.engine.worker_api import SetUp
from pipeline.op import Op
from pipeline.workers.zygote.spawn import ScriptClass

KeepLogs = Callable[[Callable[[bytes], None]], None]


@dataclass(frozen=True, slots=True)
class ActorSetup:
    """Description of an actor.

    Args:
        op: a configured Op, with only the names of its neighbours in the graph.
        number: of the worker.
        set_up: gives the Op its predictor.
        keep_logs: sends log records to the server.
        boot_id: of the server's machine.
        where: returns the id of the node, there.
        look_s: how often it reports a long-running job; 0: never.
        classes: of the scripts, so that a payload of such a class can be pickled by name.
        model_files: names of the files of its model, which come with `begin`.
    """

    op: Op
    number: int
    set_up: SetUp
    keep_logs: KeepLogs
    boot_id: str
    where: Callable[[], str]
    look_s: float = 0.0
    classes: Sequence[ScriptClass] = ()
    model_files: tuple[str, ...] = ()


def for_transport(op: Op) -> Op:
    """Return a copy of an Op with names in place of its neighbours, which stay here."""
    alone = copy.copy(op)
    alone.pipeline_consumers = weakref.WeakSet()
    alone._input_ops = [Op(name=producer.name) for producer in op.get_input_ops()]
    alone._jump_to_ops = [Op(name=target.name) for target in op.get_jump_to_ops()]
    return alone
