"""RequestStream: the parts of an answer that wait for their turn."""

from __future__ import annotations

from pipeline.engine.streams.flow import ENDED, RequestStream


def test_the_first_part_is_returned_and_the_others_follow_one_by_one():
    stream = RequestStream()
    stream.waiting.append(ENDED)
    assert stream.first_of(["a", "b", "c"]) == "a"
    *parts, end = stream.waiting
    assert [bundle.parts for bundle in parts] == [["b"], ["c"]]
    assert end is ENDED


def test_a_single_part_leaves_no_waiting_bundle():
    stream = RequestStream()
    assert stream.first_of(["a"]) == "a"
    assert not stream.waiting
