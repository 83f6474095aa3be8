from __future__ import annotations

import functools
import inspect

import numpy as np
import pytest

from pipeline import Op
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.dropin.names import ProductErrCode
from pipeline.engine.run.bound_op import BoundOp, unpack_result
from pipeline.errors import PayloadTypeError, PipelineError, ProductError
from pipeline.op import configure_op

IN = {"read": {"x": 1}}


def bound(op_class, **given):
    op = op_class(name="op", **given)
    configure_op(op, resolve_op(op.name, op.pipeline_given, load_config(yml_dict={"rpc_port": 0})))
    return BoundOp(op, 0)


PREPROCESS = {
    "one": lambda self, input_dicts: {"seen": (input_dicts,)},
    "data_id": lambda self, input_dicts, data_id: {"seen": (input_dicts, data_id)},
    "log_id": lambda self, input_dicts, log_id: {"seen": (input_dicts, log_id)},
    "three": lambda self, input_dicts, data_id, log_id: {"seen": (input_dicts, data_id, log_id)},
    "defaults": lambda self, i, data_id=9, log_id=9: {"seen": (i, data_id, log_id)},
    "star": lambda self, *args: {"seen": args},
}
EXPECTED = {
    "one": (IN,),
    "data_id": (IN, 7),
    "log_id": (IN, 8),
    "three": (IN, 7, 8),
    "defaults": (IN, 7, 8),
    "star": (IN, 7, 8),
}


@pytest.mark.parametrize("form", PREPROCESS)
def test_preprocess_is_called_with_the_arguments_of_its_signature(form):
    op = bound(type("X", (Op,), {"preprocess": PREPROCESS[form]}))
    data, skip = op.preprocess(IN, 7, 8)
    assert data["seen"] == EXPECTED[form]
    assert not skip


@pytest.mark.parametrize(
    ("returned", "data", "skip"),
    [
        ({"a": 1}, {"a": 1}, False),
        ([{"a": 1}], [{"a": 1}], False),
        (({"a": 1}, True, None, ""), {"a": 1}, True),
        (({"a": 1}, False, None, ""), {"a": 1}, False),
        (({"a": 1}, None, ""), {"a": 1}, False),
        (({"a": 1}, True, None), {"a": 1}, True),
        (({"a": 1}, True), {"a": 1}, True),
    ],
)
def test_preprocess_may_return_every_shape(returned, data, skip):
    op = bound(type("X", (Op,), {"preprocess": lambda self, i: returned}))
    assert op.preprocess(IN, 0, 0) == (data, skip)


@pytest.mark.parametrize(
    "returned", [({}, False, 51, "no"), ({}, 51, "no"), (None, True, 51, "no")]
)
def test_a_product_code_of_preprocess_is_an_error(returned):
    op = bound(type("X", (Op,), {"preprocess": lambda self, i: returned}))
    with pytest.raises(ProductError, match="no") as caught:
        op.preprocess(IN, 0, 0)
    assert caught.value.code == 51


def test_a_product_code_of_zero_counts_too():
    op = bound(type("X", (Op,), {"preprocess": lambda self, i: ({}, False, 0, "zero")}))
    with pytest.raises(ProductError) as caught:
        op.preprocess(IN, 0, 0)
    assert caught.value.code == 0


def test_preprocess_that_returns_none_is_an_error():
    op = bound(type("X", (Op,), {"preprocess": lambda self, i: None}))
    with pytest.raises(PayloadTypeError, match="preprocess returned None"):
        op.preprocess(IN, 0, 0)


POSTPROCESS = {
    "two": lambda self, input_dicts, fetch: {"seen": (input_dicts, fetch)},
    "log_id": lambda self, input_dicts, fetch, log_id: {"seen": (input_dicts, fetch, log_id)},
    "data_id": lambda self, input_dicts, fetch, data_id: {"seen": (input_dicts, fetch, data_id)},
    "four": lambda self, i, fetch, data_id, log_id: {"seen": (i, fetch, data_id, log_id)},
    "star": lambda self, *args: {"seen": args},
}
POST_EXPECTED = {
    "two": (IN, "f"),
    "log_id": (IN, "f", 8),
    "data_id": (IN, "f", 7),
    "four": (IN, "f", 7, 8),
    "star": (IN, "f", 7, 8),
}


@pytest.mark.parametrize("form", POSTPROCESS)
def test_postprocess_is_called_with_the_arguments_of_its_signature(form):
    op = bound(type("X", (Op,), {"postprocess": POSTPROCESS[form]}))
    assert op.postprocess(IN, "f", 7, 8)["seen"] == POST_EXPECTED[form]


def test_postprocess_may_return_a_dict_or_a_triple():
    def returning(value):
        return bound(type("X", (Op,), {"postprocess": lambda self, i, f: value}))

    assert returning({"a": 1}).postprocess(IN, {}, 0, 0) == {"a": 1}
    assert returning(({"a": 1}, None, "")).postprocess(IN, {}, 0, 0) == {"a": 1}
    op = returning(({}, 52, "bad"))
    with pytest.raises(ProductError, match="bad"):
        op.postprocess(IN, {}, 0, 0)


def test_postprocess_should_return_a_dict():
    op = bound(type("X", (Op,), {"postprocess": lambda self, i, f: [1]}))
    with pytest.raises(PayloadTypeError, match="postprocess should return dict"):
        op.postprocess(IN, {}, 0, 0)


@pytest.mark.parametrize(
    ("returned", "found"),
    [
        (({}, {"b": 2}), "a tuple with dict as its second value"),
        (({}, False, "no", ""), "str as error code"),
        (({}, np.zeros(2), ""), "ndarray as error code"),
        (({}, 1, 2, 3, 4), "a tuple of 5 values"),
    ],
)
def test_an_invalid_tuple_of_preprocess_is_described(returned, found):
    op = bound(type("X", (Op,), {"preprocess": lambda self, i: returned}))
    with pytest.raises(PayloadTypeError, match=f"Op 'op': preprocess returned {found}"):
        op.preprocess(IN, 0, 0)


def test_numbers_of_numpy_and_members_of_enums_are_codes_too():
    class Code(ProductErrCode):
        BAD = 61

    op = bound(
        type(
            "X",
            (Op,),
            {
                "preprocess": lambda self, i: ({}, np.True_, None),
                "process": lambda self, f, log_id: ({"y": 1}, np.int64(0), ""),
                "postprocess": lambda self, i, f: ({}, Code.BAD, "bad"),
            },
        )
    )
    assert op.preprocess(IN, 0, 0) == ({}, True)
    assert op.process({}, 0) == {"y": 1}
    with pytest.raises(ProductError) as caught:
        op.postprocess(IN, {}, 0, 0)
    assert caught.value.code == 61


async def later():
    return {}


@pytest.mark.parametrize(
    ("make", "found"),
    [(later, "coroutine"), (lambda: (x for x in "abc"), "generator")],
)
def test_a_coroutine_or_generator_is_not_a_result(make, found):
    """Nobody awaits what a plain method returns, and nothing streams."""
    op = bound(
        type(
            "X",
            (Op,),
            {
                "preprocess": lambda self, i: make(),
                "process": lambda self, f, log_id: make(),
                "postprocess": lambda self, i, f: make(),
            },
        )
    )
    with pytest.raises(PayloadTypeError, match=f"Op 'op': preprocess returned {found}"):
        op.preprocess(IN, 0, 0)
    with pytest.raises(PayloadTypeError, match=f"Op 'op': process returned {found}"):
        op.process({}, 0)
    with pytest.raises(PayloadTypeError, match=f"Op 'op' returned <class '{found}'>"):
        op.postprocess(IN, {}, 0, 0)


def test_a_decorated_preprocess_is_called_with_the_arguments_of_its_wrapper():
    def with_size(function):
        @functools.wraps(function)
        def wrapper(self, input_dicts):
            return function(self, input_dicts, 0, 0, 3)

        return wrapper

    def preprocess(self, input_dicts, data_id, log_id, size):
        return {"size": size}

    op = bound(type("X", (Op,), {"preprocess": with_size(preprocess)}))
    assert op.preprocess(IN, 7, 8) == ({"size": 3}, False)


PROCESS = {
    "list and log id": lambda self, feed_batch, typical_logid: (feed_batch, typical_logid),
    "list": lambda self, feed_batch: (feed_batch, None),
    "v0.3's dict": lambda self, feed_dict: (feed_dict, None),
}


@pytest.mark.parametrize("form", PROCESS)
def test_process_is_called_with_the_arguments_of_its_signature(form):
    feed = {"x": 1}
    seen = []

    def process(self, *args):
        seen.append(PROCESS[form](self, *args))
        return {"y": 2}

    process.__signature__ = inspect.signature(PROCESS[form])
    op = bound(type("X", (Op,), {"process": process}))
    assert op.process(feed, 8) == {"y": 2}
    expected = {
        "list and log id": ([feed], 8),
        "list": ([feed], None),
        "v0.3's dict": (feed, None),
    }
    assert seen == [expected[form]]


def test_process_may_return_a_result_or_a_triple():
    for returned in ({"y": 2}, ({"y": 2}, 0, ""), ({"y": 2}, None, None)):
        op = bound(type("X", (Op,), {"process": lambda self, f, log_id, r=returned: r}))
        assert op.process({}, 0) == {"y": 2}
    op = bound(type("X", (Op,), {"process": lambda self, f, log_id: ({}, 9000, "gone")}))
    with pytest.raises(PipelineError, match="gone") as caught:
        op.process({}, 0)
    assert caught.value.code == 9000


@pytest.mark.parametrize("returned", [None, (None, 0, "")])
def test_process_that_returns_none_is_an_error_and_does_not_exit(returned):
    op = bound(type("X", (Op,), {"process": lambda self, f, log_id: returned}))
    with pytest.raises(PayloadTypeError, match="process returned None"):
        op.process({}, 0)


def test_every_worker_has_its_own_copy_with_the_attributes_set_after_construction():
    op = Op(name="op")
    configure_op(op, resolve_op("op", op.pipeline_given, load_config(yml_dict={"rpc_port": 0})))
    op.extra = [1]
    one, two = BoundOp(op, 0), BoundOp(op, 1)
    one.op.mine = "one"
    assert not hasattr(two.op, "mine")
    assert two.op.extra is op.extra, "the copy is shallow: loaded resources are shared"


def test_an_override_set_on_the_instance_works_on_the_workers_copy():
    class Stateful(Op):
        def other(self, input_dicts):
            self.seen = True
            return {"a": 1}

    op = Stateful(name="op")
    configure_op(op, resolve_op("op", op.pipeline_given, load_config(yml_dict={"rpc_port": 0})))
    op.preprocess = op.other
    copy = BoundOp(op, 0)
    copy.preprocess(IN, 0, 0)
    assert not hasattr(op, "seen")
    assert copy.op.seen


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ({"a": 1}, ({"a": 1}, None)),
        (({"a": 1}, 5, None, ""), ({"a": 1}, 5)),
        (({"a": 1}, 5), ({"a": 1}, 5)),
    ],
)
def test_unpack_may_return_every_shape(returned, expected):
    assert unpack_result(returned) == expected


def test_a_product_code_of_unpack_is_an_error():
    with pytest.raises(ProductError, match="bad"):
        unpack_result(({}, 0, 51, "bad"))


@pytest.mark.parametrize(
    ("returned", "found"),
    [
        (None, "NoneType: return a dict"),
        ([{"a": 1}], "list: return a dict"),
        ((None, 0, None, ""), "NoneType: return a dict"),
        (({}, "abc", None, ""), "str abc as log id"),
        (({}, 2**63, None, ""), "int 9223372036854775808 as log id"),
        (({}, 0, "bad", ""), "str as error code"),
    ],
)
def test_an_invalid_result_of_unpack_is_described(returned, found):
    with pytest.raises(PayloadTypeError, match=f"unpack_request_package returned {found}"):
        unpack_result(returned)


def test_only_ops_that_need_it_run_process():
    class Own(Op):
        def process(self, feed_batch, typical_logid):
            return feed_batch[0]

    class Forced(Op):
        with_serving = True

    assert not bound(Op).runs_process
    assert bound(Own).runs_process
    assert bound(Forced).runs_process


def test_the_default_preprocess_refuses_several_inputs_without_ending_the_process():
    op = bound(Op)
    with pytest.raises(PipelineError, match="override preprocess"):
        op.preprocess({"a": {}, "b": {}}, 0, 0)
    assert op.preprocess({"a": {"x": np.zeros(1)}}, 0, 0)[0].keys() == {"x"}


def test_an_op_may_have_attributes_and_methods_of_any_name():
    class Own(Op):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.config = {"threshold": 0.5}
            self.given = self.consumers = 3

        def connect(self, host):
            return f"connected to {host}"

        def configure(self):
            raise AssertionError("nobody asked for this")

        overrides = runs_process = configure

        def process(self, feed_batch, typical_logid):
            return {"y": [self.config["threshold"], self.connect("db")]}, 0, ""

    op = bound(Own)
    assert op.runs_process
    assert op.process({"x": 1}, 0) == {"y": [0.5, "connected to db"]}
