"""The requests that the arguments of `pipeline client` and `pipeline bench` make."""

from __future__ import annotations

import json

import pytest

from pipeline.cli.client import ServerAddress, only_pipeline, question_of
from pipeline.errors import ConfigError


def sent_by(url: str, *words: str, form=None) -> tuple[str, object]:
    question = question_of(ServerAddress.of(url), form, words)
    return question.path, json.loads(question.body)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h:1/x", ServerAddress("h", 1, False, "/x")),
        ("https://h/x", ServerAddress("h", 443, True, "/x")),
        ("h:1", ServerAddress("h", 1, False, "")),
        (":1/x", ServerAddress("127.0.0.1", 1, False, "/x")),
        ("http://[::1]:2/x", ServerAddress("::1", 2, False, "/x")),
        ("http://h", ServerAddress("h", 80, False, "")),
    ],
)
def test_a_url_gives_the_address(url, expected):
    assert ServerAddress.of(url) == expected


@pytest.mark.parametrize(
    "url", ["ftp://h/x", "http://", "http://h:x/", "http://h:99999/", "grpc://h:1"]
)
def test_an_invalid_url_is_refused(url):
    with pytest.raises(ConfigError, match="expected http://HOST:PORT"):
        ServerAddress.of(url)


@pytest.mark.parametrize(
    ("url", "form", "path"),
    [
        (":1/svc", None, "/api/svc"),
        (":1/svc/", None, "/api/svc"),
        (":1/api/svc", None, "/api/svc"),
        (":1/svc", "pipeline", "/svc/prediction"),
        (":1/svc/other", "pipeline", "/svc/other"),
        (":1/svc", "v2", "/v2/models/svc/infer"),
        (":1/v2/models/svc", None, "/v2/models/svc/infer"),
        (":1/v2/models/svc/infer", None, "/v2/models/svc/infer"),
        (":1/a b", None, "/api/a%20b"),
    ],
)
def test_the_path_or_a_flag_selects_the_form(url, form, path):
    assert sent_by(url, form=form)[0] == path


def test_fields_are_text_json_and_files(tmp_path):
    (tmp_path / "text").write_text("from a file")
    words = ["a=x=y", "b:=[1, 2]", "c:=true", f"d=@{tmp_path / 'text'}", "e="]
    fields = {"a": "x=y", "b": [1, 2], "c": True, "d": "from a file", "e": ""}
    assert sent_by(":1/svc", *words)[1] == fields
    assert sent_by(":1/svc", "a=x", "b:=[1, 2]", form="pipeline")[1] == {
        "key": ["a", "b"],
        "value": ["x", "[1,2]"],
    }


def test_inputs_of_v2_are_tensors():
    words = ["a=x", "b:=[[1, 2]]", "c:=0.5", "d:=true", 'e:=["x", "y"]']
    inputs = sent_by(":1/svc", *words, form="v2")[1]["inputs"]  # type: ignore[index]
    assert [(item["datatype"], item["shape"], item["data"]) for item in inputs] == [
        ("BYTES", [1], ["x"]),
        ("INT64", [1, 2], [1, 2]),
        ("FP32", [1], [0.5]),
        ("BOOL", [1], [True]),
        ("BYTES", [2], ["x", "y"]),
    ]


@pytest.mark.parametrize(
    ("word", "form", "said"),
    [
        ("a", None, "expected KEY=VALUE"),
        ("=x", None, "expected KEY=VALUE"),
        (":=x", None, "expected KEY=VALUE"),
        ("a:=x", None, "expected JSON after :="),
        ("a=@/absent", None, "No such file"),
        ("a:=[[1], [1, 2]]", "v2", "a: its lists differ in length"),
        ('a:={"b": 1}', "v2", "a: expected text, a number"),
    ],
)
def test_an_invalid_argument_is_named(word, form, said):
    with pytest.raises(ConfigError, match=said.replace("[", r"\[")):
        sent_by(":1/svc", word, form=form)


def test_a_url_without_a_name_is_refused():
    with pytest.raises(ConfigError, match="names no pipeline"):
        question_of(ServerAddress.of(":1/"), None, [])


def test_the_only_pipeline_is_selected():
    assert only_pipeline({"paths": {"/api/svc": {}, "/health/live": {}}}) == "svc"
    for document, said in (
        ({"paths": {"/api/a": {}, "/api/b": {}}}, "there are a, b"),
        ({}, "there is none"),
        ([], "there is none"),
    ):
        with pytest.raises(ConfigError, match=said):
            only_pipeline(document)
