"""Entries of the trace file: stages, parts and tensors."""

from __future__ import annotations

import itertools
import json

import numpy as np

from pipeline.engine.journal.journal import NO_WORKER, pack_span
from pipeline.observe.traces.traces import TraceRecord, written

BOTH = ("TIMESTAMPS", "TENSORS")


def span(op, worker=0, at=100):
    return pack_span(op, worker, 1, 7, 1, 0, at, at + 1, at + 2, at + 3, at + 4, at + 5)


def seen(**more):
    base = {"number": 1, "parent": 0, "model": "m", "version": "2", "request_id": ""}
    return TraceRecord(**{**base, "times": [], "spans": [], "parts": None, "tensors": [], **more})


def entries_of(*all_seen, level=BOTH):
    return json.loads(b"[%b]" % written(all_seen, level, itertools.count(10)))


def times_of(entries, number):
    return {
        each["timestamps"][0]["name"]: each["timestamps"][0]["ns"]
        for each in entries
        if each["id"] == number and "timestamps" in each
    }


def test_a_model_has_the_stages_of_its_last_span():
    entries = entries_of(seen(spans=[span(0), span(0, at=200)], times=[("REQUEST_START", 90)]))
    assert entries[0] == {"id": 1, "model_name": "m", "model_version": 2}
    assert times_of(entries, 1) == {
        "REQUEST_START": 90,
        "QUEUE_START": 200,
        "COMPUTE_START": 201,
        "COMPUTE_INPUT_END": 202,
        "COMPUTE_OUTPUT_START": 203,
        "COMPUTE_END": 204,
    }


def test_what_never_ran_has_only_waited():
    assert times_of(entries_of(seen(spans=[span(0, NO_WORKER)])), 1) == {"QUEUE_START": 100}


def test_ops_of_a_graph_are_parts_of_it_but_those_that_ask_models():
    first = seen(spans=[span(0), span(1), span(2)], parts=["a", "", "c"], request_id="q")
    entries = entries_of(first, seen(number=2, parent=1, model="b"))
    heads = [each for each in entries if "model_name" in each]
    assert [(each["id"], each["model_name"], each.get("parent_id")) for each in heads] == [
        (1, "m", None), (10, "a", 1), (11, "c", 1), (2, "b", 1),
    ]  # fmt: skip
    assert heads[1]["request_id"] == "q"
    assert times_of(entries, 1) == {}
    assert times_of(entries, 10)["REQUEST_END"] == 105


def test_tensors_are_text():
    arrays = {
        "f": np.array([[0.5, 1e-7, 1 / 3]], np.float32),
        "i": np.array([1, -2], np.int64),
        "b": np.array([True, False]),
        "t": np.array(['a"b', b"\xff".decode("utf-8", "replace")], object),
        "none": np.zeros((0, 2), np.uint8),
    }
    tensors = [("TENSOR_QUEUE_INPUT", name, array) for name, array in arrays.items()]
    entries = entries_of(seen(tensors=tensors))
    shown = {each["tensor"]["name"]: each["tensor"] for each in entries if "tensor" in each}
    assert {name: each["data"] for name, each in shown.items()} == {
        "f": "0.5,1e-07,0.333333",
        "i": "1,-2",
        "b": "1,0",
        "t": '"a"b","�"',
        "none": "",
    }
    assert (shown["f"]["shape"], shown["f"]["dtype"]) == ("1,3", "FP32")
    assert shown["t"]["dtype"] == "BYTES"


def test_a_level_has_only_what_it_says():
    one = seen(tensors=[("TENSOR_BACKEND_OUTPUT", "y", np.zeros(1))], times=[("REQUEST_END", 1)])
    assert all("timestamps" in each for each in entries_of(one, level=("TIMESTAMPS",))[1:])
    (entry,) = entries_of(one, level=("TENSORS",))
    assert entry["activity"] == "TENSOR_BACKEND_OUTPUT"
