"""The clients of `benchmarks.faults`: how an answer counts."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from benchmarks import faults


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
    connection = Mock()
    connection.getresponse.return_value.read.return_value = body
    assert faults.ask(connection, 3, 2) == ending
