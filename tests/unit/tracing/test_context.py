"""The trace that a request belongs to: as it travels, and as those below it derive theirs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.tracing.context import (
    TraceContext,
    call_metadata,
    call_trace,
    child,
    first_of,
    format_traceparent,
    is_sampled,
    parse_traceparent,
    set_call_trace,
)

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{SPAN}-01"
UNSAMPLED = f"00-{TRACE}-{SPAN}-00"

contexts = st.builds(
    TraceContext, st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans()
)


@pytest.fixture(autouse=True)
def no_trace_after() -> Iterator[None]:
    yield
    set_call_trace("")


# --- the format -----------------------------------------------------------------------------


@given(contexts)
def test_a_written_traceparent_is_parsed_unchanged(context: TraceContext):
    text = format_traceparent(context)
    assert len(text) == 55
    assert parse_traceparent(text) == context
    assert is_sampled(text) == context.is_sampled


def test_the_w3c_s_own_example():
    assert parse_traceparent(SAMPLED) == TraceContext(int(TRACE, 16), int(SPAN, 16), True)
    assert parse_traceparent(f" {UNSAMPLED}\t") == TraceContext(
        int(TRACE, 16), int(SPAN, 16), False
    )


@pytest.mark.parametrize("flags", ["03", "ff", "09"])
def test_flags_that_are_unknown_do_not_matter(flags: str):
    context = parse_traceparent(f"00-{TRACE}-{SPAN}-{flags}")
    assert context is not None
    assert context.is_sampled


def test_the_known_part_of_a_later_version_is_parsed():
    assert parse_traceparent(f"cc-{TRACE}-{SPAN}-01") == parse_traceparent(SAMPLED)
    assert parse_traceparent(f"cc-{TRACE}-{SPAN}-01-what-comes") == parse_traceparent(SAMPLED)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-",
        f"00-{TRACE}-{SPAN}-01-more",
        f"cc-{TRACE}-{SPAN}-01.more",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-0x",
        f"00_{TRACE}_{SPAN}_01",
        SAMPLED + "\n",
    ],
)
def test_an_invalid_traceparent_is_ignored(text: str):
    assert parse_traceparent(text) is None


@given(st.text())
def test_any_text_is_read_or_ignored(text: str):
    context = parse_traceparent(text)
    assert context is None or context.trace_id


# --- the spans below ------------------------------------------------------------------------


@given(contexts, st.text(), st.text(), st.integers(0, 5))
def test_a_child_span_has_the_same_trace_and_a_reproducible_id(
    context: TraceContext, op: str, stage: str, turn: int
):
    text = format_traceparent(context)
    derived = parse_traceparent(child(text, op, stage, turn))
    assert derived == parse_traceparent(child(text, op, stage, turn))
    assert derived is not None
    assert derived[::2] == context[::2], "trace and flag"
    assert (derived.span_id != context.span_id) == context.is_sampled


def test_ops_stages_spans_and_requests_have_different_span_ids():
    below = [
        child(request, op, stage, turn)
        for request in (SAMPLED, child(SAMPLED, "caller"))
        for op in ("bow", "cnn", "bo")
        for stage in ("", "process", "wprocess")
        for turn in (0, 1)
    ]
    assert len(set(below)) == len(below)


def test_the_child_of_no_trace_is_empty():
    assert child("", "bow", "process") == ""


def test_a_call_for_several_requests_belongs_to_the_first_that_is_sampled():
    other = child(SAMPLED, "other")
    assert first_of(["", UNSAMPLED, SAMPLED, other]) == SAMPLED
    assert first_of(["", UNSAMPLED, ""]) == UNSAMPLED
    assert first_of(["", ""]) == first_of([]) == ""


# --- the running call -----------------------------------------------------------------------


def test_the_trace_of_a_call_is_its_threads_own():
    set_call_trace(SAMPLED)
    others: list[Any] = []
    thread = threading.Thread(target=lambda: others.extend([call_trace(), call_metadata()]))
    thread.start()
    thread.join()
    assert others == ["", None]
    assert call_metadata() == (("traceparent", SAMPLED),)
