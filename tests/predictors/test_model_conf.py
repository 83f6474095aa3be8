"""Client configurations: what Paddle Serving writes is read, mistakes are said with their place."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InitError
from pipeline.predictors.model_conf import (
    CLIENT_FILE,
    SERVER_FILE,
    ModelConf,
    Var,
    read_model_conf,
)
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


def test_a_server_s_configuration_is_found_in_its_folder(tmp_path: Path):
    written(tmp_path, OCR, CLIENT_FILE)
    written(tmp_path, IMDB, SERVER_FILE)
    assert read_model_conf(tmp_path, SERVER_FILE).feeds == (WORDS,)


def test_models_in_a_row_have_the_feeds_of_the_first_and_the_fetches_of_the_last(tmp_path: Path):
    paths = [written(tmp_path / "a", OCR), written(tmp_path / "b", OCR), tmp_path / "c"]
    written(tmp_path / "c", IMDB)
    conf = read_model_conf(paths)
    assert [var.alias for var in conf.feeds] == ["x"]
    assert conf.fetches == (PREDICTION,)


def test_the_shape_is_kept_and_a_fetch_type_is_not_judged(tmp_path: Path):
    conf = read_model_conf(written(tmp_path, OCR))
    assert conf.feeds[0].shape == (3, 640, 640)
    assert conf.fetches[0].elem_type == 21


def test_a_variable_without_an_alias_is_called_by_its_name(tmp_path: Path):
    file = written(tmp_path, 'feed_var { name: "x" } fetch_var { name: "y" }')
    conf = read_model_conf(file)
    assert (conf.feeds[0].alias, conf.fetches[0].alias) == ("x", "y")


def test_a_byte_order_mark_and_comments_are_no_trouble(tmp_path: Path):
    file = written(tmp_path, "\ufeff# exported by hand\n" + IMDB)
    assert read_model_conf(file).feeds == (WORDS,)


NAMES = st.text(min_size=1)


@given(
    st.lists(st.builds(FeedVar, name=NAMES, alias_name=NAMES, feed_type=st.just(20)), min_size=1),
    st.builds(FetchVar, name=NAMES, alias_name=NAMES, shape=st.lists(st.integers(-1, 9))),
)
def test_what_protobuf_writes_is_read(
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


def test_a_file_that_is_no_text_is_refused(tmp_path: Path):
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
def test_whatever_a_file_holds_nothing_but_an_init_error_comes(
    tmp_path_factory: pytest.TempPathFactory, text: str
):
    file = tmp_path_factory.getbasetemp() / "any.prototxt"
    file.write_text(text, encoding="utf-8", newline="")
    with pytest.raises(InitError):
        read_model_conf(file)
