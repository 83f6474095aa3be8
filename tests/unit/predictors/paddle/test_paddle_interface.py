"""Names, aliases, types and offsets of a Paddle model."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from pipeline.errors import InitError, InputError
from pipeline.predictors.base import TEXT
from pipeline.predictors.model_conf import ModelConf, Var
from pipeline.predictors.paddle.interface import interface, offsets
from pipeline.predictors.paddle.program import Program, ProgramVar

FLOAT = np.dtype(np.float32)


def program(**variables):
    return Program(variables, {})


TWO = program(
    x=ProgramVar(FLOAT, (None, 2)), y=ProgramVar(FLOAT, (None, 1)), z=ProgramVar(FLOAT, (None, 1))
)


def var(name, alias=None, is_lod=False):
    return Var(name, alias or name, is_lod, 1, (640, 640))


def conf(feeds, fetches):
    return ModelConf(tuple(feeds), tuple(fetches))


def test_without_a_prototxt_the_names_are_the_model_s():
    face = interface("m", TWO, ["x"], ["y", "z"])
    assert (face.signature.feed_names, face.signature.fetch_names) == (("x",), ("y", "z"))
    assert not face.wants_lod


def test_a_prototxt_gives_aliases_and_the_program_gives_shapes():
    given = conf([var("x", "image")], [var("z", "score")])
    face = interface("m", TWO, ["x"], ["y", "z"], given)
    assert (face.signature.feed_names, face.signature.fetch_names) == (("image",), ("score",))
    assert face.signature.inputs[0].shape == (None, 2)
    assert face.feeds == {"image": "x"}
    assert face.fetches == {"score": "z", "y": "y", "z": "z"}
    assert list(face.signature.fetch(["z", "y"])) == ["z", "y"]


def test_the_fetch_list_may_have_aliases_or_the_model_s_names():
    given = conf([var("x")], [var("y", "a"), var("z", "b")])
    for names in (["b"], ["z", "a"]):
        face = interface("m", TWO, ["x"], ["y", "z"], given, names)
        assert face.signature.fetch_names == tuple(names)
    with pytest.raises(InitError, match=r"fetch_list.*'price'"):
        interface("m", TWO, ["x"], ["y", "z"], given, ["price"])


def test_a_feed_with_the_models_names_is_copied_to_aliases():
    face = interface("m", TWO, ["x"], ["y"], conf([var("x", "image")], [var("y")]))
    feed = {"x": 1, "x.lod": 2}
    assert face.by_alias(feed)["image"] == 1
    assert face.by_alias(feed)["image.lod"] == 2
    assert feed == {"x": 1, "x.lod": 2}
    by_alias = {"image": 1, "x": 2}
    assert face.by_alias(by_alias) is by_alias
    assert face.by_alias("nonsense") == "nonsense"


@pytest.mark.parametrize(
    "given",
    [
        conf([var("image")], [var("y")]),
        conf([var("x"), var("more")], [var("y")]),
        conf([var("x")], [var("other"), var("y")]),
        conf([var("x")], [var("a"), var("b")]),
    ],
    ids=["feed", "feeds", "fetch", "fetches"],
)
def test_the_prototxt_of_another_model_is_refused(given):
    with pytest.raises(InitError, match=r"serving_server_conf\.prototxt: (feed|fetch)_var names"):
        interface("m", TWO, ["x"], ["y", "z"], given)


def test_an_only_output_that_older_exporters_named_otherwise_is_meant(caplog):
    face = interface("m", TWO, ["x"], ["y"], conf([var("x")], [var("scale_0.tmp_0", "score")]))
    assert face.fetches["score"] == "y"
    assert "the model's output is 'y' and not 'scale_0.tmp_0'" in caplog.text


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.int16, np.complex64])
def test_types_that_no_handle_carries_need_tensors(dtype):
    odd = ProgramVar(np.dtype(dtype), ())
    for names in (["x"], ["y"]), (["y"], ["x"]):
        assert interface("m", program(x=odd, y=ProgramVar(FLOAT, ())), *names).needs_tensors
    others = {"sequences": ProgramVar(FLOAT, (None,), True), "text": ProgramVar(TEXT, (None,))}
    for name, other in others.items():
        with pytest.raises(InitError, match=f"'x' is {np.dtype(dtype)}.*neither text nor offsets"):
            interface("m", program(x=odd, **{name: other}), ["x", name], [])


@pytest.mark.parametrize("variables", [{}, {"x": ProgramVar(None, ())}], ids=["unnamed", "new"])
def test_an_input_of_an_unknown_type_is_refused(variables):
    with pytest.raises(InitError, match="a type that numpy has no name for"):
        interface("m", program(**variables), ["x"], [])


def test_an_output_of_an_unknown_type_may_be_fetched():
    face = interface("m", program(), [], ["y"])
    assert face.signature.outputs[0].shape is None


def test_sequences_are_detected_in_the_program_or_the_prototxt():
    sequences = program(x=ProgramVar(FLOAT, (None, 2), True))
    assert interface("m", sequences, ["x"], []).wants_lod
    given = conf([var("x", is_lod=True)], [var("y")])
    assert interface("m", TWO, ["x"], ["y"], given).wants_lod


@pytest.mark.parametrize("value", [[0, 2, 2, 5], np.array([0, 2, 2, 5], np.uint8), [[0, 2, 2, 5]]])
def test_offsets_become_one_level(value):
    assert offsets("m", "x", value, 5) == [[0, 2, 2, 5]]


@pytest.mark.parametrize(
    "value", [[], [0], [0, 4], [1, 5], [0, 6, 5], [[0, 1], [0]], [0.0, 5.0], "05", None]
)
def test_offsets_that_paddle_would_read_beyond_the_array_with_are_refused(value):
    with pytest.raises(InputError, match=r"'x\.lod' must be the starts"):
        offsets("m", "x", value, 5)
