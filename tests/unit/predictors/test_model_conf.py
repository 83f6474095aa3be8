"""Client configurations: read with mistakes said in their place, and written for a model."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InitError
from pipeline.predictors.base import TensorSpec
from pipeline.predictors.model_conf import (
    CLIENT_FILE,
    SERVER_FILE,
    ModelConf,
    Var,
    conf_of,
    model_conf_text,
    read_model_conf,
    write_client_conf,
)
from pipeline.predictors.signature import ModelSignature
from pipeline.proto.brpc.general_model import BrpcElemType
from pipeline.proto.general_model_config_pb2 import FeedVar, FetchVar, GeneralModelConfig

IMDB = """\
feed_var {
  name: "words"
  alias_name: "ids"
  is_lod_tensor: true
  feed_type: 0
  shape: -1
}
fetch_var {
  name: "fc_2.tmp_2"
  alias_name: "prediction"
  is_lod_tensor: false
  fetch_type: 1
  shape: 2
}
"""
OCR = """\
feed_var {
  name: "x"
  alias_name: "x"
  is_lod_tensor: false
  feed_type: 1
  shape: 3
  shape: 640
  shape: 640
}
fetch_var { name: "save_infer_model/scale_0.tmp_1" alias_name: "maps" fetch_type: 21 }
"""
WORDS = Var("words", "ids", is_lod=True, elem_type=0, shape=(-1,))
PREDICTION = Var("fc_2.tmp_2", "prediction", is_lod=False, elem_type=1, shape=(2,))


def written(folder: Path, text: str, name: str = CLIENT_FILE) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def test_a_configuration_is_read_from_its_file_or_its_folder(tmp_path: Path):
    file = written(tmp_path / "imdb", IMDB)
    expected = ModelConf(feeds=(WORDS,), fetches=(PREDICTION,))
    assert read_model_conf(file) == expected
    assert read_model_conf(file.parent) == expected
    assert read_model_conf([file]) == expected


def test_a_servers_configuration_is_found_in_its_folder(tmp_path: Path):
    written(tmp_path, OCR, CLIENT_FILE)
    written(tmp_path, IMDB, SERVER_FILE)
    assert read_model_conf(tmp_path, SERVER_FILE).feeds == (WORDS,)


def test_models_in_a_row_have_the_first_feeds_and_the_last_fetches(tmp_path: Path):
    paths = [written(tmp_path / "a", OCR), written(tmp_path / "b", OCR), tmp_path / "c"]
    written(tmp_path / "c", IMDB)
    conf = read_model_conf(paths)
    assert [var.alias for var in conf.feeds] == ["x"]
    assert conf.fetches == (PREDICTION,)


def test_the_shape_is_read_and_a_fetch_type_is_not_checked(tmp_path: Path):
    conf = read_model_conf(written(tmp_path, OCR))
    assert conf.feeds[0].shape == (3, 640, 640)
    assert conf.fetches[0].elem_type == 21


def test_a_variable_without_an_alias_is_called_by_its_name(tmp_path: Path):
    file = written(tmp_path, 'feed_var { name: "x" } fetch_var { name: "y" }')
    conf = read_model_conf(file)
    assert (conf.feeds[0].alias, conf.fetches[0].alias) == ("x", "y")


def test_a_byte_order_mark_and_comments_are_accepted(tmp_path: Path):
    file = written(tmp_path, "\ufeff# exported by hand\n" + IMDB)
    assert read_model_conf(file).feeds == (WORDS,)


NAMES = st.text(min_size=1)


@given(
    st.lists(st.builds(FeedVar, name=NAMES, alias_name=NAMES, feed_type=st.just(20)), min_size=1),
    st.builds(FetchVar, name=NAMES, alias_name=NAMES, shape=st.lists(st.integers(-1, 9))),
)
def test_a_text_written_by_protobuf_is_parsed(
    tmp_path_factory: pytest.TempPathFactory, feeds: list[FeedVar], fetch: FetchVar
):
    for number, feed in enumerate(feeds):
        feed.alias_name += str(number)
    config = GeneralModelConfig(feed_var=feeds, fetch_var=[fetch])
    text = text_format.MessageToString(config, as_utf8=True)
    conf = read_model_conf(written(tmp_path_factory.getbasetemp() / "written", text))
    assert [(var.name, var.alias) for var in conf.feeds] == [
        (feed.name, feed.alias_name) for feed in feeds
    ]
    assert conf.fetches[0].shape == tuple(fetch.shape)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (IMDB.replace("is_lod_tensor: true", "is_lod_tensr: true"), ":4:3 .*is_lod_tensr"),
        (IMDB.replace("feed_type: 0", "feed_type: none"), ":5:"),
        (IMDB.replace("shape: -1", "shape: 99999999999"), ":6:"),
        (IMDB[:-4], r":1[0-9]:"),
        ("<html>", ":1:1 "),
        ("", "has no feed_var"),
        ('feed_var { name: "x" }', "has no fetch_var"),
        ('feed_var { name: "x" }\nfetch_var { }', "fetch_var number 1 has neither name nor"),
        ('feed_var { name: "x" feed_type: 12 }', r"feed_var number 1 \('x'\): elem_type 12 is"),
        (IMDB + IMDB, "feed_var number 2 has the alias_name 'ids' of one before it"),
    ],
)
def test_a_broken_configuration_is_refused_with_file_and_place(tmp_path: Path, text: str, why: str):
    with pytest.raises(InitError, match=f"{CLIENT_FILE}.*{why}"):
        read_model_conf(written(tmp_path, text))


def test_a_binary_file_is_refused(tmp_path: Path):
    (tmp_path / CLIENT_FILE).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InitError, match="cannot be read"):
        read_model_conf(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(InitError, match=f"{tmp_path}/nowhere is not there"):
        read_model_conf(tmp_path / "nowhere")
    with pytest.raises(InitError, match=f"{tmp_path}/{SERVER_FILE} is not there"):
        read_model_conf(tmp_path, SERVER_FILE)
    with pytest.raises(InitError, match=f"path of a {CLIENT_FILE}"):
        read_model_conf([])


@given(st.text(max_size=60) | st.text("feedvartch_{}: \n\"'x10\\", max_size=60))
def test_any_invalid_file_raises_an_init_error(tmp_path_factory: pytest.TempPathFactory, text: str):
    file = tmp_path_factory.getbasetemp() / "any.prototxt"
    file.write_text(text, encoding="utf-8", newline="")
    with pytest.raises(InitError):
        read_model_conf(file)


# Writing --------------------------------------------------------------------------------------

INT32S = st.integers(-(2**31), 2**31 - 1)


def variables(elem_types: st.SearchStrategy[int]) -> st.SearchStrategy[tuple[Var, ...]]:
    var = st.builds(
        Var, st.text(), NAMES, st.booleans(), elem_types, st.lists(INT32S, max_size=4).map(tuple)
    )
    return st.lists(var, min_size=1, max_size=4, unique_by=lambda var: var.alias).map(tuple)


@given(st.builds(ModelConf, variables(st.sampled_from(BrpcElemType)), variables(INT32S)))
def test_a_written_configuration_is_parsed_unchanged(
    tmp_path_factory: pytest.TempPathFactory, conf: ModelConf
):
    file = tmp_path_factory.getbasetemp() / "written_by_us.prototxt"
    file.write_text(model_conf_text(conf), encoding="utf-8")
    assert read_model_conf(file) == conf


def spec(name: str, kind: object, *shape: int | str | None) -> TensorSpec:
    return TensorSpec(name, np.dtype(kind), shape or None)


def test_a_model_without_a_configuration_is_described_by_its_signature():
    signature = ModelSignature(
        "m",
        [spec("image", "f4", "n", 3, None, "w"), spec("text", object, None), spec("any", "?")],
        [spec("ids", "i8", None, 5), spec("half", ml_dtypes.bfloat16, 1)],
    )
    assert conf_of(signature) == ModelConf(
        feeds=(
            Var("image", "image", False, BrpcElemType.FP32, (3, -1, -1)),
            Var("text", "text", False, BrpcElemType.STRING, ()),
            Var("any", "any", False, BrpcElemType.BOOL, ()),
        ),
        fetches=(
            Var("ids", "ids", False, BrpcElemType.INT64, (5,)),
            Var("half", "half", False, BrpcElemType.BF16, ()),
        ),
    )


@pytest.mark.parametrize("own", [True, False], ids=["the model's own names", "aliases"])
def test_names_and_lod_come_from_the_configuration_and_types_from_the_model(own: bool):
    given = ModelConf(
        feeds=(Var("words", "ids", True, BrpcElemType.FP32, (7,)), Var("b", "bb", False, 0, (9,))),
        fetches=(PREDICTION, Var("other", "another", False, 1, ())),
    )
    word, result = ("words", "fc_2.tmp_2") if own else ("ids", "prediction")
    signature = ModelSignature(
        "m", [spec("b", "i4"), spec(word, "i8", None, 1)], [spec(result, "f8", None, 4)]
    )
    assert conf_of(signature, given) == ModelConf(
        feeds=(
            Var("b", "bb", False, BrpcElemType.INT32, (9,)),
            Var("words", "ids", True, BrpcElemType.INT64, (1,)),
        ),
        fetches=(Var("fc_2.tmp_2", "prediction", False, BrpcElemType.FP64, (4,)),),
    )


def test_only_answered_outputs_are_described():
    outputs = [spec(name, "f4") for name in ("y", "the_y", "z", "x")]
    signature = ModelSignature("m", [spec("x", "f4")], outputs, ["z", "y", "z", "the_y"])
    given = ModelConf((), (Var("y", "the_y", False, 1, ()), Var("x", "the_x", False, 1, ())))
    assert [var.alias for var in conf_of(signature, given).fetches] == ["z", "the_y"]


def test_the_type_of_an_answer_is_the_one_on_the_wire():
    outputs = [spec("u2", "u2"), spec("u4", "u4"), spec("u8", "u8")]
    conf = conf_of(ModelSignature("m", [spec("x", "f4")], outputs))
    assert [var.elem_type for var in conf.fetches] == [
        BrpcElemType.INT32,
        BrpcElemType.INT64,
        BrpcElemType.INT64,
    ]


@pytest.mark.parametrize(
    ("signature", "text"),
    [
        (ModelSignature("m", [spec("x", "u4")], []), "the input 'x' is uint32, "),
        (
            ModelSignature("m", [], [spec("y", ml_dtypes.float8_e5m2)]),
            "the output 'y' is float8_e5m2, ",
        ),
    ],
    ids=["input", "output"],
)
def test_a_type_that_the_service_cannot_carry_is_named(signature: ModelSignature, text: str):
    with pytest.raises(InitError, match=f"^\\[m\\] {text}"):
        conf_of(signature)


def test_a_file_is_replaced_without_leftovers(tmp_path: Path):
    for alias in ("old", "new"):
        conf = ModelConf((Var("x", alias, False, 1, ()),), (PREDICTION,))
        write_client_conf(tmp_path, conf)
        assert read_model_conf(tmp_path) == conf
        assert [file.name for file in tmp_path.iterdir()] == [CLIENT_FILE]


def test_an_unwritable_file_is_named_without_leftovers(tmp_path: Path):
    conf = ModelConf((WORDS,), (PREDICTION,))
    with pytest.raises(InitError, match=f"no/{CLIENT_FILE} cannot be written: "):
        write_client_conf(tmp_path / "no", conf)
    (tmp_path / CLIENT_FILE).mkdir()
    with pytest.raises(InitError, match="cannot be written"):
        write_client_conf(tmp_path, conf)
    assert [file.name for file in tmp_path.iterdir()] == [CLIENT_FILE]
