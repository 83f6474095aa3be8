"""Items and requests as a scheduler sees them, without an engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pipeline.engine.op.channel import Item
from pipeline.engine.schedulers.base import Load


def request(data_id: int = 0, rows: int = 1, late_from: float | None = None) -> Any:
    """A request; from `late_from` on newer ones go first."""

    class Request(SimpleNamespace):
        __hash__ = object.__hash__

        def is_late(self, now: float, span_s: float) -> bool:
            return late_from is not None and now >= late_from

    return Request(data_id=data_id, log_id=0, generation=0, rows=rows, deadline=late_from)


def item(asked: Any, ready_at: float = 0.0) -> Item:
    return Item(asked, 0, asked.data_id, 0, {}, ready_at)


def load(workers: int = 1, running: int = 0, service_s: float = 0.0, **more: Any) -> Load:
    made = Load()
    made.workers, made.running, made.service_s = workers, running, service_s
    for name, value in more.items():
        setattr(made, name, value)
    return made
