"""Loads: what a file may say."""

from __future__ import annotations

import pytest

from pipeline.errors import ConfigError
from pipeline.tuning.load import read_load

_LINE = b'{"path": "/toys/prediction", "body": {"key": ["x"], "value": ["3"]}}\n'


def _file(tmp_path, content: bytes) -> str:
    path = tmp_path / "load.jsonl"
    path.write_bytes(content)
    return str(path)


def test_a_load_is_requests_a_line_each(tmp_path):
    recorded = b'{"path":"/v2/models/m/infer","body":[1],"at_once":7}\n'
    first, second = read_load(_file(tmp_path, _LINE + b"\n" + recorded))
    assert (first.path, first.at_once) == ("/toys/prediction", 0)
    assert (bytes(second.body), second.at_once) == (b"[1]", 7)
    head, _, body = second.as_bytes().partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v2/models/m/infer HTTP/1.1\r\n")
    assert b"content-length: 3" in head
    assert body == b"[1]"


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path):
    assert len(read_load(_file(tmp_path, _LINE + _LINE[:20]))) == 1


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "no request"),
        (_LINE + b"{\n", "load.jsonl:2: "),
        (b'{"path": "x", "body": 1}\n', "path"),
        (b'{"path": "/x y", "body": 1}\n', "path"),
        (b'{"path": "/x", "body": 1, "at": 1}\n', "`at`"),
    ],
)
def test_an_invalid_line_is_refused_with_its_number(tmp_path, content, told):
    with pytest.raises(ConfigError, match=told):
        read_load(_file(tmp_path, content))


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        read_load(tmp_path / "none")
