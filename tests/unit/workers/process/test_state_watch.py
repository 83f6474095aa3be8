"""What is seen of an Op that keeps something from request to request."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.workers.process.state_watch import StateWatch


def state() -> dict[str, Any]:
    return {"count": 0, "words": ["a"], "seen": {}, "model": object()}


def test_what_stays_as_it_is_has_not_changed():
    watch = StateWatch(state())
    assert not any(watch.has_changed() for _ in range(1000))


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.update(count=state["count"] + 1),
        lambda state: state.update(last="x"),
        lambda state: state.pop("count"),
        lambda state: state["words"].append("b"),
        lambda state: state["seen"].update(a=1),
        lambda state: state.update(words=["a"]),
    ],
)
def test_what_a_request_leaves_otherwise_is_seen(change):
    kept = state()
    watch = StateWatch(kept)
    assert not watch.has_changed()
    change(kept)
    assert watch.has_changed()


def test_what_changes_late_is_seen_before_long():
    kept = state()
    watch = StateWatch(kept)
    assert not any(watch.has_changed() for _ in range(1000))
    kept["count"] = 1
    assert any(watch.has_changed() for _ in range(64))
