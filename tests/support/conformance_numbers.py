"""Cases of the conformance table: how numbers and bytes are read, and written again."""

from __future__ import annotations

from typing import Any

from conformance_dialogue import (
    EMPTY_TENSOR,
    Case,
    Expected,
    answers,
    ask,
    different,
    refused,
    simple,
)

NOT_JSON = "the request is not JSON"
MISFIT = "the request does not fit its message"
LENIENT = "the door's parser takes it; protojson does not, and asks the door if it can"


def _tensor(field: str, sent: str) -> str:
    return f'{{"tensors": [{{"{field}": {sent}}}]}}'


def one_tensor(**fields: Any) -> Expected:
    """The answer with one tensor that has these fields."""
    return answers(tensors=[{**EMPTY_TENSOR, **fields}])


def takes(field: str, sent: str, value: Any, name: str = "") -> Case:
    """A tensor's field that is read as `value`."""
    raw = ask(_tensor(field, sent))
    expected = one_tensor(**{field: value})
    return simple(name or f"{field} {sent[:60]}", raw, expected)


def misfits(field: str, sent: str, name: str = "") -> Case:
    """A tensor's field that cannot be read."""
    return simple(name or f"{field} {sent[:60]}", ask(_tensor(field, sent)), refused(MISFIT))


def leniently(field: str, sent: str, value: Any) -> Case:
    """What the door reads and a gateway, if there is no door to ask, does not."""
    raw = ask(_tensor(field, sent))
    taken = one_tensor(**{field: value})
    return simple(f"{field} {sent}", raw, taken, grpc_only=(raw, refused("")), why=LENIENT)


def _no_json(name: str, sent: str) -> Case:
    return simple(name, ask(sent), refused(NOT_JSON))


# Numbers ------------------------------------------------------------------------------------

_INT64 = (
    takes("int64_data", "[9007199254740993]", ["9007199254740993"]),
    takes("int64_data", '["9007199254740993"]', ["9007199254740993"]),
    takes("int64_data", "[9223372036854775807]", ["9223372036854775807"]),
    takes("int64_data", '["9223372036854775807"]', ["9223372036854775807"]),
    takes("int64_data", "[-9223372036854775808]", ["-9223372036854775808"]),
    takes("int64_data", '["-9223372036854775808"]', ["-9223372036854775808"]),
    takes("int64_data", "[0, -1, 1]", ["0", "-1", "1"]),
    takes("int64_data", '[1, "2", 3.0]', ["1", "2", "3"]),
    takes("int64_data", "[1.0]", ["1"]),
    takes("int64_data", "[1e3]", ["1000"]),
    takes("int64_data", "[1E+2]", ["100"]),
    takes("int64_data", "[100e-2]", ["1"]),
    takes("int64_data", "[9007199254740991.0]", ["9007199254740991"]),
    takes("int64_data", '["9.007199254740991e15"]', ["9007199254740991"]),
    takes("int64_data", '["1e3"]', ["1000"]),
    takes("int64_data", '["1.0"]', ["1"]),
    takes("int64_data", "[-0]", ["0"]),
    takes("int64_data", "[-0.0]", ["0"]),
    takes("int64_data", '["-0"]', ["0"]),
    takes("int64_data", "[]", []),
    takes("int64_data", "null", []),
    misfits("int64_data", "[9223372036854775808]"),
    misfits("int64_data", '["9223372036854775808"]'),
    misfits("int64_data", '["-9223372036854775809"]'),
    misfits("int64_data", "[1e19]"),
    misfits("int64_data", "[1.5]"),
    misfits("int64_data", '["1.5"]'),
    misfits("int64_data", "[1e-1]"),
    misfits("int64_data", '[""]'),
    misfits("int64_data", '[" 1"]'),
    misfits("int64_data", '["1 "]'),
    misfits("int64_data", '["0x1"]'),
    misfits("int64_data", '["NaN"]'),
    misfits("int64_data", "[true]"),
    misfits("int64_data", "[null]"),
    misfits("int64_data", "[{}]"),
    misfits("int64_data", "[[]]"),
    misfits("int64_data", "5"),
    misfits("int64_data", '"5"'),
    misfits("int64_data", '{"a": 1}'),
    misfits("int64_data", "[12345678901234567890123]"),
    misfits("int64_data", '["[1]"]'),
    misfits("int64_data", '["null"]'),
    misfits("int64_data", '["1."]'),
    misfits("int64_data", "[-9223372036854775809]"),
    misfits("int64_data", '["1\\n"]'),
    misfits("int64_data", '["+1"]'),
    misfits("int64_data", '["01"]'),
    misfits("int64_data", '["1_0"]'),
    misfits("int64_data", '["１"]'),
    leniently("int64_data", "[1e-999]", ["0"]),
)

_SMALLER = (
    takes("int_data", "[2147483647, -2147483648]", [2147483647, -2147483648]),
    takes("int_data", '["7"]', [7]),
    takes("int_data", "[1.0, 1e3]", [1, 1000]),
    takes("int_data", "[2147483647.0]", [2147483647]),
    misfits("int_data", "[2147483648]"),
    misfits("int_data", "[-2147483649]"),
    misfits("int_data", '["2147483648"]'),
    misfits("int_data", "[2147483647.5]"),
    misfits("int_data", "[true]"),
    takes("uint32_data", "[0, 4294967295]", [0, 4294967295]),
    takes("uint32_data", '["4294967295"]', [4294967295]),
    takes("uint32_data", "[-0, -0.0, 1.0]", [0, 0, 1]),
    misfits("uint32_data", "[4294967296]"),
    misfits("uint32_data", "[-1]"),
    misfits("uint32_data", '["-1"]'),
    takes("shape", '[1, "2", 3.0]', [1, 2, 3]),
    takes("shape", "[-1]", [-1]),
    misfits("shape", "[4294967296]"),
    takes("lod", "[0, 5]", [0, 5]),
    takes("elem_type", "5", 5),
    takes("elem_type", '"5"', 5),
    takes("elem_type", "5.0", 5),
    takes("elem_type", "-7", -7),
    takes("elem_type", "null", 0),
    misfits("elem_type", "2147483648"),
    misfits("elem_type", "true"),
    misfits("elem_type", '""'),
    misfits("elem_type", "[5]"),
    takes("bool_data", "[true, false]", [True, False]),
    misfits("bool_data", "[1]"),
    misfits("bool_data", "[0]"),
    misfits("bool_data", '["true"]'),
    misfits("bool_data", "[null]"),
)

_FLOATS = (
    takes(
        "float_data", '["NaN", "Infinity", "-Infinity", 1.5]', ["NaN", "Infinity", "-Infinity", 1.5]
    ),
    takes("float_data", '["1.5", 1, "2"]', [1.5, 1, 2]),
    takes("float_data", "[3.4028235e38, -3.4028235e38]", [3.4028235e38, -3.4028235e38]),
    takes("float_data", "[0.1, 0.2, 0.3, 1e-10, 1e10]", [0.1, 0.2, 0.3, 1e-10, 1e10]),
    takes("float_data", "[1e-45, 1.1754942e-38]", [1e-45, 1.1754942e-38], "denormals of a float32"),
    takes("float_data", "[1e-46, 1e-400]", [0.0, 0.0], "too small for a float32"),
    takes("float_data", "[-0.0, 0.0]", [-0.0, 0.0]),
    takes("float_data", '["-0", "-0.0", "1e3"]', [-0.0, -0.0, 1000]),
    takes("float_data", "[16777217]", [16777216.0]),
    takes("float_data", "[123456789.123]", [123456790.0]),
    takes("float_data", "[0.333333333333]", [0.33333334]),
    takes("float_data", "[1e20, 1e21, 1e22]", [1e20, 1e21, 1e22]),
    takes("float_data", "[]", []),
    misfits("float_data", "[1e39]"),
    misfits("float_data", "[-1e39]"),
    misfits("float_data", "[1e308]"),
    misfits("float_data", "[3.4028235677973367e38]", "the least that is beyond float32"),
    misfits("float_data", '["nan"]'),
    misfits("float_data", '["true"]'),
    misfits("float_data", '["1."]'),
    misfits("float_data", '[""]'),
    misfits("float_data", '["0x1p3"]'),
    misfits("float_data", '["1,5"]'),
    misfits("float_data", "[null]"),
    misfits("float_data", "[{}]"),
    misfits("float_data", "[[1]]"),
    misfits("float_data", "1.5"),
    _no_json("a bare NaN", _tensor("float_data", "[NaN]")),
    _no_json("a bare Infinity", _tensor("float_data", "[Infinity]")),
    _no_json("no digit before the point", _tensor("float_data", "[.5]")),
    _no_json("no digit behind the point", _tensor("float_data", "[1.]")),
    _no_json("a leading zero", _tensor("float_data", "[01]")),
    _no_json("a plus", _tensor("float_data", "[+1]")),
    _no_json("no digit in the exponent", _tensor("float_data", "[1e]")),
    _no_json("no digit in the exponent of an integer", _tensor("int64_data", "[1e]")),
    _no_json("only a sign in the exponent", _tensor("int64_data", "[1e+]")),
    misfits("float_data", '["inf"]'),
    misfits("float_data", '["-inf"]'),
    misfits("float_data", '["+Infinity"]'),
    misfits("float_data", '["infinity"]'),
    misfits("float_data", '["1e39"]'),
    misfits("float_data", '[" 1.5"]'),
    misfits("float_data", '["1_0.5"]'),
    misfits("float_data", "[true]"),
    takes("float64_data", "[1e308, 5e-324, 0.1]", [1e308, 5e-324, 0.1]),
    takes("float64_data", "[1.7976931348623157e308]", [1.7976931348623157e308]),
    takes("float64_data", "[1e-324]", [0.0]),
    takes("float64_data", "[-0.0]", [-0.0]),
    takes("float64_data", "[9007199254740993]", [9007199254740992.0]),
    takes("float64_data", "[0.30000000000000004]", [0.30000000000000004]),
    takes("float64_data", "[123456789012345678901234567890]", [1.2345678901234568e29]),
    takes("float64_data", "[0." + "1" * 5000 + "]", [0.1111111111111111]),
    takes("float64_data", '["NaN", "-Infinity"]', ["NaN", "-Infinity"]),
    _no_json("a float64 that is too large", _tensor("float64_data", "[1e309]")),
    misfits("float64_data", '["1e309"]'),
    takes("complex64_data", "[1.5, -0.0]", [1.5, -0.0]),
    takes("complex128_data", '["NaN", 1e300]', ["NaN", 1e300]),
)

_BYTES = (
    takes("byte_data", '"AAEC"', "AAEC"),
    takes("byte_data", '"+/+/"', "+/+/"),
    takes("byte_data", '"-_-_"', "+/+/", "base64 for URLs"),
    takes("byte_data", '"QQ=="', "QQ=="),
    takes("byte_data", '"QQ"', "QQ==", "base64 without padding"),
    takes("byte_data", '"QR=="', "QQ==", "base64 with bits that count for nothing"),
    takes("byte_data", '"QUJD\\r\\nREVG\\n\\n"', "QUJDREVG", "base64 in lines"),
    takes("byte_data", '""', ""),
    takes("byte_data", '"-_8"', "+/8=", "base64 for URLs, without padding"),
    takes("byte_data", "null", ""),
    misfits("byte_data", '"Q"'),
    misfits("byte_data", "5"),
    misfits("byte_data", "true"),
    misfits("byte_data", '["QQ=="]'),
    misfits("byte_data", '"QQ="'),
    misfits("byte_data", '"QQ==="'),
    misfits("byte_data", '"Q Q="'),
    leniently("byte_data", '"QUI\\r\\n="', "QUI="),
    misfits("byte_data", '"+_+_"'),
    misfits("byte_data", '"A!B@"'),
    misfits("byte_data", '"QQ==QQ=="'),
    misfits("byte_data", '"é"'),
    misfits("byte_data", '"="'),
    misfits("byte_data", '"===="'),
    misfits("byte_data", '"QUJD="'),
    misfits("byte_data", '"QUJD===="'),
)

NUMBER_CASES = (*_INT64, *_SMALLER, *_FLOATS, *_BYTES)


# Where protojson reads otherwise --------------------------------------------------------------

_EXACT = "protojson reads the digits, the door's parser a double first"
_DOUBTED = f"{_EXACT}; of which it is not known any more which integer was written"


def _read_otherwise(field: str, sent: str, door: Any, gateway: Any) -> Case:
    taken, other = (one_tensor(**{field: value}) for value in (door, gateway))
    return different(f"{field} {sent}", ask(_tensor(field, sent)), taken, other, _EXACT)


def _only_exactly(field: str, sent: str, gateway: Any, why: str) -> Case:
    raw = ask(_tensor(field, sent))
    taken = one_tensor(**{field: gateway})
    return different(f"{field} {sent}", raw, refused(MISFIT), taken, why)


NUMBER_DIFFERENT = (
    _read_otherwise("float_data", "[-0]", [0.0], [-0.0]),
    _read_otherwise("float64_data", "[-0]", [0.0], [-0.0]),
    # halfway between two float32, and a little more or less, which a double does not see
    _read_otherwise("float_data", "[1.000000059604644775390625000001]", [1.0], [1.0000001]),
    _only_exactly("float_data", "[3.4028235677973366e38]", [3.4028235e38], _EXACT),
    *(
        _only_exactly("int64_data", sent, [value], _DOUBTED)
        for sent, value in (
            ("[1e18]", "1000000000000000000"),
            ('["1e18"]', "1000000000000000000"),
            ("[9007199254740992.0]", "9007199254740992"),
            ("[9007199254740993.0]", "9007199254740993"),
            ('["9007199254740993.0"]', "9007199254740993"),
        )
    ),
)
