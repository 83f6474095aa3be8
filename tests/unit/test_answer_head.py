from __future__ import annotations

import logging
import re
from http import HTTPStatus
from pathlib import Path

import grpc
import pytest

from pipeline import Answer, ProductError
from pipeline.answer_head import (
    GRPC_STATUSES,
    AnswerHead,
    grpc_status_for,
    http_status_for,
    is_reserved,
)
from pipeline.engine.product_errors import product_error

ROOT = Path(__file__).parents[2]


def _words(name):
    return name.replace("_", "").lower()


def test_errors_and_answers_keep_their_status_and_headers():
    error = ProductError(51, "no such face", status=404, headers={"X-Face": "12"})
    assert product_error(error).head == AnswerHead(404, (("x-face", "12"),))
    assert Answer({}, status=201, headers={"Location": "/f/1"}).head == AnswerHead(
        201, (("location", "/f/1"),)
    )
    assert Answer({}).head is None
    assert product_error(ProductError(51)).head is None


@pytest.mark.parametrize("status", [0, 200, 399, 600, "404", 404.0, True])
def test_an_error_has_a_status_of_errors(status):
    with pytest.raises(ValueError, match=r"^status is .*: give a number from 400 to 599$"):
        ProductError(51, status=status)


@pytest.mark.parametrize("status", [100, 199, 204, 205, 300, 404, "201"])
def test_an_answer_has_a_status_of_answers_with_a_body(status):
    with pytest.raises(ValueError, match=r"^status is .*: give a number from 200 to 299"):
        Answer({}, status=status)


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"Connection": "close"}, "its connection's"),
        ({"transfer-encoding": "chunked"}, "its connection's"),
        ({"Content-Length": "1"}, "the server's own"),
        ({"content-type": "text/html"}, "the server's own"),
        ({"X-Pipeline-Caller": "root"}, "the server's own"),
        ({"pipeline-err-no": "1"}, "the server's own"),
        ({"grpc-status": "0"}, "the server's own"),
        ({"access-control-allow-origin": "*"}, "the server's own"),
        ({"key-bin": "x"}, "the server's own"),
        ({"bad name": "x"}, "a name has letters"),
        ({"": "x"}, "a name has letters"),
        ({"x\r\ny": "x"}, "a name has letters"),
        ({"x": "a\r\nset-cookie: b"}, "printable ASCII"),
        ({"x": "gr\u00fcn"}, "printable ASCII"),
        ({"x": " a"}, "printable ASCII"),
        ({"x": ""}, "printable ASCII"),
        ({"x": 1}, "as text"),
        ({1: "x"}, "as text"),
        ({f"x{n}": "1" for n in range(33)}, "at most 32"),
        ({"x": "y" * 4096}, "with 4096 characters"),
        ([("x", "1")], "give a dict"),
    ],
)
def test_headers_that_no_answer_may_have_are_refused(headers, words):
    for made in (lambda: ProductError(51, headers=headers), lambda: Answer({}, headers=headers)):
        with pytest.raises(ValueError, match=words):
            made()


def test_attributes_set_on_an_error_count_like_arguments():
    error = ProductError(51, "slow down")
    error.status, error.headers = 429, {"retry-after": "5"}
    assert product_error(error).head == AnswerHead(429, (("retry-after", "5"),))


def test_an_older_class_with_its_own_status_is_answered_as_before(caplog):
    class Old(ProductError):
        status = "failed"

    with caplog.at_level(logging.WARNING):
        error = product_error(Old(51, "text"))
        product_error(Old(52, "again"))
    assert caplog.text.count("is answered without") == 1
    assert (error.code, str(error), error.head) == (51, "text", None)
    assert (
        "Old is answered without its status and headers: ValueError: status is 'failed'"
        in caplog.text
    )


def test_each_status_has_one_of_grpcs():
    for status in range(400, 600):
        assert hasattr(grpc.StatusCode, grpc_status_for(status))
    assert (grpc_status_for(422), grpc_status_for(502)) == ("INVALID_ARGUMENT", "INTERNAL")
    for name in GRPC_STATUSES.values():
        assert grpc_status_for(http_status_for(name)) == name


def test_the_gateway_has_the_same_statuses_and_the_same_reserved_headers():
    internal = ROOT / "pipeline/gateway/internal"
    kinds = dict(
        re.findall(r'"([:a-z-]+)": (\w+)', (internal / "reserved/reserved.go").read_text())
    )
    (listed,) = re.findall(
        r"ofAnswers = \[\]string\{(.*)\}", (internal / "upstream/head.go").read_text()
    )
    theirs = {name for name, kind in kinds.items() if kind in ("Connection", "Message", "Gateway")}
    names = theirs - {":authority"} | set(re.findall(r'"([a-z-]+)"', listed))
    assert all(map(is_reserved, names))
    failures = (internal / "failure/failure.go").read_text()
    pairs = re.findall(r"http\.Status(\w+):\s+codes\.(\w+),", failures)
    assert pairs
    statuses = HTTPStatus.__members__  # with the names of Python before 3.13
    for status, code in pairs:
        (name,) = (name for name in statuses if _words(name) == status.lower())
        assert _words(grpc_status_for(statuses[name])) == code.lower()
    own = "connection keep-alive te trailer upgrade content-length content-type date host server"
    assert set(own.split()) <= names
