"""Errors of hooks at the start, warnings, and every historical form, which stays valid."""

from __future__ import annotations

import functools

import pytest
from doubles import server_for

from pipeline import Op, RequestOp, ResponseOp
from pipeline.engine.run.hooks import check_hooks, doubtful_names
from pipeline.errors import InitError


def op_with(base=Op, **methods):
    made = type("Own", (base,), methods)
    return made() if base is RequestOp else made("op", RequestOp())


def faults(op):
    try:
        check_hooks([op])
    except InitError as error:
        return str(error).splitlines()
    return []


def tagged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


def with_threshold(function):
    @functools.wraps(function)
    def wrapper(self, input_dicts, data_id, log_id):
        return function(self, input_dicts, data_id, log_id, 0.5)

    return wrapper


def loosely_with_threshold(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args, 0.5)

    return wrapper


class Callable3:
    def __call__(self, input_dicts, data_id, log_id):
        return {}


GOOD = {
    "preprocess": [
        lambda self, i: {},
        lambda self, i, log_id: {},
        lambda self, i, data_id: {},
        lambda self, i, data_id, log_id: {},
        lambda self, i, data_id=0, log_id=0: {},
        lambda self, i, data_id, log_id, size=3, *, more=1: {},
        lambda self, *args: {},
        lambda self, *args, **kwargs: {},
        lambda self, i, **kwargs: {},
        tagged(lambda self, i: {}),
        with_threshold(lambda self, i, data_id, log_id, threshold: {}),
        loosely_with_threshold(lambda self, i, data_id, log_id, threshold: {}),
        staticmethod(lambda i, data_id, log_id: {}),
        classmethod(lambda cls, i: {}),
        functools.partial(lambda size, i, data_id, log_id: {}, 3),
        functools.partialmethod(lambda self, i, log_id, size: {}, size=3),
        Callable3(),
        dict,
    ],
    "process": [
        lambda self, feed_batch: {},
        lambda self, feed_dict: {},
        lambda self, feed_batch, typical_logid: {},
        lambda self, *args: {},
    ],
    "postprocess": [
        lambda self, i, fetch: {},
        lambda self, i, fetch, log_id: {},
        lambda self, i, fetch, data_id: {},
        lambda self, i, fetch, data_id, log_id: {},
        lambda self, i, fetch, data_id=0, log_id=0: {},
        lambda self, *args: {},
    ],
    "init_op": [lambda self: None, lambda self, model="m", size=3: None, lambda *args: None],
}


@pytest.mark.parametrize(
    ("name", "method"), [(name, method) for name, forms in GOOD.items() for method in forms]
)
def test_every_form_that_can_be_called_is_accepted(name, method):
    assert faults(op_with(**{name: method})) == []


async def coroutine(self, input_dicts):
    return {}


def test_methods_may_be_async():
    assert faults(op_with(preprocess=coroutine, init_op=GOOD["init_op"][0])) == []


BAD = [
    ("preprocess", lambda self: {}, "()"),
    ("preprocess", lambda self, a, b, c, d: {}, "(a, b, c, d)"),
    ("preprocess", lambda self, i, *, size: {}, "(i, *, size)"),
    ("process", lambda self: {}, "()"),
    ("process", lambda self, a, b, c: {}, "(a, b, c)"),
    ("postprocess", lambda self, fetch: {}, "(fetch)"),
    ("postprocess", lambda self, a, b, c, d, e: {}, "(a, b, c, d, e)"),
    ("init_op", lambda self, model: None, "(model)"),
]


@pytest.mark.parametrize(("name", "method", "found"), BAD)
def test_an_invalid_signature_is_refused_with_the_expected_forms(name, method, found):
    (text,) = faults(op_with(**{name: method}))
    assert text.startswith("Op 'op': ")
    assert "(test_hooks.py:" in text
    assert f"takes {found}: expected one of the forms" in text
    assert f" {name}(self" in text


def selfless():
    return {}


@pytest.mark.parametrize("name", ["init_op", "preprocess", "process", "postprocess"])
def test_a_method_without_even_self_is_refused(name):
    (text,) = faults(op_with(**{name: selfless}))
    assert text.startswith("Op 'op': ")
    assert f"takes no parameter, not even self; it is called as {name}(self" in text


def test_the_edges_are_looked_at_too():
    read = op_with(RequestOp, unpack_request_package=lambda self, request, more: {})
    write = type("Own", (ResponseOp,), {"pack_response_package": lambda self: None})(Op("a", read))
    (unpack, pack) = [*faults(read), *faults(write)]
    assert "takes (request, more)" in unpack
    assert "pack_response_package(self, channeldata)" in pack


def test_an_unused_check_jumping_may_have_any_signature():
    odd = op_with(check_jumping=lambda self, a, b: True)
    assert faults(odd) == []
    odd.set_jump_to_ops(Op("target", odd))
    assert "takes (a, b)" in faults(odd)[0]


def generator(self, *args):
    yield {}


async def async_generator(self, *args):
    yield {}


@pytest.mark.parametrize("method", [generator, async_generator])
@pytest.mark.parametrize("name", ["preprocess", "init_op"])
def test_a_generator_that_cannot_stream_is_refused(name, method):
    (text,) = faults(op_with(**{name: method}))
    assert "has a yield" in text
    assert "only process or postprocess may be one" in text


@pytest.mark.parametrize("method", [generator, async_generator])
@pytest.mark.parametrize("name", ["process", "postprocess"])
def test_process_or_postprocess_may_be_a_generator(name, method):
    assert faults(op_with(**{name: method})) == []


def test_both_process_and_postprocess_cannot_be_generators():
    (text,) = faults(op_with(process=generator, postprocess=generator))
    assert "only one of them may be" in text


def test_a_hook_that_is_not_a_method_is_refused():
    (text,) = faults(op_with(process="fast"))
    assert "Own.process is not a method, but str" in text


async def jumps(self, input_data):
    return True


def test_an_async_check_jumping_would_always_be_true():
    op = op_with(check_jumping=jumps)
    op.set_jump_to_ops(Op("target", op))
    (text,) = faults(op)
    assert "is async def, and nobody awaits it" in text


def test_all_faults_of_an_op_are_reported_at_once():
    op = op_with(preprocess=lambda self: {}, init_op=generator)
    assert len(faults(op)) == 2


def test_a_server_with_a_faulty_op_does_not_start():
    class Bad(Op):
        def preprocess(self, a, b, c, d, e):
            return a

    with pytest.raises(InitError, match=r"Op 'bad': .*Bad\.preprocess \(test_hooks\.py:\d+\)"):
        server_for(Bad("bad", RequestOp())).start()


# Names that miss a hook --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("proces", "process"),
        ("porcess", "process"),
        ("Process", "process"),
        ("prosess", "process"),
        ("preproces", "preprocess"),
        ("prepocess", "preprocess"),
        ("pre_process", "preprocess"),
        ("preProcess", "preprocess"),
        ("post_process", "postprocess"),
        ("init_ops", "init_op"),
        ("initop", "init_op"),
        ("check_jumpin", "check_jumping"),
    ],
)
def test_a_name_that_is_one_slip_from_a_hook_is_warned_of(slip, meant):
    (text,) = doubtful_names([op_with(**{slip: lambda self, i: {}})])
    assert f"Own.{slip} is never called: is {meant} meant?" in text


def test_an_edge_with_a_slip_is_warned_of():
    op = op_with(RequestOp, unpack_request_packages=lambda self, request: {})
    (text,) = doubtful_names([op])
    assert "is unpack_request_package meant?" in text


def test_a_method_of_another_kind_of_op_is_warned_of():
    reader = op_with(RequestOp, preprocess=lambda self, i: {})
    op = op_with(unpack_request_package=lambda self, request: {})
    texts = list(doubtful_names([reader, op]))
    assert [text.partition("never called: ")[2] for text in texts] == [
        "RequestOp has no such method.",
        "Op has no such method.",
    ]


def helped(self, input_dicts):
    return self.pre_process(input_dicts)


def helped_by_name(self, input_dicts):
    return getattr(self, "pre_process")(input_dicts)  # noqa: B009  # as scripts do


@pytest.mark.parametrize(
    "methods",
    [
        {"run_all": helped, "pre_process": lambda self, i: {}},
        {"run_all": helped_by_name, "pre_process": lambda self, i: {}},
        {"preprocess": lambda self, i: {}, "reprocess": lambda self, i: {}},
        {"_process": lambda self, i: {}},
        {"processes": lambda self: 3},
        {"processed": lambda self: 3, "process_image": lambda self: 3, "init": lambda self: 3},
        {"proces": 3},
    ],
)
def test_names_that_users_may_have_chosen_cause_no_warning(methods):
    assert list(doubtful_names([op_with(**methods)])) == []
