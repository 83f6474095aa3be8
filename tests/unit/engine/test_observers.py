"""An observer that fails does not harm the requests."""

from __future__ import annotations

import pytest
from doubles import Engine, answers, chain, virtual

from pipeline import Op, ProductError, RequestOp


class Refuses(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        raise ProductError(51, "no")


def breaks(*told):
    raise RuntimeError("a watcher's own fault")


@pytest.mark.parametrize("watcher", ["on_failure", "on_success"])
@virtual
async def test_a_request_is_answered_when_a_watcher_raises(watcher, caplog):
    engine = Engine(Refuses("a", RequestOp()) if watcher == "on_failure" else chain("a"))
    engine.watch(**{watcher: breaks})
    async with engine:
        answer = await engine.ask()
        assert answer.err_no == (51 if watcher == "on_failure" else 0)
        assert (engine.executor.inside, engine.executor.waiting) == (0, 0)
        engine.journal.flush()
        assert [row["data_id"] for row in engine.requests] == [0]
    assert "a watcher's own fault" in caplog.text


@virtual
async def test_a_profile_that_cannot_be_written_is_left_out(caplog):
    engine = Engine(chain("a"))
    engine.watch(profile=breaks)
    async with engine:
        assert answers(await engine.ask(**{"pipeline.profile": "1"}))["path"] == "a"
    assert "a watcher's own fault" in caplog.text


@virtual
async def test_a_trace_that_cannot_start_is_none(caplog):
    engine = Engine(chain("a"))
    engine.watch(begin_trace=breaks)
    async with engine:
        assert answers(await engine.ask())["path"] == "a"
        assert (engine.executor.inside, engine.executor.waiting) == (0, 0)
    assert "a watcher's own fault" in caplog.text
