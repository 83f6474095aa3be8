"""Errors below `/v1` and `/api` have the form of their API, wherever they are made."""

from __future__ import annotations

from typing import Any

import pytest
from doubles import http, server_for
from openai_models import Says, openai_server

from pipeline import ProductError
from pipeline.errors import OverloadedError
from pipeline.frontends.api import routes as api_routes
from pipeline.frontends.openai.answers import Choice
from pipeline.frontends.openai.responses import KeptResponses

OPENAI = {"message", "type", "param", "code"}
ASKED = {"model": "says", "prompt": "a", "messages": [{"role": "user", "content": "a"}]}
PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/none", "/v1/messages")


class Busy(Says):
    """Raises what the prompt says."""

    def answer(self, fields: Any) -> Any:
        if fields["prompt"].startswith("busy "):
            raise OverloadedError("busy", float(fields["prompt"][5:]))  # type: ignore[arg-type]
        if fields["prompt"].startswith("later "):
            headers = {"Retry-After": fields["prompt"][6:], "x-more": "1"}
            raise ProductError(51, "later", status=503, headers=headers)
        return super().answer(fields)


def fails(*args: Any, **kwargs: Any) -> Any:
    """A bug of this library."""
    raise RuntimeError("a bug")


@pytest.mark.parametrize("path", PATHS)
def test_an_invalid_timeout_is_refused_in_the_form_of_the_api(path):
    method = "GET" if path == "/v1/models" else "POST"
    with openai_server(options={}) as server:
        status, _, answer = http(server, method, path, ASKED, {"grpc-timeout": "soon"})
        assert (status, "Grpc-Timeout" in answer["error"]["message"]) == (400, True)
        if path == "/v1/messages":
            assert (answer["type"], set(answer["error"])) == ("error", OPENAI)
        else:
            assert set(answer["error"]) == OPENAI
        status, _, answer = http(server, "POST", "/api/says", ASKED, {"grpc-timeout": "soon"})
        assert (status, set(answer["error"])) == (400, {"code", "name", "message", "op"})


def test_errors_of_a_pipeline_called_as_a_page_have_one_form():
    with server_for(Says(), name="docs") as server:
        answers = [
            http(server, "POST", "/docs/says", {"key": 5}),
            http(server, "POST", "/docs/says", {}, {"grpc-timeout": "soon"}),
        ]
    assert [status for status, _, _ in answers] == [400, 400]
    first, second = (set(answer) for _, _, answer in answers)
    assert first == second


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"n": 2}])
def test_an_unexpected_exception_has_the_form_of_the_api_and_is_logged(more, monkeypatch, capfd):
    monkeypatch.setattr(Choice, "take", fails)
    monkeypatch.setattr(KeptResponses, "find", fails)
    monkeypatch.setattr(api_routes, "quick_object", fails)
    with openai_server(options={"models": {"says": {}}}) as server:
        paths = ["/v1/completions", "/v1/chat/completions"]
        answers = [http(server, "POST", path, {**ASKED, **more}) for path in paths]
        answers.append(http(server, "GET", "/v1/responses/resp_1"))
        for status, _, answer in answers:
            assert (status, set(answer["error"])) == (500, OPENAI)
            assert answer["error"]["message"] == "internal error of the server"
            assert answer["error"]["type"] == "server_error"
        status, _, answer = http(server, "POST", "/v1/messages", {**ASKED, "max_tokens": 5})
        assert (status, answer["error"]["type"]) == (500, "api_error")
        status, _, answer = http(server, "POST", "/api/says", ASKED)
        assert (status, answer["error"]["message"]) == (500, "internal error of the server")
    assert "GET /v1/responses/resp_1 failed" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("prompt", "after"),
    [
        ("busy 0", "1"),
        ("busy 3600", "60"),
        ("busy 7", "7"),
        ("later 0.2", "1"),
        ("later 6.5", "7"),
        ("later 3600", "60"),
        ("later inf", None),
        ("later Wed, 21 Oct 2099 07:28:00 GMT", "60"),
        ("later soon", None),
        ("later Fri, 31 Dec 9999 23:59:59 -2300", None),
    ],
)
@pytest.mark.parametrize("more", [{}, {"stream": True}])
def test_retry_after_is_whole_seconds_that_clients_obey(prompt, after, more):
    with openai_server(Busy(), options={}) as server:
        status, headers, answer = http(
            server, "POST", "/v1/completions", {"model": "says", "prompt": prompt, **more}
        )
    assert (status, set(answer["error"])) == (429 if "busy" in prompt else 503, OPENAI)
    assert headers.get("retry-after") == after
    assert ("x-more" in headers) == ("later" in prompt)
