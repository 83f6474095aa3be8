"""Names on a user's class and instance: the predecessor's, documented ones, and `pipeline_...`.

Scripts choose attribute names as they like: whatever else is there, a script has it one day, and
means something else by it.
"""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from doubles import http, post, server_for

from pipeline import Op, RequestOp, ResponseOp, Tensor
from pipeline.data import declared, max_batch_size_of
from pipeline.errors import ConfigError

DOCUMENTED = {"input_tensors", "output_tensors"}
PADDLES = {
    *("init_op", "preprocess", "process", "postprocess", "check_jumping"),
    *("set_dynamic_shape_info", "unpack_request_package", "pack_response_package"),
    *("get_input_ops", "set_input_ops", "get_jump_to_ops", "set_jump_to_ops", "is_jump_op"),
    *("set_pack_tensor_format", "set_pack_format", "proto_tensor_2_numpy"),
    *("get_feed_fetch_list", "use_default_auto_batching_config", "_log"),
    *("name", "client", "concurrency_idx", "with_serving", "concurrency", "client_type"),
    *("model_config", "devices", "thread_num", "dynamic_shape_info"),
    *("right_feed_names", "right_fetch_names", "_fetch_names", "_server_endpoints"),
    *("_batch_size", "_retry", "_timeout", "_auto_batching_timeout"),
    *("_input_ops", "_jump_to_ops"),
}


def names_of(op):
    for cls in type(op).__mro__:
        yield from vars(cls)
        yield from vars(cls).get("__annotations__", {})
    yield from vars(op)


def test_the_library_uses_names_that_users_do_not_choose():
    read = RequestOp()
    last = Op("last", read)
    write = ResponseOp(last)
    with server_for(last, response_op=write):
        names = {name for op in (read, last, write) for name in names_of(op)}
    strangers = {
        name
        for name in names - PADDLES - DOCUMENTED
        if not name.startswith("pipeline_") and not (name.startswith("__") and name.endswith("__"))
    }
    assert strangers == set()


class Flags:
    """What the library's own flags were called, and values that turned something over."""

    is_quick = True
    packs_tensors = True
    is_pack_tensor = True
    in_a_graph = False
    max_batch_size = "8"
    input_tensors = ("x",)
    output_tensors = None
    has_tensors = wants_profile = is_cheap_to_pack = _formats = _as_ops = None
    has_model = runs_process = predictor_of = "mine"


def is_on_the_loop():
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class FlaggedRequestOp(Flags, RequestOp):
    def unpack_request_package(self, request):
        data, log_id, _, _ = super().unpack_request_package(request)
        return {**data, "unpacked": str(is_on_the_loop())}, log_id, None, ""


class FlaggedOp(Flags, Op):
    def init_op(self):
        self.packs_tensors = self.is_quick = True
        self.client = Database()

    def preprocess(self, input_dicts):
        ((_, answer),) = input_dicts.items()
        return {**answer, "found": self.client.anything}


class FlaggedResponseOp(Flags, ResponseOp):
    def pack_response_package(self, channeldata):
        response = super().pack_response_package(channeldata)
        response.key.append("packed")
        response.value.append(str(is_on_the_loop()))
        return response


class Database:
    """Has every attribute, as some clients do; but cannot predict."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return "a table"


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_a_script_may_have_flags_of_any_name(workers):
    last = FlaggedOp("a", FlaggedRequestOp())
    answer = {"x": "1", "unpacked": "False", "found": "a table", "packed": "False"}
    with server_for(last, response_op=FlaggedResponseOp(last), op={"a": {"workers": workers}}) as s:
        status, said = post(s, {"key": ["x"], "value": ["1"]})
        assert (status, dict(zip(said["key"], said["value"], strict=True))) == (200, answer)
        assert said["tensors"] == []
        status, _, config = http(s, "GET", "/v2/models/a/config")
        assert (status, config["max_batch_size"]) == (200, 0)


# Declarations -------------------------------------------------------------------------------

X = Tensor("x", "FP32")


def with_attributes(**attributes):
    return type("Own", (Op,), attributes)("own", RequestOp())


@pytest.mark.parametrize(
    "value", ["x", ["x"], [], None, 3, {"x": [1, 2]}, np.zeros(3), np.float32(1), lambda: None]
)
def test_a_value_without_tensors_is_not_a_declaration(value):
    assert declared(with_attributes(input_tensors=value), "input_tensors") == ()


@pytest.mark.parametrize("value", [X, {X}, {"x": X}, [X, "y"], (X, ("y", "FP32"))])
def test_tensors_in_another_form_than_a_list_are_a_mistake(value):
    with pytest.raises(ConfigError, match="Op 'own': output_tensors has to be a list of Tensors"):
        declared(with_attributes(output_tensors=value), "output_tensors")


@pytest.mark.parametrize(("most", "number"), [(8, 8), (np.int64(8), 8), (0, 0), ("8", 0), (-1, 0)])
def test_max_batch_size_is_a_whole_number_or_ignored(most, number):
    assert max_batch_size_of(with_attributes(max_batch_size=most)) == number


@pytest.mark.parametrize("most", ["8", 8.0, True, -1, None, [8]])
def test_max_batch_size_next_to_declared_tensors_must_be_an_integer(most):
    op = with_attributes(max_batch_size=most, input_tensors=[X])
    with pytest.raises(ConfigError, match="Op 'own': max_batch_size has to be a whole number"):
        max_batch_size_of(op)


def test_a_server_with_an_invalid_declaration_does_not_start():
    with pytest.raises(ConfigError, match="input_tensors has to be a list of Tensors"):
        server_for(with_attributes(input_tensors=X)).start()
