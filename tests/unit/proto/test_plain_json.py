"""Plain JSON: values survive a round trip, whole or in slices, and errors say what and where."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_values import OBJECTS, same

from pipeline.errors import PackageError, TooLargeError
from pipeline.proto import plain_json
from pipeline.proto.pipeline import json_long
from pipeline.proto.plain_json import (
    MAX_DEPTH,
    check_members,
    read_large_object,
    read_object,
)
from pipeline.proto.slices import MAX_TENSORS, Limits

LIMITS = Limits()


@given(OBJECTS, st.booleans())
def test_each_value_is_parsed_unchanged(fields, spaced):
    body = json.dumps(fields, ensure_ascii=spaced, indent=1 if spaced else None).encode()
    assert same(read_object(body), fields)
    assert same(read_large_object(body, LIMITS), fields)


@given(st.binary(max_size=60) | OBJECTS.map(lambda fields: json.dumps(fields).encode()[:-1]))
def test_invalid_json_is_refused_equally_by_both_parsers(body):
    def outcome(read):
        try:
            return repr(read(body))
        except PackageError as error:
            return error.code, str(error)

    assert outcome(read_object) == outcome(lambda text: read_large_object(text, LIMITS))


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
def test_an_error_has_its_position(body, words):
    for read in (read_object, lambda text: read_large_object(text, LIMITS)):
        with pytest.raises(PackageError) as caught:
            read(body.encode())
        assert words in str(caught.value)


def test_invalid_utf8_is_refused():
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
def test_a_large_object_is_parsed_in_slices(fields):
    body = json.dumps(fields).encode()
    assert len(body) > 2**17
    assert read_large_object(body, LIMITS) == fields


def test_limits_apply_to_large_bodies():
    small = Limits(json_bytes=1000, text_elements=100)
    with pytest.raises(TooLargeError, match="max_json_bytes"):
        read_large_object(b" " * 2000, small)
    with pytest.raises(TooLargeError, match="max_text_elements"):
        read_large_object(json.dumps({"x": ["a"] * 110}).encode(), small)


class _Key(str):
    compared = 0

    def __eq__(self, other: object) -> bool:
        type(self).compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_duplicate_key_is_found_in_linear_time() -> None:
    pairs = [(_Key(number), 1) for number in (*range(1000), 999)]
    with pytest.raises(plain_json._TwiceError, match="'999'"):
        plain_json._once(pairs)
    assert _Key.compared < 10 * len(pairs)


@pytest.mark.parametrize(
    "element", ["{}", '{"a":1}', '{"a":{"b":[]}}', "[1]", '"a"', "1", '"k%d":1', '"k%d":[1]']
)
def test_others_run_while_small_values_are_read_but_not_for_each(monkeypatch, element):
    breaths = []
    monkeypatch.setattr(plain_json, "breathe", lambda: breaths.append(1))
    monkeypatch.setattr(json_long, "breathe", lambda: breaths.append(1))
    inner = ",".join(element % index if "%" in element else element for index in range(100_000))
    text = f'{{"x":{{{inner}}}}}' if "%" in element else f'{{"x":[{inner}]}}'
    breaths.clear()
    assert read_large_object(text.encode(), Limits(json_objects=10**6)) == json.loads(text)
    pieces = len(text) // plain_json._PIECE_BYTES
    assert pieces <= len(breaths) < 20 * (pieces + 1) + plain_json.MAX_DEPTH


@pytest.mark.parametrize("ends", ["", "]", "}]", ",}", "}}", "x", '"'])
@pytest.mark.parametrize("member", ['"k%d":1', '"k%d":"}"', '"k%d":[1]', '"k%d":{}'])
def test_a_large_object_that_is_not_closed_is_refused(member, ends):
    text = "{" + ",".join(member % index for index in range(50_000)) + ends
    with pytest.raises(PackageError, match="not JSON"):
        read_large_object(text.encode(), Limits())
    with pytest.raises(PackageError, match="not JSON"):
        read_large_object(f'{{"x":{text}}}'.encode(), Limits())


@pytest.mark.parametrize("element", ["[]", "{}", '{"a": "[{"}', "[1]"])
def test_more_lists_and_objects_than_allowed_are_refused_before_they_are_made(monkeypatch, element):
    monkeypatch.setattr(plain_json, "_decode", None)
    text = f'{{"x": [{",".join([element] * 20_000)}]}}'
    with pytest.raises(TooLargeError, match=r"has 20002 lists and objects.*max_json_objects"):
        read_large_object(text.encode(), Limits(json_objects=20_001))


def test_more_members_than_allowed_are_refused_before_they_are_made():
    within = ",".join(f'"k{index}":"a:b:c"' for index in range(MAX_TENSORS))
    check_members(b"{%b}" % within.encode())
    with pytest.raises(TooLargeError, match=f"more than {MAX_TENSORS} members"):
        check_members(b'{"x":{%b}}' % within.encode())


def test_distant_duplicate_keys_are_found():
    members = ",".join(f'"k{index}":1' for index in range(50_000))
    with pytest.raises(PackageError, match="twice"):
        read_large_object(f'{{{members},"k0":1}}'.encode(), Limits())
