"""The clients of `benchmarks.faults`: how an answer counts."""

from __future__ import annotations

import http.client
import ssl
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
    ("ending", "was_known", "is_known", "counts"),
    [
        ("refused", True, True, ("failed", "why")),
        ("failed", True, True, ("failed", "why")),
        ("refused", True, None, ("refused", "")),
        ("answered", False, False, ("wrong", "a stranger was answered")),
        ("refused", False, False, ("refused", "")),
        ("failed", False, False, ("failed", "why")),
        ("hung", False, False, ("hung", "why")),
        ("answered", None, False, ("answered", "why")),
        ("failed", None, False, ("failed", "why")),
    ],
)
def test_a_caller_without_valid_credentials_has_to_be_refused(ending, was_known, is_known, counts):
    assert clients.counted(ending, "why", was_known, is_known) == counts


def alert() -> ssl.SSLError:
    return ssl.SSLError(1, "[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca (_ssl.c:2580)")


@pytest.mark.parametrize(
    ("raised", "ending"),
    [
        (alert(), "refused"),
        (ssl.SSLCertVerificationError(1, "expired"), "failed"),
        (ConnectionResetError(), "failed"),
        (http.client.RemoteDisconnected(), "failed"),
        (TimeoutError(), "hung"),
    ],
)
def test_only_an_alert_is_a_refusal_without_an_answer(raised, ending):
    connection = Mock(sock=None)
    connection.getresponse.side_effect = raised
    assert clients.ask(connection, 3, 2)[0] == ending


def test_an_alert_before_the_end_of_a_connection_is_a_refusal():
    connection = Mock()
    connection.request.side_effect = ssl.SSLEOFError(8, "")
    connection.sock.fileno.side_effect = ValueError
    connection.sock.recv.side_effect = alert()
    assert clients.ask(connection, 3, 2)[0] == "refused"


@pytest.mark.parametrize("status", [401, 403])
def test_a_status_is_a_refusal(status: int) -> None:
    connection = Mock(sock=None)
    connection.getresponse.return_value = Mock(status=status)
    assert clients.ask(connection, 3, 2) == ("refused", f"status {status}")
