"""Array text: what is written is numpy's repr, and it is read back without evaluating it."""

from __future__ import annotations

import enum
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pipeline.errors import PackageError, PayloadTypeError
from pipeline.proto.codec import numpy_to_text, text_to_numpy
from pipeline.proto.pipeline.array_repr import quick_repr

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
REALS = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]
QUICK_DTYPES = [
    *(np.float64, np.float32, np.bool_),
    *(np.int64, np.int32, np.int16, np.int8, np.uint8),
]
TINY = st.integers(-2000, 2000)
# Texts whose end survives a "<U" array, which drops NULs there.
TEXTS = st.text(max_size=4).filter(lambda text: not text.endswith("\0"))


def numpys_own(array: np.ndarray[Any, Any]) -> str:
    with np.printoptions(threshold=sys.maxsize):
        return repr(array)


@st.composite
def exact_arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Arrays that print without loss."""
    dtype = draw(
        st.one_of(
            hnp.integer_dtypes(endianness="="),
            hnp.unsigned_integer_dtypes(endianness="="),
            hnp.boolean_dtypes(),
            hnp.unicode_string_dtypes(min_len=1, max_len=5, endianness="="),
            hnp.byte_string_dtypes(min_len=1, max_len=5),
        )
    )
    return draw(hnp.arrays(dtype, SHAPES))


@st.composite
def float_arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Arrays of numbers of one size each, and of any: both of numpy's formats, and the borders."""
    dtype = draw(st.sampled_from([np.float64, np.float32]))
    width = np.dtype(dtype).itemsize * 8
    bound = draw(st.sampled_from([1.0, 1e3, 1e7, 1e9, 2.0**126]))
    near = st.floats(-bound, bound, width=32).map(dtype)
    drawn = draw(st.sampled_from([near, st.floats(width=width)]))
    return draw(hnp.arrays(dtype, SHAPES, elements=drawn))


# --- writing --------------------------------------------------------------------------------


@settings(deadline=None, max_examples=500)
@given(st.one_of(exact_arrays(), float_arrays(), hnp.arrays(hnp.complex_number_dtypes(), SHAPES)))
def test_an_array_is_written_as_numpy_prints_it(array: np.ndarray[Any, Any]):
    assert numpy_to_text(array) == numpys_own(array)


@st.composite
def arrays_of_the_quick_dtypes(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Every value of the dtypes that have a quick text: NaN, infinities, denormals, signed zeros;
    numbers beside powers of ten, where formats change, and with few digits, or a tie to round."""
    dtype = np.dtype(draw(st.sampled_from(QUICK_DTYPES)))
    if dtype.kind != "f":
        return draw(hnp.arrays(dtype, SHAPES))
    width = dtype.itemsize * 8
    borders = st.builds(
        lambda power, steps: float(power) * (1.0 + steps * float(np.finfo(dtype).eps)),
        st.sampled_from([1e-4, 1e-3, 1.0, 10.0, 1e6, 1e8, 1e16]),
        st.integers(-2, 2),
    )
    few_digits = st.builds(lambda whole, places: whole / 10**places, TINY, st.integers(0, 9))
    ties = st.builds(lambda whole, places: whole / 2**places, TINY, st.integers(0, 12))
    special = st.sampled_from([0.0, -0.0, float(np.finfo(dtype).tiny), 5e-324, 1e-45])
    kinds = [st.floats(width=width), borders, few_digits, ties, special]
    elements = draw(st.sampled_from([*kinds, st.one_of(kinds)]))
    with np.errstate(over="ignore", under="ignore"):
        return draw(hnp.arrays(np.float64, SHAPES, elements=elements)).astype(dtype)


@settings(deadline=None, max_examples=400)
@given(arrays_of_the_quick_dtypes())
def test_every_value_is_written_as_numpy_prints_it(array: np.ndarray[Any, Any]):
    assert numpy_to_text(array) == numpys_own(array)
    quick = quick_repr(array)
    assert quick is None or quick == numpys_own(array)


@pytest.mark.parametrize("size", [0, 1, 8, 9, 999, 1000, 1001, 70_000])
@pytest.mark.parametrize("dtype", QUICK_DTYPES)
def test_arrays_on_either_side_of_a_limit_are_written_whole(size: int, dtype: type):
    array = (np.arange(size) % 97 / 4).astype(dtype)
    assert numpy_to_text(array) == numpys_own(array)


@pytest.mark.parametrize("number", [2.5, 0.1, 1.0, 0.0, 1e-7, 1e9, np.nan, -np.inf, 123456.789])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_number_is_written_as_numpy_prints_it(
    number: float, shape: tuple[int, ...], dtype: type
):
    array = np.full(shape, number, dtype)
    assert numpy_to_text(array) == numpys_own(array)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_random_numbers_of_every_size_are_written_as_numpy_prints_them(seed: int, dtype: type):
    random = np.random.default_rng(seed)
    for exponent in range(-10, 12):
        array = (random.standard_normal((2, 1 + seed)) * 10.0**exponent).astype(dtype)
        rounded = np.round(array, 2)
        assert numpy_to_text(array) == numpys_own(array)
        assert numpy_to_text(rounded) == numpys_own(rounded)


@pytest.mark.parametrize("shape", [(1,), (40,), (3, 30), (2, 3, 20), (1, 1, 1, 1), (2, 1, 2, 25)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32, np.uint8, np.bool_])
def test_lines_break_where_numpy_breaks_them(shape: tuple[int, ...], dtype: type):
    array = (np.arange(np.prod(shape)).reshape(shape) % 90).astype(dtype)
    assert quick_repr(array) == numpys_own(array)


def test_all_elements_of_a_large_array_are_written():
    array = np.arange(3000, dtype=np.float16)
    assert numpy_to_text(array) == numpys_own(array)
    assert "..." not in numpy_to_text(np.full(2000, np.nan))


def test_the_programs_print_options_hold_and_are_left_alone():
    array = np.array([0.123456789, np.pi])
    with np.printoptions(precision=3, threshold=1):
        before = np.get_printoptions()
        assert numpy_to_text(array) == "array([0.123, 3.142])"
        assert numpy_to_text(array[:1]) == "array([0.123])"
        assert np.get_printoptions() == before
    assert numpy_to_text(array) == "array([0.12345679, 3.14159265])"


class Color(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.array([[18.901151]], np.float32), "array([[18.901152]], dtype=float32)"),
        (["a", "b'c"], """['a', "b'c"]"""),
        ([np.str_("a")], "['a']"),
        (np.float32(0.5), "0.5"),
        (np.int64(3), "3"),
        (np.bool_(True), "True"),
        (Color.RED, "1"),
        (0.1, "0.1"),
        (1 - 2j, "(1-2j)"),
        ("plain text", "plain text"),
        (np.str_("plain"), "plain"),
    ],
)
def test_other_values_are_written_as_plain_python_prints_them(value: Any, text: str):
    written = numpy_to_text(value)
    assert written == text
    assert type(written) is str


@pytest.mark.parametrize("value", [None, b"ab", {"a": 1}, [1, 2], ["a", 1], object()])
def test_a_value_without_a_text_form_is_refused(value: Any):
    with pytest.raises(PayloadTypeError, match=type(value).__name__):
        numpy_to_text(value)


# --- reading --------------------------------------------------------------------------------


@settings(deadline=None)
@given(exact_arrays())
def test_an_array_survives_the_round_trip(array: np.ndarray[Any, Any]):
    np.testing.assert_array_equal(text_to_numpy(numpy_to_text(array)), array, strict=True)


@settings(deadline=None)
@given(
    st.sampled_from(REALS).flatmap(
        lambda dtype: hnp.arrays(np.float32, SHAPES).map(lambda array: as_dtype(array, dtype))
    )
)
def test_a_float_survives_up_to_the_printed_digits(array: np.ndarray[Any, Any]):
    back = text_to_numpy(numpy_to_text(array))
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    wide, wide_back = array.astype(np.float64), back.astype(np.float64)
    np.testing.assert_allclose(wide_back, wide, rtol=1e-7, atol=1e-8)
    number = ~np.isnan(wide)
    np.testing.assert_array_equal(np.signbit(wide_back)[number], np.signbit(wide)[number])


def as_dtype(array: np.ndarray[Any, Any], dtype: Any) -> np.ndarray[Any, Any]:
    with np.errstate(over="ignore"):
        return array.astype(dtype)


@settings(deadline=None)
@given(hnp.arrays(np.complex64, SHAPES, elements={"allow_nan": False}))
def test_a_complex_number_survives_with_both_parts(array: np.ndarray[Any, Any]):
    back = text_to_numpy(numpy_to_text(array))
    assert back.dtype == array.dtype
    assert numpy_to_text(back) == numpy_to_text(array)


@settings(deadline=None)
@given(hnp.arrays(object, SHAPES.filter(all), elements=st.one_of(TEXTS, st.binary(max_size=4))))
def test_an_array_of_text_or_bytes_survives_the_round_trip(array: np.ndarray[Any, Any]):
    back = text_to_numpy(numpy_to_text(array))
    assert back.dtype == object
    np.testing.assert_array_equal(back, array, strict=True)


@settings(deadline=None)
@given(
    st.lists(
        st.recursive(
            st.one_of(
                st.integers(),
                st.floats(allow_nan=False),
                st.booleans(),
                st.none(),
                st.text(),
                st.binary(),
                st.complex_numbers(allow_nan=False).map(lambda number: number + 0),
            ),
            lambda inner: st.lists(inner, max_size=3),
            max_leaves=8,
        ),
        max_size=5,
    )
)
def test_a_list_survives_the_round_trip(value: list[Any]):
    assert text_to_numpy(repr(value)) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", 3),
        (" -0.5\n", -0.5),
        ("1e5", 1e5),
        ("True", True),
        ("(1+2j)", 1 + 2j),
        ("inf", float("inf")),
        ("[np.float32(1.5), np.str_('x'), np.True_]", [1.5, "x", True]),
        ("array( [[1.0000,   2.0000]])", np.array([[1.0, 2.0]])),  # a Java client's
        ("array([1, 2.5])", np.array([1, 2.5])),
        ("array([], dtype=float64)", np.empty(0)),
        ("array([18446744073709551615], dtype=uint64)", np.array([2**64 - 1], np.uint64)),
        ("array([1, 2], dtype='>i4')", np.array([1, 2], ">i4")),
    ],
)
def test_text_of_other_writers_is_read(text: str, expected: Any):
    value = text_to_numpy(text)
    np.testing.assert_array_equal(value, expected)
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "i am very sad | 0",
        "0.0137, -0.1136",
        "007",
        "1_000",
        "１",
        "'quoted'",
        "None",
        "array",
        "array(",
        "array()",
        "array([1]",
        "array([1]) + 1",
        "array([1, [2]])",
        "array([[1, 2], [3]])",
        "array([1 2])",
        "array([1,,2])",
        "array([1, 2,])",
        "array([1-2])",
        "array([1], order='C')",
        "array([1], dtype=os)",
        "array([1], dtype='M8[s]')",
        "array([1], dtype='<U9')",
        "array([1.5], dtype=int64)",
        "array([300], dtype=uint8)",
        "array([1, 2], shape=(3,))",
        "array([], shape=(-1,))",
        "array([], shape=(9999999999999, 0, 9999999999999))",
        "[1 2]",
        "[1,",
        "[1, 2,]",
        "{'a': 1}",
        "__import__('os').system('true')",
        "np.object_(3)",
        "np.load('x')",
        r"['\d']",
        r"['\U0011ffff']",
        "['\x00\\n']",
        "b'ä'",
        "-" * 100_000,
        "[" * 100_000,
        "array(" * 1000,
        "array([" + "," * 999 + "[" + "," * 999 + "[" + "," * 9999 + "]]])",
        "1" * 5000,
    ],
)
def test_any_other_text_is_refused(text: str):
    with pytest.raises(PackageError, match="not the text of"):
        text_to_numpy(text)


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet="array([])dtypeshp=0123456789.,+-jnifeEb'\"\\ux \n", max_size=60))
def test_any_text_is_parsed_or_refused(text: str):
    try:
        value = text_to_numpy(text)
    except PackageError:
        return
    assert not isinstance(value, str | bytes)


@pytest.mark.parametrize(("quote", "code"), [("'", "<U100000000"), ("b'", "S400000000")])
@pytest.mark.parametrize("text", ["a", ""])
def test_a_short_text_cannot_ask_for_a_huge_array(quote: str, code: str, text: str):
    result = text_to_numpy(f"array([{quote}{text}', {quote}b'], dtype='{code}')")
    assert result.dtype == object
    assert result.tolist() == [text, "b"] if quote == "'" else [text.encode(), b"b"]


def test_text_with_one_long_element_is_not_padded():
    elements = ["b" * 20_000, *["a"] * 20_000]
    text = text_to_numpy(f"array({elements})")
    assert text.dtype == object
    assert text.tolist() == elements
