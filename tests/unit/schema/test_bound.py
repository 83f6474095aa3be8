"""A schema converts values, and reports the ones that do not fit."""

from __future__ import annotations

import dataclasses
import enum
import tracemalloc
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipeline
from pipeline import Tensor
from pipeline.errors import (
    ConfigError,
    PackageError,
    PayloadTypeError,
    UserCodeError,
)
from pipeline.schema.arrays import _of_lists
from pipeline.schema.bound import bind


class Point(msgspec.Struct):
    x: float
    y: float = 0.0


class Colour(enum.Enum):
    red = "red"
    blue = "blue"


class Ask(pipeline.Schema):
    words: str
    top: Annotated[int, msgspec.Meta(ge=1, le=10)] = 1
    inputs: list[Point] = msgspec.field(default_factory=list)
    named: dict[str, Point] = msgspec.field(default_factory=dict)
    image: bytes = b""
    pair: tuple[int, str] = (0, "")
    kind: Literal["a", "b"] = "a"
    colour: Colour = Colour.red
    tree: Ask | None = None
    flag: bool = False


class Arrays(pipeline.Schema):
    rows: Annotated[np.ndarray, Tensor("rows", "FP32", (-1, 2))] | None = None
    bytes_: Annotated[npt.NDArray[np.uint8] | None, "pixels"] = None
    any_: np.ndarray | None = None
    many: list[Annotated[np.ndarray, Tensor("", "INT64", (2,))]] = msgspec.field(
        default_factory=list
    )
    named: dict[str, Annotated[np.ndarray, Tensor("", "FP64", (1,))]] = msgspec.field(
        default_factory=dict
    )
    texts: Annotated[np.ndarray, Tensor("texts", "BYTES")] | None = None
    inner: Arrays | None = None


class Strict(pipeline.Schema, forbid_unknown_fields=True, rename="camel"):
    first_word: str


class Typed(TypedDict):
    a: int
    b: NotRequired[list[float]]


@dataclasses.dataclass
class Data:
    a: int
    b: str = "b"
    c: list[int] = dataclasses.field(default_factory=list)


class Picky(pipeline.Schema):
    a: int

    def __post_init__(self) -> None:
        if self.a == 1:
            raise ValueError("one is taken")
        if self.a == 2:
            raise KeyError("two")


SAID = bind(Ask)


def refused(fields: Any, schema: Any = Ask, is_text: bool = False) -> str:
    with pytest.raises(PackageError) as caught:
        bind(schema).check(fields, is_text)
    assert caught.value.code == 8000
    return str(caught.value)


def test_an_op_sees_all_keys_converted_and_filled_in():
    seen = SAID.check({"words": "w", "inputs": [{"x": 1}], "image": "aGk=", "colour": "blue"})
    assert seen == {
        "words": "w",
        "top": 1,
        "inputs": [Point(1.0)],
        "named": {},
        "image": b"hi",
        "pair": (0, ""),
        "kind": "a",
        "colour": Colour.blue,
        "tree": None,
        "flag": False,
    }
    assert type(seen["inputs"][0].x) is float


def test_bytes_may_be_bytes_an_array_or_base64():
    for found in (b"hi there", np.frombuffer(b"hi there", np.uint8)):
        assert SAID.check({"words": "w", "image": found})["image"] == b"hi there"
    in_lines = {"words": "w", "image": "aGkg\ndGhlcmU=\n"}
    assert SAID.check(in_lines, is_text=True)["image"] == b"hi there"
    assert refused(in_lines).startswith("image: expected bytes, found str")


def test_unknown_keys_are_removed_or_refused():
    assert "more" not in SAID.check({"words": "w", "more": 1})
    text = refused({"firstWord": "w", "first_word": 1}, Strict)
    assert text == "first_word: found int 1, expected no such key: the keys are firstWord"


@pytest.mark.parametrize("schema", [Typed, Data])
def test_typed_dicts_and_dataclasses_are_schemas_too(schema):
    bound = bind(schema)
    seen = bound.check({"a": 1, "more": 2})
    assert seen == ({"a": 1} if schema is Typed else {"a": 1, "b": "b", "c": []})
    assert refused({"a": "1"}, schema) == "a: expected int, found str '1'"
    assert bound.check({"a": "1"}, is_text=True)["a"] == 1


WRONG = [
    ({}, "words: expected str, found nothing"),
    ({"words": 3}, "words: expected str, found int 3"),
    ({"words": None}, "words: expected str, found null"),
    ({"top": 11}, "top: expected int <= 10, found int 11"),
    ({"inputs": 5}, "inputs: expected array, found int 5"),
    ({"inputs": [[1]]}, "inputs[0]: expected object, found array"),
    ({"inputs": [{"x": 1}, {"y": 1}]}, "inputs[1].x: expected float, found nothing"),
    ({"inputs": [{"x": 1}] * 3 + [{"x": "n"}]}, "inputs[3].x: expected float, found str 'n'"),
    ({"named": {"p": {"x": 1}, "q r": {"x": True}}}, 'named["q r"].x: expected float, found bool'),
    ({"named": {1: {"x": 1}}}, "named: a key: expected str, found int"),
    ({"image": "!!"}, "image: expected bytes, found str '!!': Invalid base64 encoded string"),
    ({"pair": [1]}, "pair: expected array of length 2, found length 1"),
    ({"pair": [1, 2]}, "pair[1]: expected str, found int 2"),
    ({"kind": "c"}, "kind: expected 'a' | 'b', found str 'c'"),
    ({"colour": "green"}, "colour: expected 'red' | 'blue', found str 'green'"),
    ({"tree": {"words": "x", "top": "k"}}, "tree.top: expected int, found str 'k'"),
    ({"flag": 1}, "flag: expected bool, found int 1"),
    ({"top": 1.5}, "top: expected int, found float 1.5"),
    ({"words": "w" * 500, "flag": "x" * 500}, "flag: expected bool, found str '" + "x" * 40),
]


@pytest.mark.parametrize(("fields", "said"), WRONG, ids=lambda case: str(case)[:40])
def test_an_error_has_the_path_the_value_and_the_expected_type(fields, said):
    given_fields = fields if not fields or "words" in fields else {"words": "w", **fields}
    text = refused(given_fields)
    assert text.startswith(said)
    assert len(text) < 200


def test_text_is_converted_to_the_type_of_the_schema():
    texts = {
        "words": "5",
        "top": "5",
        "flag": "true",
        "inputs": '[{"x": "1.5"}]',
        "tree": '{"words": "t"}',
        "image": b"raw",
    }
    seen = SAID.check(texts, is_text=True)
    assert seen["words"] == "5"
    assert seen["top"] == 5
    assert seen["flag"] is True
    assert seen["inputs"] == [Point(1.5)]
    assert seen["tree"].words == "t"
    assert seen["image"] == b"raw"
    text = refused({"words": "w", "inputs": "[1,"}, is_text=True)
    assert text.startswith("inputs: expected array, found a text that is invalid: ")


def test_text_of_arrays_is_read_as_clients_write_it():
    texts = {"a": repr(np.array([3])), "b": repr(np.ones(2, np.float32))}
    assert bind(Typed).check(texts, is_text=True) == {"a": 3, "b": [1.0, 1.0]}
    rows = repr(np.ones((1, 2), np.float32))
    seen = bind(Arrays).check({"rows": rows}, is_text=True)
    assert seen["rows"].tolist() == [[1.0, 1.0]]
    assert refused({"rows": "array(1"}, Arrays, is_text=True).startswith(
        "rows: expected array | null, found a text that is invalid: "
    )


def test_arrays_are_converted_to_the_type_of_the_schema():
    seen = SAID.check(
        {
            "words": np.array([b"w"], object),
            "top": np.array([3]),
            "pair": [1, "x"],
            "flag": np.bool_(True),
        }
    )
    assert (seen["words"], seen["top"], seen["flag"]) == ("w", 3, True)
    assert bind(Typed).check({"a": np.int32(1), "b": np.ones(2)}) == {"a": 1, "b": [1.0, 1.0]}
    assert refused({"a": np.array([1.5])}, Typed) == "a: expected int, found float 1.5"
    assert refused({"words": np.ones((2, 2))}) == "words: expected str, found array"


def test_nested_lists_become_arrays():
    seen = bind(Arrays).check(
        {
            "rows": [[1, 2], [3, 4.5]],
            "bytes_": [0, 255],
            "any_": [[True]],
            "many": [[1, 2], [3, 4]],
            "named": {"k": [1]},
            "texts": ["x", "y"],
            "inner": {"rows": []},
        }
        | {"inner": {"rows": [[1, 2]]}}
    )
    assert seen["rows"].dtype == np.float32
    assert seen["rows"].tolist() == [[1, 2], [3, 4.5]]
    assert seen["bytes_"].dtype == np.uint8
    assert seen["any_"].dtype == np.bool_
    assert [one.dtype for one in seen["many"]] == [np.int64, np.int64]
    assert seen["named"]["k"].dtype == np.float64
    assert seen["texts"].tolist() == ["x", "y"]
    assert seen["inner"].rows.dtype == np.float32


NO_ARRAYS = [
    ({"rows": [1, 2]}, "rows: expected array [any, 2], found array [2]"),
    ({"rows": [[1, 2], [3]]}, "rows[1]: expected array of length 2, found array of length 1"),
    ({"rows": [[1, None]]}, "rows[0][1]: expected number, found null"),
    ({"rows": [[1, "x"]]}, "rows[0][1]: expected number, found str 'x'"),
    ({"texts": ["x", 1]}, "texts[1]: expected str, found int 1"),
    ({"rows": [[1e300, 1]]}, "rows: expected array of float32, found array with larger numbers"),
    ({"rows": 3}, "rows: expected array, found int 3"),
    ({"bytes_": [1, 300]}, "bytes_: expected array of uint8, found array with 300"),
    ({"bytes_": [1.5]}, "bytes_: expected array of uint8, found array of float64"),
    ({"bytes_": [10**30]}, "bytes_[0]: expected int of 64 bits, found int 1000"),
    ({"bytes_": ["x"]}, "bytes_: expected array of uint8, found array of object"),
    ({"many": [[1, 2], [1]]}, "many[1]: expected array [2], found array [1]"),
    ({"named": {"k": [1, 2]}}, "named.k: expected array [1], found array [2]"),
    ({"inner": {"rows": [[1]]}}, "inner.rows: expected array [any, 2], found array [1, 1]"),
]


def test_unsigned_64_bit_numbers_remain_integers():
    class Wide(pipeline.Schema):
        wide: npt.NDArray[np.uint64]
        any_: np.ndarray

    numbers = [[0, 2**64 - 1], [1, 2**63]]
    seen = bind(Wide).check({"wide": numbers, "any_": numbers})
    for array in seen.values():
        assert (array.dtype, array.tolist()) == (np.uint64, numbers)
    for odd in ([-1, 2**63], [0.5, 2**63], [1e300, 2]):
        assert bind(Wide).check({"wide": [1], "any_": odd})["any_"].dtype == np.float64
        said = refused({"wide": odd, "any_": odd}, Wide)
        assert said == "wide: expected array of uint64, found array of float64"


@pytest.mark.parametrize(("fields", "said"), NO_ARRAYS, ids=lambda case: str(case)[:40])
def test_an_array_that_does_not_fit_is_refused_with_its_path(fields, said):
    assert refused(fields, Arrays).startswith(said)


def test_code_of_the_schema_may_refuse_and_may_fail():
    assert not bind(Picky).is_quick
    assert bind(Ask).is_quick
    assert refused({"a": 1}, Picky) == "(all): expected object, found object: one is taken"
    with pytest.raises(UserCodeError, match="schema Picky raised KeyError"):
        bind(Picky).check({"a": 2})


def test_a_value_nested_too_deeply_is_refused():
    fields: dict[str, Any] = {"words": "w"}
    for _ in range(5000):
        fields = {"words": "w", "tree": fields}
    assert refused(fields) == "a value is nested too deeply for schema Ask"


class Complex(pipeline.Schema):
    a: complex


class Lost(pipeline.Schema):
    a: Nowhere  # type: ignore[name-defined]  # noqa: F821  # that is the case


@pytest.mark.parametrize("schema", [int, "x", 5, list[int], dict, Any, Complex, Lost])
def test_an_invalid_schema_is_refused_before_the_start(schema):
    with pytest.raises(ConfigError, match="schema"):
        bind(schema)


# Answers ------------------------------------------------------------------------------------------


class Answer(pipeline.Schema):
    label: str
    prob: float
    box: list[float] = msgspec.field(default_factory=list)
    points: list[Point] = msgspec.field(default_factory=list)
    scores: np.ndarray | None = None


def test_a_valid_answer_is_unchanged_except_for_defaults():
    scores, box = np.ones(3), np.zeros(2)
    answer = {"label": "x", "prob": np.float32(0.5), "box": box, "scores": scores, "more": 1}
    checked = bind(Answer).check_answer(answer)
    assert checked == {**answer, "points": []}
    assert checked["box"] is box
    assert checked["scores"] is scores


def test_objects_and_arrays_of_one_number_become_plain():
    answer = {
        "label": "x",
        "prob": np.array([[0.5]], np.float32),
        "points": [Point(1.0), Point(2.0)],
    }
    checked = bind(Answer).check_answer(answer)
    assert checked["prob"] == np.float32(0.5)
    assert checked["prob"].shape == ()
    assert checked["points"] == [{"x": 1.0, "y": 0.0}, {"x": 2.0, "y": 0.0}]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"label": 1}, "label: expected str, found int 1"),
        ({"prob": "1"}, "prob: expected float, found str '1'"),
        ({"box": [1, "x"]}, "box[1]: expected float, found str 'x'"),
        ({"points": [{"y": 1}]}, "points[0].x: expected float, found nothing"),
        ({"prob": np.ones(2)}, "prob: expected float, found array"),
    ],
)
def test_an_answer_that_does_not_fit_is_an_error_of_its_type(more, said):
    with pytest.raises(PayloadTypeError) as caught:
        bind(Answer).check_answer({"label": "x", "prob": 0.5, **more})
    assert str(caught.value) == f"the answer is not a valid Answer: {said}"
    assert caught.value.code == 7000


# Properties ---------------------------------------------------------------------------------------

POINTS = st.builds(lambda x, y: {"x": x, "y": y}, st.floats(), st.floats())
FITS = st.fixed_dictionaries(
    {"words": st.text()},
    optional={
        "top": st.integers(1, 10),
        "inputs": st.lists(POINTS, max_size=4),
        "named": st.dictionaries(st.text(), POINTS, max_size=4),
        "pair": st.tuples(st.integers(), st.text()).map(list),
        "kind": st.sampled_from("ab"),
        "flag": st.booleans(),
    },
)
ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.text(), st.integers(), st.booleans(), st.lists(st.none()), st.just({})
)


@given(FITS)
def test_valid_fields_pass_unchanged(fields):
    seen = SAID.check(fields)
    back = msgspec.to_builtins(seen["inputs"])
    assert repr(back) == repr(
        [{k: float(v) for k, v in p.items()} for p in fields.get("inputs", [])]
    )
    assert {k: msgspec.to_builtins(v) for k, v in seen["named"].items()}.keys() == fields.get(
        "named", {}
    ).keys()
    assert seen["words"] == fields["words"]
    assert list(seen["pair"]) == fields.get("pair", [0, ""])


@given(FITS, ODD, st.data())
def test_an_error_has_the_path_of_any_invalid_value(fields, odd, data):
    """One value somewhere in it is replaced; the schema refuses it there, or it fits after all."""
    fields = {**fields, "inputs": [{"x": 1.0}, *fields.get("inputs", [])]}
    fields["named"] = {"k": {"x": 1.0}, **fields.get("named", {})}
    place = data.draw(st.integers(0, len(fields["inputs"]) - 1))
    key = data.draw(st.sampled_from(sorted(fields["named"])))
    which = data.draw(st.sampled_from(["words", "top", "inputs", "named", "flag"]))
    if which == "inputs":
        fields["inputs"][place] = {"x": odd}
        path = f"inputs[{place}].x: "
    elif which == "named":
        fields["named"][key] = {"x": odd}
        path = f"named.{key}.x: " if key.isidentifier() else "named["
    else:
        fields[which] = odd
        path = f"{which}: "
    text = ""
    try:
        SAID.check(fields)
    except PackageError as error:
        text = str(error)
    if text:
        assert text.startswith(path)
        assert "expected " in text
        assert "found " in text
    else:
        kinds = {"words": str, "top": int, "flag": bool}
        assert isinstance(odd, kinds.get(which, int | float))


def test_one_long_text_in_a_list_does_not_pad_the_others() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="number"):
            _of_lists([1, "a" * 5000, *[""] * 5000])
        assert _of_lists(["a" * 5000, *[""] * 5000]).dtype == object
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5_000_000
