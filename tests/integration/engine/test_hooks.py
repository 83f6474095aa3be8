"""Warnings about the names of an Op's members when a server starts."""

from __future__ import annotations

from doubles import server_for

from pipeline import Op, RequestOp


def test_a_warning_is_one_a_class_and_is_logged_at_start(tmp_path):
    class Slipped(Op):
        def proces(self, feed_batch):
            return {}

    with server_for(Slipped("b", Slipped("a", RequestOp()))):
        pass
    (log,) = tmp_path.rglob("pipeline.log.wf")
    (line,) = [line for line in log.read_text().splitlines() if "proces " in line]
    assert "Op 'a': " in line
    assert "Slipped.proces is never called: is process meant?" in line
