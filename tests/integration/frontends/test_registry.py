"""Frontends that a server is given from outside: named in config.yml, found in the registry."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plugins
import pytest

from pipeline import Op, PipelineServer, RequestOp, ResponseOp
from pipeline.config import registry
from pipeline.config.schema import load_config
from pipeline.errors import ConfigError
from pipeline.frontends.base import FrontendContext
from pipeline.frontends.http.routes import WebRequest, WebResponse


def add_hello(context: FrontendContext, options: None) -> None:
    """Add `GET /hello` to the HTTP port; there is nothing to listen on."""

    class Hello:
        def endpoint(self, request: WebRequest) -> Any:
            return self.answer if request.path == "/hello" else None

        async def answer(self, request: WebRequest) -> WebResponse:
            return WebResponse(body=f'"I am {context.name}"'.encode())

    context.routes.append(Hello())


class ShoutOp(Op):
    def preprocess(self, input_dicts: Any, data_id: int, log_id: int) -> Any:
        ((_, fed),) = input_dicts.items()
        return {"line": str(fed["line"]).upper()}, False, None, ""


@pytest.fixture(autouse=True)
def registered_frontends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install one, of the package of plug-ins, and register the other, as a script does."""
    for path in plugins.install(tmp_path):
        monkeypatch.syspath_prepend(path)
    registry._plug_ins.cache_clear()
    monkeypatch.setattr(registry, "_registered", {})
    registry.register("frontends", "hello", add_hello)
    yield
    registry._plug_ins.cache_clear()


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[PipelineServer]:
    server = PipelineServer("svc")
    server.set_response_op(ResponseOp([ShoutOp("shout", [RequestOp()])]))
    keys = {"rpc_port": 0, "http_port": 0, "frontends": request.param}
    server.prepare_server(yml_dict=keys)
    with server:
        yield server


@pytest.mark.parametrize("server", [{"lines": {"end": "!"}}], indirect=True)
def test_a_server_opens_a_frontend_from_outside_with_its_options(server: PipelineServer) -> None:
    port = server._service._frontends.ports["lines"]
    assert f"lines on port {port}" in server._service.describe()
    with socket.create_connection(("127.0.0.1", port)) as caller, caller.makefile("rw") as lines:
        for word in ("one", "two"):
            lines.write(f"{word}\n")
            lines.flush()
            assert lines.readline() == f"{word.upper()}!\n"


@pytest.mark.parametrize("server", [{"hello": None}], indirect=True)
def test_a_frontend_may_add_routes_to_the_http_port(server: PipelineServer) -> None:
    with socket.create_connection(("127.0.0.1", server.http_port)) as caller:
        caller.sendall(b"GET /hello HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        with caller.makefile("rb") as answer:
            assert answer.read().endswith(b'"I am svc"')
    assert "hello" not in server._service.describe()


@pytest.mark.parametrize(
    ("frontends", "told"),
    [
        ({"lines": {"port": -1}}, "frontends.lines.port: expected int >= 0, found -1 (int)"),
        ({"line": {}}, "frontends.line: frontends: expected "),
        ({"line": {}}, "did you mean lines?"),
        ({"lines": 7}, "frontends.lines: expected a mapping (key: value), found 7 (int)"),
    ],
)
def test_an_invalid_value_is_refused_with_its_key(frontends: Any, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(yml_dict={"rpc_port": 0, "frontends": frontends})
    assert told in str(caught.value)


def test_unused_options_are_a_warning() -> None:
    from line_frontend import LineFrontend

    config = load_config(
        yml_dict={"rpc_port": 0, "frontends": {"hello": {"a": 1}, "lines": {"prt": 1}}}
    )
    assert config.frontends == {"hello": None, "lines": LineFrontend.Options()}
    assert [warning.split(": ", 1)[1] for warning in config.warnings] == [
        "frontends.hello.a: unknown key, ignored",
        "frontends.lines.prt: unknown key, ignored; did you mean port?",
    ]


@pytest.mark.parametrize("name", ["grpc", "dashboard", "http"])
def test_the_servers_own_frontends_have_other_keys(name: str) -> None:
    server = PipelineServer("svc")
    server.set_response_op(ResponseOp([Op("a", [RequestOp()])]))
    server.prepare_server(yml_dict={"rpc_port": 0, "frontends": {name: {}}})
    with pytest.raises(ConfigError, match=f"frontends: {name} is the server's own"):
        server.start()
