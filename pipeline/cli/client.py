"""`pipeline client`: makes a request from words, sends it over HTTP, prints the answer."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import http.client
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit

import msgspec
import numpy as np

from pipeline.cli.parsing import FAILED, above_0, command_parser, fails
from pipeline.errors import ConfigError

_TIMEOUT_S = 60.0
_MAX_TIMEOUT_S = 86400.0  # sockets have a limit
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110
_HEADER_VALUE = re.compile(r"[ -~]*")


def client(arguments: Sequence[str]) -> int:
    """Run `pipeline client`; return the exit status: 1 for an error, or without an answer."""
    options = client_parser().parse_intermixed_args(list(arguments))
    try:
        address = named(ServerAddress.of(options.url), options.timeout)
        return _ask(address, options)
    except ConfigError as error:
        return fails("client", str(error))
    except (OSError, http.client.HTTPException) as error:
        return fails("client", f"{options.url}: {error}")


def client_parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "client",
        "Ask a server over HTTP and print its answer; the exit status is 1 if that is an error.",
        "pipeline client http://127.0.0.1:18071/hello name=Anna\n"
        "pipeline client :18071/v2/models/score 'x:=[[1, 2, 1]]'",
    )
    add_question(parser)
    parser.add_argument(
        "--header", action="append", default=[], metavar="NAME:VALUE", help="such as a token's"
    )
    parser.add_argument(
        "--timeout", type=_timeout, default=_TIMEOUT_S, metavar="S", help="default: %(default)s"
    )
    return parser


def named(address: ServerAddress, timeout_s: float) -> ServerAddress:
    """Return an address with the name of a pipeline; if it has none, ask the server.

    Raises:
        ConfigError: there is not exactly one pipeline.
        OSError: the server cannot be reached.
    """
    if address.path.strip("/"):
        return address
    document: Any = {}
    with address.asked(timeout_s, "GET", "/openapi.json") as response:
        body = response.read()
    if response.status == http.HTTPStatus.OK:
        with contextlib.suppress(msgspec.DecodeError):
            document = msgspec.json.decode(body)
    return dataclasses.replace(address, path=f"/{only_pipeline(document)}")


def _ask(address: ServerAddress, options: argparse.Namespace) -> int:
    form: Form | None = options.form
    question = question_of(address, form, options.fields)
    headers = {"content-type": JSON, **dict(map(_header, options.header))}
    request = options.timeout, "POST", question.path, question.body, headers
    with address.asked(*request) as response:
        if not response.getheader("content-type", "").startswith(JSON):
            return _pass_on(response)
        body = response.read()
    sys.stdout.write(msgspec.json.format(body, indent=2).decode() + "\n")
    return FAILED if _is_error(response.status, msgspec.json.decode(body)) else 0


def _is_error(status: int, answer: object) -> bool:
    """Return whether an answer of any form is an error."""
    members = answer if isinstance(answer, dict) else {}
    return status >= http.HTTPStatus.BAD_REQUEST or bool(
        members.get("err_no") or "error" in members
    )


def _pass_on(response: http.client.HTTPResponse) -> int:
    """Print an answer that is not a single JSON value; each line of a stream as it arrives."""
    for line in response:
        sys.stdout.write(line.decode("utf-8", "replace"))
        sys.stdout.flush()
    return FAILED if _is_error(response.status, None) else 0


def _header(word: str) -> tuple[str, str]:
    name, colon, value = word.partition(":")
    name, value = name.strip(), value.strip()
    if not colon or not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
        raise ConfigError(f"--header {word!r}: expected NAME:VALUE, of visible ASCII and spaces")
    return name, value


def _timeout(text: str) -> float:
    if (timeout_s := above_0(text)) > _MAX_TIMEOUT_S:
        raise argparse.ArgumentTypeError(f"expected a number to {_MAX_TIMEOUT_S:g}, found {text!r}")
    return timeout_s


# The request ------------------------------------------------------------------------------------


Form = Literal["api", "pipeline", "v2"]
JSON = "application/json"
_API, _V2 = "/api/", "/v2/models/"
_DATATYPES = {"b": "BOOL", "i": "INT64", "f": "FP32"}
_ELSEWHERE = "expected http://HOST:PORT or http://HOST:PORT/NAME"


@dataclass(frozen=True)
class ServerAddress:
    """The host and port of a server, and the path of the URL."""

    host: str
    port: int
    is_tls: bool
    path: str

    @classmethod
    def of(cls, url: str) -> ServerAddress:
        """Return the parts of a URL. Raises ConfigError: it is not an HTTP URL."""
        local = f"127.0.0.1{url}" if url.startswith(":") else url
        try:
            parts = urlsplit(local if "://" in local else f"http://{local}")
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"{url}: {error}; {_ELSEWHERE}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url}: {_ELSEWHERE}")
        is_tls = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if is_tls else 80), is_tls, parts.path)

    @contextlib.contextmanager
    def asked(self, timeout_s: float, *request: Any) -> Iterator[http.client.HTTPResponse]:
        """Send a request, and yield the response; close the connection afterwards."""
        kind = http.client.HTTPSConnection if self.is_tls else http.client.HTTPConnection
        with contextlib.closing(kind(self.host, self.port, timeout=timeout_s)) as connection:
            connection.request(*request)
            yield connection.getresponse()


@dataclass(frozen=True)
class Question:
    """A path and the body of a POST."""

    path: str
    body: bytes


def add_question(parser: argparse.ArgumentParser) -> None:
    """Add the URL and the fields to a parser."""
    parser.add_argument(
        "url",
        metavar="URL",
        help="http://HOST:PORT/NAME; without a name: the server's only pipeline",
    )
    parser.add_argument(
        "fields",
        nargs="*",
        metavar="KEY=VALUE",
        help="a field as text; KEY:=JSON as a number, list, ...; KEY=@FILE the text of a file",
    )
    parser.add_argument(
        "--form",
        choices=("api", "pipeline", "v2"),
        help="api: plain JSON, the default; pipeline: pairs of keys and values; v2: Triton's, "
        "where NAME may be an Op",
    )


def question_of(address: ServerAddress, form: Form | None, words: Sequence[str]) -> Question:
    """Return the request. Raises ConfigError: a word is invalid, or the URL names no pipeline.

    The path of a URL may also imply the form: /api/NAME, /v2/models/NAME.
    """
    fields = dict(map(_field, words))
    path = address.path.rstrip("/")
    if path.startswith(_API):
        form, path = form or "api", path.removeprefix("/api")
    elif path.startswith(_V2):
        form, path = form or "v2", path.removeprefix("/v2/models").removesuffix("/infer")
    name = path.strip("/")
    if not name:
        raise ConfigError("the URL names no pipeline")
    match form or "api":
        case "api":
            return Question(f"{_API}{quote(name)}", msgspec.json.encode(fields))
        case "pipeline":
            return Question(_with_method(name), msgspec.json.encode(_pairs(fields)))
        case _:
            return Question(f"{_V2}{quote(name)}/infer", msgspec.json.encode(_inputs(fields)))


def only_pipeline(document: Any) -> str:
    """Return the name of the pipeline that an OpenAPI document describes.

    Raises ConfigError: there are none or several.
    """
    paths = document.get("paths", {}) if isinstance(document, Mapping) else {}
    names = sorted(path.removeprefix(_API) for path in paths if path.startswith(_API))
    if len(names) != 1:
        there = f"there are {', '.join(names)}" if names else "there is none"
        raise ConfigError(f"the URL names no pipeline, and {there}; {_ELSEWHERE}")
    return str(names[0])


def _field(word: str) -> tuple[str, Any]:
    key, equals, text = word.partition("=")
    if not equals or not key.rstrip(":"):
        raise ConfigError(f"{word!r}: expected KEY=VALUE, KEY:=JSON or KEY=@FILE")
    if key.endswith(":"):
        try:
            return key[:-1], msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise ConfigError(f"{word!r}: expected JSON after := ({error})") from None
    if text.startswith("@"):
        try:
            return key, Path(text[1:]).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(f"{word!r}: {getattr(error, 'strerror', None) or error}") from None
    return key, text


def _with_method(name: str) -> str:
    return f"/{quote(name)}" if "/" in name else f"/{quote(name)}/prediction"


def _pairs(fields: Mapping[str, Any]) -> dict[str, list[str]]:
    texts = (
        value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for value in fields.values()
    )
    return {"key": list(fields), "value": list(texts)}


def _inputs(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"inputs": [_input(name, value) for name, value in fields.items()]}


def _input(name: str, value: Any) -> dict[str, Any]:
    """Return a tensor: a text is one element of BYTES; numbers and lists are converted by numpy."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise ConfigError(f"{name}: its lists differ in length") from None
    array = array.reshape(1) if array.ndim == 0 else array
    datatype = _DATATYPES.get(array.dtype.kind, "BYTES")
    if datatype == "BYTES" and array.dtype.kind != "U":
        raise ConfigError(f"{name}: expected text, a number, true or false, or lists of these")
    return {
        "name": name,
        "datatype": datatype,
        "shape": list(array.shape),
        "data": array.reshape(-1).tolist(),
    }
