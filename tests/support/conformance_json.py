"""Cases of the conformance table: what a body is read as: fields, text, documents."""

from __future__ import annotations

import json
from typing import Any

from conformance_dialogue import EMPTY_TENSOR, Case, Expected, answers, ask, refused, simple
from conformance_numbers import LENIENT, MISFIT, NOT_JSON, one_tensor


def body(name: str, sent: str | bytes, expected: Expected, **more: Any) -> Case:
    return simple(name, ask(sent), expected, **more)


def no_json(name: str, sent: str | bytes) -> Case:
    return body(name, sent, refused(NOT_JSON))


def _no_data(found: str) -> str:
    return (
        f"the request has {found} and none of key, value and tensors; expected pairs, like "
        '{"key": ["x"], "value": ["0.1"]}, or tensors; POST /api/<name> takes plain JSON, '
        'like {"x": 0.1}'
    )


# Fields -------------------------------------------------------------------------------------

_NULLS = dict.fromkeys(EMPTY_TENSOR)
_FULL = {
    "name": "n", "elem_type": 1, "float_data": [0.5], "int64_data": ["1"], "int_data": [2],
    "float64_data": [0.25], "uint32_data": [3], "bool_data": [True], "complex64_data": [1.0, 2.0],
    "complex128_data": [3.0, 4.0], "str_data": ["é"], "byte_data": "QQ==", "shape": [1], "lod": [0],
}  # fmt: skip
_CAMEL = {
    "".join([first, *map(str.title, rest)]): value
    for (first, *rest), value in ((name.split("_"), value) for name, value in _FULL.items())
}

_FIELDS = (
    body("a request and its answer", '{"key": ["a"], "value": ["1"]}',
         answers(key=["a"], value=["1"])),
    body("pairs that do not match", '{"key": ["a", "b"]}', answers(key=["a", "b"])),
    body("every field of a tensor", json.dumps({"tensors": [_FULL]}), answers(tensors=[_FULL])),
    body("lowerCamelCase", json.dumps({"tensors": [_CAMEL]}), answers(tensors=[_FULL])),
    body("an empty tensor", '{"tensors": [{}]}', one_tensor()),
    body("two tensors", '{"tensors": [{}, {}]}', answers(tensors=[EMPTY_TENSOR] * 2)),
    body("no tensors", '{"tensors": []}', answers()),
    body("unknown fields", '{"appid": "x", "key": [], "Key": [1], "err_no": 5, "": {}}', answers()),
    body("unknown fields that are deep", '{"u": {"a": [{"b": null}, [[{}]]]}, "value": null}',
         answers()),
    *(
        body(f"no data in {sent[:40]}", sent, refused(_no_data(found)))
        for sent, found in (
            ('{"label": "zh", "prob": 0.86}', 'the field "label"'),
            ('{"logid": 1, "": {}, "clientip": "x", "u": [1]}', 'the field ""'),
            ('{"Key": ["x"], "Value": ["1"]}', 'the field "Key"'),
            ('{"\\u8bcd": 1}', 'the field "词"'), ('{"a\\"b": 1}', "other fields"),
            (json.dumps({"u" * 40: 1}), f'the field "{"u" * 40}"'),
            (json.dumps({"u" * 41: 1}), "other fields"),
            (json.dumps({"u": "x" * 70_000}), 'the field "u"'),
        )
    ),
    *(
        body(f"empty: {sent}", sent, answers())
        for sent in ('{"logid": 1}', '{"name": "x", "clientip": null}')
    ),
    body("an unknown field of a tensor", '{"tensors": [{"u": [{}]}]}', one_tensor()),
    body("an unknown field in brackets", '{"[a.b]": 1, "tensors": [{"[a.b]": []}]}', one_tensor()),
    body("an unknown field twice", '{"u": 1, "tensors": [], "u": {"u": 1, "u": 2}}', answers()),
    body("a name with an escape", '{"\\u006bey": ["a"]}', answers(key=["a"])),
    body("null for every field of a tensor", json.dumps({"tensors": [_NULLS]}), one_tensor()),
    *(
        body(f"{sent} has null texts", sent, taken, grpc_only=(ask(sent), refused("")), why=LENIENT)
        for sent, taken in (
            ('{"key": ["a", null], "value": [null]}', answers(key=["a", ""], value=[""])),
            ('{"tensors": [{"str_data": [null, "a"]}]}', one_tensor(str_data=["", "a"])),
        )
    ),
    body("null for every field", json.dumps(dict.fromkeys(
        ["key", "value", "tensors", "name", "method", "logid", "clientip"])), answers()),
    *(
        body(f"{sent} does not fit", sent, refused(MISFIT))
        for sent in (
            '{"tensors": [null]}', '{"tensors": [{"shape": [null]}]}',
            '{"key": "a"}', '{"key": {}}', '{"key": [1]}', '{"key": [true]}', '{"key": [["a"]]}',
            '{"tensors": {}}', '{"tensors": "x"}', '{"tensors": [[]]}', '{"tensors": [1]}',
            '{"name": 5}', '{"method": []}', '{"clientip": 5}', '{"tensors": [{"name": 1}]}',
            '{"logid": "x"}', '{"logid": 1.5}', '{"logid": true}', '{"logid": [1]}',
            '{"logid": 9223372036854775808}', '{"tensors": [{"str_data": [1]}]}',
        )
    ),
    *(
        body(f"{sent}, twice", sent, expected, grpc_only=(ask(sent), refused("")), why=LENIENT)
        for sent, expected in (
            ('{"key": ["a"], "key": ["b"]}', answers(key=["b"])),
            ('{"key": ["a"], "k\\u0065y": ["b"]}', answers(key=["b"])),
            ('{"logid": 1, "logid": 2}', answers()),
            ('{"tensors": [{"name": "a", "name": "b"}]}', one_tensor(name="b")),
            ('{"tensors": [{"elem_type": 1, "elemType": 2}]}', one_tensor(elem_type=2)),
        )
    ),
)  # fmt: skip


# Text ---------------------------------------------------------------------------------------


def _says(name: str, text: str, sent: str | None = None) -> Case:
    """A text that comes back; `sent` is how it is written in JSON if not as Python does."""
    written = json.dumps(text) if sent is None else f'"{sent}"'
    return body(name, f'{{"value": [{written}]}}', answers(value=[text]))


def _value(inside: bytes) -> bytes:
    return b'{"value": ["%s"]}' % inside


_ODD_POINTS = "\u2028\u2029\uffff\ufffe"

_TEXTS = (
    _says("text with every escape", '"\\/\b\f\n\r\t', '\\"\\\\\\/\\b\\f\\n\\r\\t'),
    _says("text of any language", "词 漢字 é שלום", "词 漢字 é שלום"),
    _says("text of any language, escaped", "词 漢字 é"),
    _says("a pair of surrogates", "\U0001f600 \U0010ffff"),
    _says("code points without a character", _ODD_POINTS, _ODD_POINTS),
    _says("NUL, escaped", "a\x00b"),
    _says("control characters, escaped", "\x01\x1f\x7f"),
    _says("DEL", "\x7f", "\x7f"),
    _says("what HTML would escape", "<a href='x'>&</a>", "<a href='x'>&</a>"),
    *(
        no_json(f"{inside!r} in text", _value(inside))
        for inside in (
            b"\x00", b"\x01", b"\x1f", b"\n", b"\t", b"\\a", b"\\u12", b"\\U0001f600", b"\\'",
            b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc3", b"\\ud800",
            b"\\udc00", b"\\ud800\\u0041", b"\\ud800\\ud800", b"\\ud83d",
        )
    ),
    no_json("an unknown field that is no UTF-8", b'{"u": "\xff"}'),
    no_json("a name that is no UTF-8", b'{"\xff": 1}'),
    no_json("an unknown field with half a pair", '{"u": "\\ud800"}'),
    no_json("an unknown field with a control character", '{"u": "\x00"}'),
)  # fmt: skip


# Documents ----------------------------------------------------------------------------------

_DEPTHS = (100, 500)
_DEEP = (1000, 1023)
_TOO_DEEP = (1024, 1025, 9000, 100_000)


def _deep(opening: str, closing: str, depth: int) -> str:
    return '{"key": [], "u": ' + opening * depth + "1" + closing * depth + "}"


def _as_deep_as_it_goes(kind: str, sent: str, depth: int) -> Case:
    raw = ask(sent)
    why = "the gateway leaves it to the door to say what is too deep"
    return simple(f"{kind}, {depth} deep", raw, answers(), grpc_only=(raw, refused("")), why=why)


_DOCUMENTS = (
    body("no body", "", answers()),
    body("an empty object", "{}", answers()),
    body("white space around", " \r\n\t{ } \n\t\r", answers()),
    *(
        body(f"{sent} for a request", sent, refused("the request must be a JSON object"))
        for sent in ("[]", '"x"', "null", "5", "true", "[{}]")
    ),
    *(
        no_json(f"the body {sent!r}", sent)
        for sent in (
            " ", "\n", "\ufeff{}", "{}{}", "{} x", "{}\x00", "{},", "{", "}", "{]", '{"a"}',
            '{"a":}', '{"a": 1,}', "{,}", '{"a": 1 "b": 2}', "{'a': 1}", "{a: 1}", '{"a": 01}',
            '{"a": -}',
            '{"a": 1e}', '{"a": 0x1}', '{"a": +1}', '{"a": .5}', '{"a": tru}', '{"a": nul}',
            '{"a": NaN}', "// c\n{}", '{"a": 1/*c*/}', "{\x00}", "\x0b{}", "\x0c{}", "\xa0{}",
            '{"key": ["a"]', '{"key": ["a"', '{"key": [', '{"key', "key=a&value=1", "<a/>",
            '{"key": ["a",]}', '{"key": [,"a"]}', '{"key" ["a"]}', '{"key": ["a"}',
        )
    ),
    no_json("UTF-16", "{}".encode("utf-16")),
    body("a number without end", '{"key": [], "u": 0.' + "9" * 5000 + "}", answers()),
    no_json("an unknown number without bounds", '{"u": 1e999}'),
    no_json("an unknown number of many digits", '{"u": ' + "9" * 5000 + "}"),
    body("an unknown number that is nearly 0", '{"key": [], "u": 1e-999}', answers()),
    body("a number of many digits in text", '{"logid": "' + "9" * 5000 + '"}', refused(MISFIT)),
    no_json("a number of many digits", '{"logid": ' + "9" * 5000 + "}"),
    *(body(f"arrays, {depth} deep", _deep("[", "]", depth), answers()) for depth in _DEPTHS),
    *(body(f"objects, {depth} deep", _deep('{"a":', "}", depth), answers()) for depth in _DEPTHS),
    *(_as_deep_as_it_goes("arrays", _deep("[", "]", depth), depth) for depth in _DEEP),
    *(_as_deep_as_it_goes("objects", _deep('{"a":', "}", depth), depth) for depth in _DEEP),
    *(no_json(f"arrays, {depth} deep", _deep("[", "]", depth)) for depth in _TOO_DEEP),
    *(no_json(f"objects, {depth} deep", _deep('{"a":', "}", depth)) for depth in _TOO_DEEP),
    no_json("arrays that are never closed", "[" * 100_000),
    no_json("objects that are never closed", '{"a":' * 100_000),
    body("a field that is deep", '{"key": ' + "[" * 1000 + "]" * 1000 + "}", refused(MISFIT)),
)  # fmt: skip

JSON_CASES = (*_FIELDS, *_TEXTS, *_DOCUMENTS)
