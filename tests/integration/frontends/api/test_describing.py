"""The document and the page that describe `/api` say what the server does."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest
from typed_api import Reply, typed_server

from pipeline.frontends.api.openapi import example_of
from pipeline.schema.bound import bind


@pytest.fixture(scope="module", params=["embedded", "gateway"])
def base(request):
    if request.param == "gateway":
        request.getfixturevalue("gateway_binary")
    with typed_server(edge=request.param) as server:
        yield f"http://127.0.0.1:{server.http_port}"


def ask(url: str, body: bytes | None = None, kind: str = "application/json", **headers: str) -> Any:
    """(status, headers, body)."""
    request = urllib.request.Request(url, body, {"content-type": kind, **headers})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def references_in(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references_in, value.values()))
    return set().union(*map(references_in, value)) if isinstance(value, list) else set()


def test_the_document_matches_the_server(base):
    status, headers, body = ask(f"{base}/openapi.json")
    assert status == 200
    assert headers["content-type"] == "application/json"
    document = json.loads(body)
    assert document["openapi"] == "3.1.0"
    components = document["components"]["schemas"]
    known = {f"#/components/schemas/{name}" for name in components}
    assert references_in(document) <= known
    post = document["paths"]["/api/says"]["post"]
    asked = post["requestBody"]["content"]["application/json"]
    assert asked["example"] == example_of(asked["schema"], components) == {"words": "well"}
    status, _, answer = ask(f"{base}/api/says", json.dumps(asked["example"]).encode())
    assert status == 200
    answered = bind(Reply).check(json.loads(answer))
    assert answered["said"] == "wellwell"
    status, _, answer = ask(f"{base}/api/says", b'{"words": "x", "marks": [1, "x"]}')
    assert status == 400
    said = json.loads(answer)["error"]
    assert said["message"] == "marks[1]: expected int, found str 'x'"
    error = components["Error"]["properties"]["error"]
    assert set(said) == set(error["properties"])


def test_the_document_passes_a_validator(base):
    validator = pytest.importorskip("openapi_spec_validator")
    validator.validate(json.loads(ask(f"{base}/openapi.json")[2]))


def test_fields_of_a_form_are_text_that_the_schema_converts(base):
    parts = {"words": "x", "times": "3", "loud": "true", "marks": "[1]"}
    body = b"".join(
        f'--b\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in parts.items()
    )
    body += b'--b\r\ncontent-disposition: form-data; name="picture"; filename="p.png"\r\n'
    body += b"content-type: image/png\r\n\r\n\x89PNG\r\n--b--\r\n"
    status, _, answer = ask(f"{base}/api/says", body, "multipart/form-data; boundary=b")
    assert (status, json.loads(answer)["said"]) == (200, "XXX!"), answer
    assert json.loads(answer)["lines"]
    status, _, answer = ask(f"{base}/api/says?key=words", b"hm", "text/plain")
    assert json.loads(answer)["said"] == "hmhm"


def test_the_page_loads_only_its_own_files(base):
    status, headers, body = ask(f"{base}/docs")
    assert status == 200
    assert headers["content-type"] == "text/html; charset=utf-8"
    policy = headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    text = body.decode()
    assert "http://" not in text.replace("http://127", "")
    assert "https://" not in text
    for name in ("docs.css", "docs.js", "docs_form.js", "docs_code.js"):
        status, headers, body = ask(f"{base}/{name}")
        assert status == 200
        assert body
        status, _, body = ask(f"{base}/{name}", **{"if-none-match": headers["etag"]})
        assert (status, body) == (304, b"")


@pytest.mark.parametrize("path", ["/docs", "/openapi.json"])
def test_other_methods_are_refused(base, path):
    status, headers, body = ask(f"{base}{path}", b"{}")
    assert status == 405
    assert headers["allow"] == "GET, HEAD"
    assert "error" in json.loads(body)


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/docs.js"])
def test_head_is_answered_as_get_without_a_body(base, path):
    reported = {}
    for method in ("GET", "HEAD"):
        with urllib.request.urlopen(
            urllib.request.Request(f"{base}{path}", method=method)
        ) as answer:
            headers = {name.lower(): value for name, value in answer.headers.items()}
            headers.pop("date")
            reported[method] = (answer.status, headers, answer.read())
    status, headers, body = reported["GET"]
    assert headers["content-length"] == str(len(body))
    assert body
    assert reported["HEAD"] == (status, headers, b"")


def test_a_pipeline_that_streams_is_described_so():
    with typed_server(streams=True) as server:
        _, _, body = ask(f"http://127.0.0.1:{server.http_port}/openapi.json")
        post = json.loads(body)["paths"]["/api/says"]["post"]
        assert post["x-streams"] is True
        assert "text/event-stream" in post["responses"]["200"]["content"]
