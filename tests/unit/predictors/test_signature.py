"""The inputs that a model accepts, and the errors of others."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pipeline.errors import InitError, InputError, PayloadTypeError
from pipeline.predictors.base import TensorSpec
from pipeline.predictors.signature import ModelSignature, refuse_unknown_arguments

F32 = np.dtype(np.float32)
I64 = np.dtype(np.int64)
TEXT = np.dtype(object)


def spec(name="x", dtype=F32, shape=("n", 3)):
    return TensorSpec(name, np.dtype(dtype), shape)


def signature(*inputs, outputs=("y",), fetch_list=None):
    outputs = [spec(name) for name in outputs]
    return ModelSignature("toy", inputs or (spec(),), outputs, fetch_list)


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def test_an_array_that_fits_is_passed_on_without_a_copy():
    x = zeros(2, 3)
    assert signature().feed({"x": x})["x"] is x


def test_a_list_that_holds_one_feed_is_that_feed():
    x = zeros(2, 3)
    assert signature().feed([{"x": x}])["x"] is x


def test_names_that_the_model_does_not_have_are_left_out():
    fed = signature().feed({"x": zeros(2, 3), "x.lod": [0, 2], "pipeline.profile": "1"})
    assert list(fed) == ["x"]


def test_a_missing_name_is_refused_with_the_given_and_the_missing_ones():
    with pytest.raises(InputError) as caught:
        signature(spec("x"), spec("words")).feed({"x": zeros(2, 3), "word": zeros(2, 3)})
    assert str(caught.value) == (
        "[toy] invalid arg list: feed names ['x', 'word'] do not match the model's "
        "['x', 'words']: missing ['words']"
    )
    assert caught.value.code == 5000


def test_a_long_list_of_names_is_cut_in_the_error_text():
    with pytest.raises(InputError, match="'k15' and 84 more"):
        signature().feed({f"k{number}": 0 for number in range(100)})


@pytest.mark.parametrize("feed", [[], [{"x": zeros(1, 3)}, {"x": zeros(1, 3)}]])
def test_a_list_that_does_not_hold_one_feed_is_refused(feed):
    with pytest.raises(InputError, match=f"list of {len(feed)}"):
        signature().feed(feed)


@pytest.mark.parametrize("feed", [None, "x", zeros(1, 3), [zeros(1, 3)]])
def test_a_feed_that_is_not_a_dict_is_refused(feed):
    with pytest.raises(PayloadTypeError, match="feed must be a dict"):
        signature().feed(feed)


@pytest.mark.parametrize("value", [["a"], [[1, None, 3]], None, "text", {"a": 1}])
def test_a_value_that_is_not_an_array_is_refused_with_name_and_type(value):
    with pytest.raises(PayloadTypeError) as caught:
        signature().feed({"x": value})
    assert "feed_batch must be npdata: the value of 'x' must be np.ndarray" in str(caught.value)
    assert str(type(value)) in str(caught.value)
    assert caught.value.code == 7000


@pytest.mark.parametrize(
    ("value", "shape", "dtype"),
    [
        ([[1, 2.5, 3]], (1, 3), np.float32),
        (((1, 2), (3, 4)), (2, 2), np.uint8),
        ([True, False], (2,), np.bool_),
        (7, (), np.int64),
        (np.float64(0.5), (), np.float32),
        ([], (0,), np.int64),
    ],
)
def test_numbers_and_lists_of_them_become_arrays_of_the_model_s_dtype(value, shape, dtype):
    fed = signature(spec(dtype=dtype, shape=None)).feed({"x": value})["x"]
    assert (fed.dtype, fed.shape) == (np.dtype(dtype), shape)
    assert fed.tolist() == np.array(value).tolist()


def test_lists_of_different_lengths_are_refused():
    with pytest.raises(InputError, match="feed 'x' has lists of different lengths"):
        signature().feed({"x": [[1.0, 2.0, 3.0], [1.0]]})


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.uint64])
def test_signed_integers_that_fit_are_fed_as_unsigned_ones(dtype):
    model = signature(spec(dtype=dtype, shape=("n",)))
    assert model.feed({"x": np.array([0, 200])})["x"].dtype == dtype
    with pytest.raises(InputError, match="do not fit"):
        model.feed({"x": np.array([-1, 200])})
    assert signature(spec(dtype=np.uint64)).feed({"x": np.full((1, 3), 2**62)})["x"][0, 0] == 2**62


@pytest.mark.parametrize(
    ("shape", "batch", "fed"), [(("n",), True, ["a"]), ((), True, "a"), (("n", 1), False, [["a"]])]
)
def test_a_single_text_gets_the_rank_of_its_input(shape, batch, fed):
    for text in ("a", b"a"):
        model = signature(spec(dtype=TEXT, shape=shape))
        assert model.feed({"x": text}, batch)["x"].tolist() == fed


def test_inputs_with_a_value_in_the_model_are_optional():
    bias = [spec("b", shape=(3,))]
    model = ModelSignature("toy", [spec()], [spec("y")], options=bias)
    assert list(model.feed({"x": zeros(2, 3)})) == ["x"]
    assert list(model.feed({"b": zeros(3), "x": zeros(2, 3)})) == ["x", "b"]
    with pytest.raises(InputError, match="feed 'b' has shape"):
        model.feed({"x": zeros(2, 3), "b": zeros(6)})


@pytest.mark.parametrize(
    ("given_dtype", "wanted"),
    [
        (np.float64, np.float32),
        (np.float32, np.float16),
        (np.int64, np.float32),
        (np.int64, np.int32),
        (np.uint8, np.float32),
        (np.bool_, np.float32),
        (np.bool_, np.int64),
        (np.float32, ml_dtypes.bfloat16),
        (np.bool_, ml_dtypes.bfloat16),
        (">f4", np.float32),
        (">i8", np.int64),
    ],
)
def test_numbers_are_cast_to_the_model_s_dtype(given_dtype, wanted):
    given_array = np.array([[0, 1, 1]], given_dtype)
    fed = signature(spec(dtype=wanted)).feed({"x": given_array})["x"]
    assert fed.dtype == np.dtype(wanted)
    assert fed.dtype.isnative
    assert fed.astype(float).tolist() == [[0, 1, 1]]
    assert given_array.dtype == np.dtype(given_dtype)


def test_uint16_for_a_model_of_bfloat16_is_its_bits():
    bits = np.array([[0x3F80, 0x4000, 0]], np.uint16)
    fed = signature(spec(dtype=ml_dtypes.bfloat16)).feed({"x": bits})["x"]
    assert (fed.dtype, fed.tolist()) == (ml_dtypes.bfloat16, [[1, 2, 0]])


@pytest.mark.parametrize(
    ("given_dtype", "wanted"),
    [
        (np.float32, np.int64),
        (np.int64, np.bool_),
        (np.complex64, np.float32),
        ("U3", np.float32),
        (object, np.float32),
        (np.float32, object),
    ],
)
def test_a_dtype_that_would_lose_its_meaning_is_refused(given_dtype, wanted):
    with pytest.raises(InputError) as caught:
        signature(spec(dtype=wanted)).feed({"x": zeros(1, 3, dtype=given_dtype)})
    text = "text" if wanted is object else str(np.dtype(wanted))
    for expected in ("'x'", str(np.dtype(given_dtype)), text):
        assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("value", "dtype", "wanted"),
    [(2**31, np.int64, np.int32), (2**63, np.uint64, np.int64), (1e39, np.float64, np.float32)],
)
def test_a_value_that_does_not_fit_is_refused_rather_than_wrapped(value, dtype, wanted):
    with pytest.raises(InputError, match=r"'x' holds .* that do not fit"):
        signature(spec(dtype=wanted)).feed({"x": np.array([[0, 1, value]], dtype)})


@given(hnp.arrays(np.int64, (2, 3)))
def test_integers_are_narrowed_exactly_or_refused(values):
    narrow = signature(spec(dtype=np.int32))
    try:
        fed = narrow.feed({"x": values})["x"]
    except InputError:
        assert np.abs(values.astype(object)).max() >= 2**31
    else:
        assert fed.tolist() == values.tolist()


def test_infinity_is_cast_unchanged():
    fed = signature().feed({"x": np.array([[np.inf, -np.inf, 0]])})["x"]
    assert fed.tolist() == [[np.inf, -np.inf, 0]]


@pytest.mark.parametrize(
    ("wanted", "got", "text"),
    [
        (("n", 3), (2, 4), r"shape \(2, 4\), the model wants \(n, 3\)"),
        (("n", 3), (3,), r"shape \(3\), the model wants \(n, 3\)"),
        ((None, 3, None), (2, 3), r"shape \(2, 3\), the model wants \(\?, 3, \?\)"),
        ((1, 3), (2, 3), r"shape \(2, 3\), the model wants \(1, 3\)"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused_with_both_shapes(wanted, got, text):
    with pytest.raises(InputError, match=f"'x' has {text}"):
        signature(spec(shape=wanted)).feed({"x": zeros(*got)})


def test_the_shape_is_checked_after_a_cast_too():
    with pytest.raises(InputError, match="shape"):
        signature().feed({"x": zeros(2, 4, dtype=np.float64)})


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4)])
def test_an_input_of_unknown_rank_takes_any_shape(shape):
    assert signature(spec(shape=None)).feed({"x": zeros(*shape)})["x"].shape == shape


def test_an_empty_batch_is_accepted():
    assert signature().feed({"x": zeros(0, 3)})["x"].shape == (0, 3)


def test_one_sample_gets_the_batch_axis():
    fed = signature(spec(), spec("t", TEXT, ("n", 1))).feed(
        {"x": zeros(3), "t": ["a"]}, batch=False
    )
    assert fed["x"].shape == (1, 3)
    assert fed["t"].tolist() == [["a"]]


@pytest.mark.parametrize(
    "value",
    [
        ["a", "é", ""],
        np.array(["a", "é", ""]),
        np.array(["a", "é", ""], dtype=object),
        np.array(["a", "é".encode(), b""], dtype=object),
        np.array([b"a", "é".encode(), b""]),
    ],
)
def test_text_becomes_an_object_array_of_str(value):
    fed = signature(spec(dtype=TEXT, shape=("n",))).feed({"x": value})["x"]
    assert fed.dtype == TEXT
    assert fed.tolist() == ["a", "é", ""]
    assert all(isinstance(element, str) for element in fed)


@given(st.lists(st.text(), min_size=1, max_size=6))
def test_any_text_passes_unchanged(texts):
    fed = signature(spec(dtype=TEXT, shape=("n",))).feed({"x": texts})["x"]
    assert fed.tolist() == texts


def test_text_in_two_dimensions_keeps_its_order():
    value = np.array([["a", "b"], ["c", b"d"]], dtype=object, order="F")
    fed = signature(spec(dtype=TEXT, shape=("n", 2))).feed({"x": value})["x"]
    assert fed.tolist() == [["a", "b"], ["c", "d"]]
    assert value[1, 1] == b"d"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.array(["a", None], dtype=object), "NoneType"),
        (np.array(["a", 3], dtype=object), "int"),
        (np.array(["a", b"\xff"], dtype=object), "UTF-8"),
        (["a", 3], "int"),
    ],
)
def test_a_value_that_is_not_text_is_refused_for_a_text_input(value, text):
    with pytest.raises(PayloadTypeError, match=text):
        signature(spec(dtype=TEXT, shape=("n",))).feed({"x": value})


@pytest.mark.parametrize("fetch", [None, [], ()])
def test_without_a_fetch_list_the_default_is_fetched(fetch):
    assert signature(outputs=("a", "b")).fetch(fetch) == ("a", "b")
    assert signature(outputs=("a", "b"), fetch_list=["b"]).fetch(fetch) == ("b",)


def test_outputs_are_fetched_in_the_requested_order():
    chosen = signature(outputs=("a", "b", "c"), fetch_list=["a"])
    assert list(chosen.fetch(["c", "b"])) == ["c", "b"]
    assert list(chosen.fetch("b")) == ["b"]


def test_fetching_an_output_that_is_not_there_is_refused():
    with pytest.raises(InputError, match=r"invalid arg list: fetch names \['z'\] .*\['a', 'b'\]"):
        signature(outputs=("a", "b")).fetch(["z"])


def test_a_fetch_list_with_an_unknown_name_is_refused_at_start():
    with pytest.raises(InitError, match=r"fetch_list: unexpected .* 'z', allowed outputs are: a"):
        signature(outputs=("a",), fetch_list=["a", "z"])


def test_arguments_of_older_clients_without_effect_are_accepted():
    refuse_unknown_arguments({"logid": 7, "need_variant_tag": False})


def test_an_argument_that_changes_the_answer_or_is_unknown_is_refused():
    with pytest.raises(InputError, match="need_variant_tag"):
        refuse_unknown_arguments({"need_variant_tag": True})
    with pytest.raises(TypeError, match="fetsch"):
        refuse_unknown_arguments({"fetsch": []})
