"""The forms of a hook in which a parameter called `context` receives the context."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest

from pipeline import Op, RequestOp
from pipeline.data import RequestInfo, SequenceStep, context_of
from pipeline.engine.run.hooks import (
    POSTPROCESS,
    PREPROCESS,
    PROCESS,
    UNPACK,
    asking,
    call_form,
    check_hooks,
    doubtful_names,
)
from pipeline.errors import InitError


def op_with(base=Op, **methods):
    made = type("Own", (base,), methods)
    return made() if base is RequestOp else made("op", RequestOp())


def tagged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


FORMS = [
    (PREPROCESS, lambda self, i, *, context: {}, (1, True)),
    (PREPROCESS, lambda self, i, log_id, *, context: {}, (2, True)),
    (PREPROCESS, lambda self, i, data_id, log_id, context: {}, (3, True)),
    (PREPROCESS, lambda self, i, data_id=0, log_id=0, context=None: {}, (3, True)),
    (PREPROCESS, lambda self, *args, context: {}, (3, True)),
    (PREPROCESS, tagged(lambda self, i, *, context: {}), (1, True)),
    (PROCESS, lambda self, feed_batch, *, context: {}, (1, True)),
    (PROCESS, lambda self, feed_batch, typical_logid, context: {}, (2, True)),
    (POSTPROCESS, lambda self, i, fetch, *, context: {}, (2, True)),
    (POSTPROCESS, lambda self, i, fetch, data_id, log_id, context: {}, (4, True)),
    # A parameter by position keeps its former meaning.
    (PREPROCESS, lambda self, i, context: {}, (2, False)),
    (PREPROCESS, lambda self, i, context=None: {}, (2, False)),
    (PREPROCESS, lambda self, context: {}, (1, False)),
    (PREPROCESS, lambda self, i, context, log_id: {}, (3, False)),
    (PREPROCESS, lambda self, i, data_id, context: {}, (3, False)),
    (PREPROCESS, tagged(lambda self, i, context: {}), (2, False)),
    (PROCESS, lambda self, feed_batch, context: {}, (2, False)),
    (POSTPROCESS, lambda self, i, fetch, context: {}, (3, False)),
    # And who does not name it does not get it.
    (PREPROCESS, lambda self, i, *args, **kwargs: {}, (3, False)),
    (PREPROCESS, lambda self, *args, **kwargs: {}, (3, False)),
]


@pytest.mark.parametrize(("hook", "method", "called"), FORMS)
def test_a_hook_with_an_additional_parameter_context_receives_the_context(hook, method, called):
    op = op_with(**{hook.name: method})
    check_hooks([op])
    arguments, _, takes_context = call_form(op, hook)
    assert (arguments, takes_context) == called


def test_the_edges_may_ask_too():
    read = op_with(RequestOp, unpack_request_package=lambda self, request, context: {})
    assert call_form(read, UNPACK)[::2] == (1, True)
    assert asking(read) == {"unpack_request_package"}
    assert asking(Op("a", read)) == set()


def test_a_context_has_all_attributes_of_the_request():
    fields = {"parameters": {"a": 1}, "headers": {"b": "c"}, "sequence_id": "d"}
    fields |= {"id": "e", "sequence_start": True, "sequence_end": True, "priority": 7}
    fields["outputs"] = ("f",)
    assert {*fields} == {*RequestInfo.__struct_fields__}
    request = SimpleNamespace(data_id=8, log_id=9, deadline=10.0)
    step = SequenceStep(id="d")
    context = context_of(request, RequestInfo(**fields), sequence=step)
    assert {name: getattr(context, name) for name in fields} == fields
    assert (context.data_id, context.log_id, context.deadline) == (8, 9, 10.0)
    assert context.sequence is step


def test_a_hook_without_requests_cannot_have_a_context():
    with pytest.raises(InitError, match=r"init_op\(self\)"):
        check_hooks([op_with(init_op=lambda self, context: None)])


def test_a_context_in_the_place_of_another_argument_is_a_warning_at_the_start():
    (warning,) = doubtful_names([op_with(preprocess=lambda self, i, context: {})])
    assert "preprocess has 'context' in the place of another argument" in warning
    assert warning.endswith("write it behind a star: (self, input_dicts, *, context).")
    assert list(doubtful_names([op_with(preprocess=lambda self, i, *, context: {})])) == []
