"""Plain JSON: what goes in comes out, in one go or in slices, and errors say where and what."""

from __future__ import annotations

import base64
import json
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import PackageError, PayloadTypeError, TooLargeError
from pipeline.proto import plain_json
from pipeline.proto.plain_json import (
    MAX_DEPTH,
    read_large_object,
    read_object,
    write_large_object,
    write_object,
)
from pipeline.proto.slices import Limits

LIMITS = Limits()
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=5)
NUMBERS = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", ">i4", ">f8")


def same(one, other):
    """Whether two values are the same, types and signs included."""
    return repr(one) == repr(other)


@given(OBJECTS, st.booleans())
def test_every_value_comes_in_as_it_is(fields, spaced):
    body = json.dumps(fields, ensure_ascii=spaced, indent=1 if spaced else None).encode()
    assert same(read_object(body), fields)
    assert same(read_large_object(body, LIMITS), fields)


@given(OBJECTS)
def test_every_value_goes_out_as_it_is(fields):
    assert same(json.loads(write_object(fields)), fields)
    assert same(json.loads(write_large_object(fields, LIMITS)), fields)


@given(st.binary(max_size=60) | OBJECTS.map(lambda fields: json.dumps(fields).encode()[:-1]))
def test_what_is_no_json_object_is_refused_alike(body):
    def outcome(read):
        try:
            return repr(read(body))
        except PackageError as error:
            return error.code, str(error)

    assert outcome(read_object) == outcome(lambda text: read_large_object(text, LIMITS))


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 3)])
def test_an_array_is_a_nested_list(dtype, shape):
    array = np.arange(math.prod(shape)).astype(dtype).reshape(shape)
    for one in (array, array.T, np.asfortranarray(array)):
        wanted = {"x": one.tolist()}
        assert same(json.loads(write_object({"x": one})), wanted)
        assert same(json.loads(write_large_object({"x": one}, LIMITS)), wanted)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (math.nan, None),
        (-math.inf, None),
        (np.array([1.5, math.nan], np.float32), [1.5, None]),
        (np.float32(0.1), 0.1),
        (np.float16(1.5), 1.5),
        (np.bool_(True), True),
        (np.array([1.5, 2], ml_dtypes.bfloat16), [1.5, 2.0]),
        (np.array(["a", b"b", None], dtype=object), ["a", "Yg==", None]),
        (np.array(["a", "bc"]), ["a", "bc"]),
        (b"\x00\xff", base64.b64encode(b"\x00\xff").decode()),
        (bytearray(b"a"), "YQ=="),
        ((1, (2,)), [1, [2]]),
        ({1: {None: 2}}, {"1": {"None": 2}}),
        (2**70, 2**70),
        ([{"x": 2**70, "y": math.nan}], [{"x": 2**70, "y": None}]),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_json_lacks_becomes_the_nearest(value, shown):
    assert same(json.loads(write_object({"x": value})), {"x": shown})
    assert same(json.loads(write_large_object({"x": value}, LIMITS)), {"x": shown})


def nested(depth, text="[]"):
    return text[0] * depth + text[1] * depth


def endless(value):
    return f'{{"a": {value}}}'


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", "the request is empty: send a JSON object"),
        ("  \n", "the request is empty"),
        ("[1]", 'must be a JSON object like {"x": [0.1, 0.2]}, not a list'),
        ("1", "not a number"),
        ('"a"', "not text"),
        ("null", "not null"),
        ("true", "not true or false"),
        ('{"a": }', "not JSON: Expecting value: line 1 column 7"),
        ('{"a": 1', "not JSON"),
        ('{"a": 1} x', "not JSON: Extra data"),
        ('{"a": "\\ud800"}', "not JSON: no low surrogate"),
        (endless("NaN"), "the request's a is NaN, which JSON cannot hold: send null"),
        ('{"a": [{"b": [0, -Infinity]}]}', "the request's a[0].b[1] is -Infinity"),
        ('{"a": [0, 1e999]}', "the request's a[1] is a number beyond the range of a double"),
        (endless("1" * 5000), "the request's a is a number of 5000 digits"),
        ('{"a": 1, "b": 2, "a": 3}', "has the key 'a' twice in one object: send it once"),
        ('{"x": [{"a": ":", "a": 3}]}', "has the key 'a' twice"),
        (endless(nested(MAX_DEPTH)), "nested too deeply: 100 lists and objects"),
        ('{"a":' * 20_000, "nested too deeply"),
        ("[" * 60_000, "nested too deeply"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(body, words):
    for read in (read_object, lambda text: read_large_object(text, LIMITS)):
        with pytest.raises(PackageError) as caught:
            read(body.encode())
        assert words in str(caught.value)


def test_what_is_no_utf8_is_refused():
    with pytest.raises(PackageError, match="not UTF-8: invalid start byte at byte 7"):
        read_object(b'{"a": "\xff"}')


def test_as_deep_as_allowed_and_many_side_by_side():
    for body in (endless(nested(MAX_DEPTH - 1)), endless("[" + "[{}]," * 500 + "0]")):
        assert read_object(body.encode()) == json.loads(body)
        assert read_large_object(body.encode(), LIMITS) == json.loads(body)


@pytest.mark.parametrize(
    "fields",
    [
        {"x": [n / 7 for n in range(40_000)], "y": "a,b"},
        {"x": [[n, [n, "],["]] for n in range(20_000)]},
        {"x": [*range(40_000), [1, {"a": 2}]]},
        {"x": {str(n): [n] * 9 for n in range(9_000)}},
        {"x": 'a:"\\' * 70_000, "y": [2**70] * 30_000},
    ],
)
def test_what_is_large_is_read_and_written_in_slices(fields):
    body = json.dumps(fields).encode()
    assert len(body) > 2**17
    assert read_large_object(body, LIMITS) == fields
    assert json.loads(write_large_object(fields, LIMITS)) == fields


def test_a_large_array_is_written_in_slices():
    array = np.arange(60_000, dtype=np.float32).reshape(3, 200, 100) / 7
    assert write_large_object({"x": array}, LIMITS) == write_object({"x": array})


@pytest.mark.parametrize("write", [write_object, lambda fields: write_large_object(fields, LIMITS)])
@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"x": object()}, "x is of type object"),
        ({"x": [{"a": [1, 1j]}]}, "x[0].a[1] is of type complex"),
        ({"x": np.array([1j])}, "x[0] is of type complex"),
        ({"x": [0] * 20_000 + [object()]}, "x[20000] is of type object"),
    ],
)
def test_a_value_without_a_form_is_named_by_its_path(write, fields, path):
    with pytest.raises(PayloadTypeError) as caught:
        write(fields)
    assert f"the answer's {path}, which has no form in JSON: answer with" in str(caught.value)


def test_a_value_that_holds_itself_is_refused():
    endless_list: list = []
    endless_list.append(endless_list)
    with pytest.raises(PayloadTypeError, match="nested too deeply"):
        write_object({"x": endless_list})


def test_limits_hold_for_what_is_large():
    small = Limits(json_bytes=1000, text_elements=100)
    with pytest.raises(TooLargeError, match="max_json_bytes"):
        read_large_object(b" " * 2000, small)
    with pytest.raises(TooLargeError, match="max_text_elements"):
        read_large_object(json.dumps({"x": ["a"] * 110}).encode(), small)
    with pytest.raises(TooLargeError, match="max_json_bytes"):
        write_large_object({"x": "a" * 2000}, small)


class _Key(str):
    compared = 0

    def __eq__(self, other: object) -> bool:
        type(self).compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_key_that_is_there_twice_is_found_without_comparing_all_with_all() -> None:
    pairs = [(_Key(number), 1) for number in (*range(1000), 999)]
    with pytest.raises(plain_json._TwiceError, match="'999'"):
        plain_json._once(pairs)
    assert _Key.compared < 10 * len(pairs)
