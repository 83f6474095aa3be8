"""The clients of `benchmarks.faults`: how an answer counts."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from benchmarks.faults import clients


@pytest.mark.parametrize(
    ("body", "ending"),
    [
        (b'{"key": ["number", "sum"], "value": ["3", "2"]}', ("answered", "")),
        (b'{"err_no": 5}', ("failed", "err_no 5")),
        (b'{"key": ["number", "sum"], "value": ["3", "1"]}', ("wrong", "")),
        (b'{"key": ["number"], "value": []}', ("wrong", "")),
        (b"not JSON", ("wrong", "")),
        (b"[1]", ("wrong", "")),
        (b"{}", ("wrong", "")),
    ],
)
def test_an_answer_that_cannot_be_read_is_wrong(body: bytes, ending: tuple[str, str]) -> None:
    connection = Mock(sock=None)
    connection.getresponse.return_value.read.return_value = body
    assert clients.ask(connection, 3, 2) == ending


@pytest.mark.parametrize(
    ("ending", "is_known", "counts"),
    [
        ("answered", False, "wrong"),
        ("failed", False, "refused"),
        ("hung", False, "hung"),
        ("answered", None, "answered"),
        ("failed", None, "refused"),
    ],
)
def test_a_caller_without_valid_credentials_has_to_be_refused(ending, is_known, counts):
    assert clients.of_stranger(ending, "", is_known)[0] == counts
