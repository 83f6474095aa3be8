"""`pipeline client`: asks a server over HTTP, and prints what it answers."""

from __future__ import annotations

import argparse
import dataclasses
import http.client
import re
import sys
from collections.abc import Sequence

import msgspec

from pipeline.cli.parsing import FAILED, above_0, command_parser, fails
from pipeline.cli.question import (
    JSON,
    Form,
    ServerAddress,
    add_question,
    only_pipeline,
    question_of,
)
from pipeline.errors import ConfigError

_TIMEOUT_S = 60.0
_MAX_TIMEOUT_S = 86400.0  # sockets bear no number of any size
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # as RFC 9110 has it
_HEADER_VALUE = re.compile(r"[ -~]*")


def client(arguments: Sequence[str]) -> int:
    """Run `pipeline client`; the exit status: 1 if the answer is an error, or there is none."""
    given = client_parser().parse_intermixed_args(list(arguments))
    try:
        address = named(ServerAddress.of(given.url), given.timeout)
        return _ask(address, given)
    except ConfigError as error:
        return fails("client", str(error))
    except (OSError, http.client.HTTPException) as error:
        return fails("client", f"{given.url}: {error}")


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
    """Return an address with the name of a pipeline: the server is asked if it has none.

    Raises:
        ConfigError: there is not just one.
        OSError: the server cannot be asked.
    """
    if address.path.strip("/"):
        return address
    connection = address.connect(timeout_s)
    try:
        connection.request("GET", "/openapi.json")
        response = connection.getresponse()
        body = response.read()
        document = msgspec.json.decode(body) if response.status == http.HTTPStatus.OK else {}
    except msgspec.DecodeError:
        document = {}
    finally:
        connection.close()
    return dataclasses.replace(address, path=f"/{only_pipeline(document)}")


def _ask(address: ServerAddress, given: argparse.Namespace) -> int:
    form: Form | None = given.form
    question = question_of(address, form, given.fields)
    headers = {"content-type": JSON, **dict(map(_header, given.header))}
    connection = address.connect(given.timeout)
    try:
        connection.request("POST", question.path, question.body, headers)
        response = connection.getresponse()
        if not response.getheader("content-type", "").startswith(JSON):
            return _pass_on(response)
        body = response.read()
    finally:
        connection.close()
    sys.stdout.write(msgspec.json.format(body, indent=2).decode() + "\n")
    return FAILED if _is_error(response.status, msgspec.json.decode(body)) else 0


def _is_error(status: int, said: object) -> bool:
    """Return whether an answer of any form is an error."""
    told = said if isinstance(said, dict) else {}
    return status >= http.HTTPStatus.BAD_REQUEST or bool(told.get("err_no") or "error" in told)


def _pass_on(response: http.client.HTTPResponse) -> int:
    """Print an answer that is no single JSON, each line of a stream when it comes."""
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
