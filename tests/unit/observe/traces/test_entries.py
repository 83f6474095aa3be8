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


def record_of(**more):
    base = {"number": 1, "parent": 0, "model": "m", "version": "2", "request_id": ""}
    return TraceRecord(**{**base, "times": [], "spans": [], "parts": None, "tensors": [], **more})


def entries_of(*all_seen, level=BOTH):
    return json.loads(b"[%b]" % written(all_seen, level, itertools.count(10)))


def times_of(entries, number):
    return {
        entry["timestamps"][0]["name"]: entry["timestamps"][0]["ns"]
        for entry in entries
        if entry["id"] == number and "timestamps" in entry
    }


def test_a_model_has_the_stages_of_its_last_span():
    entries = entries_of(record_of(spans=[span(0), span(0, at=200)], times=[("REQUEST_START", 90)]))
    assert entries[0] == {"id": 1, "model_name": "m", "model_version": 2}
    assert times_of(entries, 1) == {
        "REQUEST_START": 90,
        "QUEUE_START": 200,
        "COMPUTE_START": 201,
        "COMPUTE_INPUT_END": 202,
        "COMPUTE_OUTPUT_START": 203,
        "COMPUTE_END": 204,
    }


def test_a_span_that_never_ran_has_only_queue_time():
    assert times_of(entries_of(record_of(spans=[span(0, NO_WORKER)])), 1) == {"QUEUE_START": 100}


def test_ops_of_a_graph_are_its_parts_except_ops_that_call_models():
    first = record_of(spans=[span(0), span(1), span(2)], parts=["a", "", "c"], request_id="q")
    entries = entries_of(first, record_of(number=2, parent=1, model="b"))
    heads = [entry for entry in entries if "model_name" in entry]
    assert [(head["id"], head["model_name"], head.get("parent_id")) for head in heads] == [
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
    entries = entries_of(record_of(tensors=tensors))
    shown = {entry["tensor"]["name"]: entry["tensor"] for entry in entries if "tensor" in entry}
    assert {name: each["data"] for name, each in shown.items()} == {
        "f": "0.5,1e-07,0.333333",
        "i": "1,-2",
        "b": "1,0",
        "t": '"a"b","�"',
        "none": "",
    }
    assert (shown["f"]["shape"], shown["f"]["dtype"]) == ("1,3", "FP32")
    assert shown["t"]["dtype"] == "BYTES"


def test_a_level_has_its_own_entries_only():
    one = record_of(
        tensors=[("TENSOR_BACKEND_OUTPUT", "y", np.zeros(1))], times=[("REQUEST_END", 1)]
    )
    assert all("timestamps" in item for item in entries_of(one, level=("TIMESTAMPS",))[1:])
    (entry,) = entries_of(one, level=("TENSORS",))
    assert entry["activity"] == "TENSOR_BACKEND_OUTPUT"
